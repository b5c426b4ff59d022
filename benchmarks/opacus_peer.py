"""Opacus with ghost clipping on ratings, in a process of its own: prints JSON, seconds of each step.

    python benchmarks/opacus_peer.py RATINGS.npz RANK RATE STEPS

Batches are drawn by index, without Opacus' data loader, which would be slower than its arithmetic.
"""

from __future__ import annotations

import json
import sys
import warnings
from time import perf_counter

import numpy as np
import torch
from opacus import __version__
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping


class Factors(torch.nn.Module):
    """A matrix factorisation with biases."""

    def __init__(self, users: int, items: int, rank: int) -> None:
        super().__init__()
        self.user, self.item = torch.nn.Embedding(users, rank), torch.nn.Embedding(items, rank)
        self.user_bias, self.item_bias = torch.nn.Embedding(users, 1), torch.nn.Embedding(items, 1)
        for table in (self.user, self.item, self.user_bias, self.item_bias):
            torch.nn.init.normal_(table.weight, std=0.1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        product = (self.user(users) * self.item(items)).sum(-1)
        return product + self.user_bias(users).squeeze(-1) + self.item_bias(items).squeeze(-1)


def main() -> None:
    warnings.simplefilter("ignore")
    path, rank, rate, steps = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(2)
    with np.load(path) as data:
        users, items = (torch.from_numpy(data[name].astype(np.int64)) for name in ("user", "item"))
        values = torch.from_numpy(data["rating"].astype(np.float32)) - 3.5
    entries = len(values)
    model = GradSampleModuleFastGradientClipping(
        Factors(int(users.max()) + 1, int(items.max()) + 1, rank),
        max_grad_norm=1.0,
        use_ghost_clipping=True,
        loss_reduction="sum",
    )
    optimiser = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=rate * entries,
        loss_reduction="sum",
    )
    loss_of = DPLossFastGradientClipping(
        model, optimiser, torch.nn.MSELoss(reduction="sum"), loss_reduction="sum"
    )
    seconds = []
    for _ in range(steps):
        begin = perf_counter()
        batch = torch.nonzero(torch.rand(entries) < rate).squeeze(-1)
        optimiser.zero_grad()
        loss = loss_of(model(users[batch], items[batch]), values[batch])
        loss.backward()
        optimiser.step()
        seconds.append(perf_counter() - begin)
    print(json.dumps({"opacus": __version__, "torch": torch.__version__, "seconds": seconds}))


if __name__ == "__main__":
    main()
