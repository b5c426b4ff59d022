"""Designs of entries in kernels by hand, in double precision, for CP and Tucker models alike.

A block is a mode, or the core (``CORE``): its design at an entry is what its row is multiplied by there.
A thread makes one column of it at a time, whatever the model's order is.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import Memory
from sfumato.kernels.cuda.indices import ONE, unsigned
from sfumato.kernels.jax.entrywise import CORE

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


class Parameters(NamedTuple):
    """A model on the device: ``firsts`` are the first rows of its modes, and ``core`` is flat."""

    rows: Any
    biases: Any
    core: Any
    mean: float
    firsts: Any


def parameters(model: Multilinear, memory: Memory) -> Parameters:
    """A model's parameters, copied there, where memory is held for them; of CP no core is looked at."""
    core = model.free_core if model.free_core.size else np.zeros(1)
    parts = {"rows": model.rows, "biases": model.biases, "core": core}
    rows, biases, flat = (
        memory.held(f"own {name}", part.shape, np.float64).put(part) for name, part in parts.items()
    )
    firsts = memory.held("own firsts", (model.order,), np.int64).put(np.array(model.offsets))
    return Parameters(rows, biases, flat, float(model.mean), firsts)


def kind_of(model: Multilinear) -> tuple[int, ...]:
    """What kernels are compiled for beside the order: the ranks of a Tucker model, nothing for CP."""
    return model.ranks if model.free_core.size else ()


@cache
def placed(order: int, lead: int) -> Any:
    """Rows of an entry, mode after mode; that of the mode ``lead``, which entries lack, is given."""

    modes, alone = unsigned(order), unsigned(lead)

    @cuda.jit(device=True)
    def place(firsts, others, entry, row, index):  # type: ignore[no-untyped-def]
        for m in range(modes):
            if m == alone:
                index[m] = row
            else:
                index[m] = unsigned(firsts[m] + others[m if m < alone else m - ONE, entry])

    return place


@cache
def design(order: int, ranks: tuple[int, ...], block: int) -> Any:
    """One column of a block's design, from the rows at ``index``."""
    if not ranks:
        return _of_products(order, block)
    return _of_core(ranks) if block == CORE else _contracted(ranks, block)


def _of_products(order: int, block: int) -> Any:
    modes, own = unsigned(order), unsigned(block)

    @cuda.jit(device=True)
    def column_of(rows, core, index, column):  # type: ignore[no-untyped-def]
        product = 1.0
        for m in range(modes):
            if m != own:
                product *= rows[index[m], column]
        return product

    return column_of


def _of_core(ranks: tuple[int, ...]) -> Any:
    order = len(ranks)

    @cuda.jit(device=True)
    def column_of(rows, core, index, column):  # type: ignore[no-untyped-def]
        product, rest = 1.0, np.int64(column)
        for k in range(order):
            m = order - 1 - k
            product *= rows[index[m], unsigned(rest % ranks[m])]
            rest //= ranks[m]
        return product

    return column_of


def _contracted(ranks: tuple[int, ...], block: int) -> Any:
    order, terms = len(ranks), prod(ranks) // ranks[block]
    strides = tuple(prod(ranks[m + 1 :]) for m in range(order))

    @cuda.jit(device=True)
    def column_of(rows, core, index, column):  # type: ignore[no-untyped-def]
        total = 0.0
        for term in range(terms):
            product, rest, at = 1.0, term, np.int64(column) * strides[block]
            for k in range(order):
                m = order - 1 - k
                if m != block:
                    digit = rest % ranks[m]
                    rest //= ranks[m]
                    product *= rows[index[m], unsigned(digit)]
                    at += digit * strides[m]
            total = cuda.fma(core[unsigned(at)], product, total)  # rounded alike wherever it stands
        return total

    return column_of
