"""Where a fit is computed: on processors, or where it pays on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sfumato.engines.protocol import Engine
from sfumato.errors import SettingError
from sfumato.estimators.sources import Source, TensorSource
from sfumato.fit.plan import Plan
from sfumato.models.shape import Shape
from sfumato.sites.device import installed, lacking_memory, most_of_units, use_gpu
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.private.alternating.solver import PrivateAlternating
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.private.constant import PrivateConstant
from sfumato.solvers.private.moments.solver import PrivateMoments
from sfumato.surface import setting

_BY_HAND = PrivateConstant, PrivateBiases, PrivateMoments  # all of whose kernels are by hand
_WHOLE_MODE = 1 << 40  # bytes of Gram matrices: a device has them all at once


def placed(
    device: str,
    solver: Any,
    source: Source,
    shape: Shape,
    sites: int = 1,
    engine: Any = None,
    whole: bool = False,
    entries: float = 0.0,
) -> Callable[[int], Engine] | None:
    """What opens the entries on a GPU, given the number of threads, or None where the fit is left to
    processors; an error where it must and cannot.

    To be asked before anything is charged. What is planned, a model of this ``shape``, has to fit the
    GPU whatever the entries are. ``whole`` units add up what their entries have. ``entries`` are about
    as many as there are, as far as that is public.
    """
    if device == "cpu":
        return None
    if not isinstance(source, TensorSource) or engine is not None or sites > 1:
        _refuse(device, "is for one tensor in memory, in this process")
        return None
    alternating = type(solver) is PrivateAlternating
    by_hand = type(solver) in _BY_HAND or (alternating and whole)
    if not (by_hand or alternating or type(solver) is ALS):
        _refuse(
            device,
            f"has kernels for {setting('solver', 'als')} and for the private methods 'alternating', "
            f"'moments', 'bias' and 'constant', and this is a fit by {solver.name!r}",
        )
        return None
    most = most_of_units(shape) if alternating and whole else None
    if most is not None:
        _refuse(device, f"has kernels for what units add to {most}")
        return None
    if not use_gpu(device):
        return None
    if by_hand and not installed():
        _refuse(
            device,
            f"has kernels for {solver.name!r} that need numba-cuda (pip install 'sfumato[gpu]')",
        )
        return None
    blocks = shape.order - 1 + bool(shape.core_size) if alternating and whole else 0
    lacking = lacking_memory(shape, type(solver) is not ALS, entries if by_hand else 0.0, blocks)
    if lacking is not None:
        _refuse(device, lacking, "a smaller rank, ")
        return None
    return partial(source.on_device, shape=shape, entries=entries, blocks=blocks)


def _refuse(device: str, reason: str, instead: str = "") -> None:
    """Only where a GPU was asked for by name."""
    if device == "gpu":
        raise SettingError(
            f"{setting('device', 'gpu')} {reason}: use {instead}{setting('device', 'cpu')}, or 'auto', "
            "which takes a GPU where it can"
        )


def in_whole_modes(plan: Plan[Shape]) -> Plan[Shape]:
    """A plan of ALS whose questions are about all rows of a mode at once."""
    solver: Any = plan.solver
    return replace(plan, solver=replace(solver, block_bytes=_WHOLE_MODE))
