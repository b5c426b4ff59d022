"""One private step of a dense network, ours or Opacus', in a process of its own: prints JSON.

    python benchmarks/network_peer.py ours|opacus SIZES BATCH STEPS

Sizes are those of all layers, such as 784,1000,10. Seconds are of each step after the first, and the
memory that steps have taken at most is what the process has grown by since before the first.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

CLIP, NOISE = 0.2, 1.0


def examples(inputs: int, classes: int, batch: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((batch, inputs), np.float32)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    return rows, generator.integers(0, classes, batch)


def ours(sizes: list[int], batch: int) -> tuple[Callable[[], Any], str]:
    import jax

    from sfumato.models.features import as_steps
    from sfumato.models.network import Architecture
    from sfumato.privacy.entropy import Entropy
    from sfumato.privacy.mechanisms import SampledGaussian
    from sfumato.sites.examples import Examples
    from sfumato.solvers.network.settings import Training
    from sfumato.solvers.network.solver import GradientSteps

    rows, targets = examples(sizes[0], sizes[-1], batch)
    site = Examples(as_steps(rows), targets.astype(np.int32))
    network = Architecture(sizes[0], sizes[-1], tuple(sizes[1:-1]), "relu")
    steps = GradientSteps(network, Training(1.0, 1000, CLIP, 0.1), batch)
    state, entropy, mechanism = steps.init(0, np.zeros(10)), Entropy(), SampledGaussian(NOISE, 1.0)

    def step() -> None:
        units = mechanism.batch(batch, entropy)
        sums = steps.ask(state).clipped(site, units, entropy.generator())
        steps.update(state, mechanism.release(sums, entropy))

    return step, f"jax {jax.__version__}"


def opacus(sizes: list[int], batch: int) -> tuple[Callable[[], Any], str]:
    import torch
    from opacus import __version__
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    torch.set_num_threads(2)
    rows, targets = (torch.from_numpy(part) for part in examples(sizes[0], sizes[-1], batch))
    layers: list[Any] = []
    for into, out in pairwise(sizes):
        layers += [torch.nn.Linear(into, out), torch.nn.ReLU()]
    model = GradSampleModuleFastGradientClipping(
        torch.nn.Sequential(*layers[:-1]), max_grad_norm=CLIP, use_ghost_clipping=True
    )
    optimiser = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=batch,
    )
    loss_of = DPLossFastGradientClipping(model, optimiser, torch.nn.CrossEntropyLoss())

    def step() -> None:
        optimiser.zero_grad()
        loss_of(model(rows), targets).backward()
        optimiser.step()

    return step, f"opacus {__version__}, torch {torch.__version__}"


def _peak() -> int:
    """Bytes that this process has held at most (Linux counts in kilobytes)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    warnings.simplefilter("ignore")
    kind, sizes, batch, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    make = {"ours": ours, "opacus": opacus}[kind]
    step, version = make([int(size) for size in sizes.split(",")], batch)
    before, seconds = _peak(), []
    for _ in range(steps + 1):
        begin = perf_counter()
        step()
        seconds.append(perf_counter() - begin)
    print(json.dumps({"version": version, "seconds": seconds[1:], "grown": _peak() - before}))


if __name__ == "__main__":
    main()
