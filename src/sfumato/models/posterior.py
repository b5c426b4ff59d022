"""Draws of a coupled model's parameters from their posterior, and what they say of cells.

The value of a cell is averaged over draws, never the parameters: components may change places and signs
from draw to draw and chain to chain, so that a mean of parameters means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from numbers import Real
from typing import Literal, NamedTuple

import numpy as np

from sfumato.diagnostics import effective_size, split_rhat
from sfumato.errors import SettingError
from sfumato.models.clipped_counts import clipped_mean
from sfumato.models.coupled import CoupledModel
from sfumato.records import record
from sfumato.types import Array

Family = Literal["normal", "poisson"]
_PIECE = 1 << 23  # numbers held at a time where all draws of many cells are looked at


class Convergence(NamedTuple):
    """Of one number: R-hat over chains (1 where they agree), and what its draws are worth."""

    rhat: float
    effective: float


@record
@dataclass(frozen=True, eq=False)
class Posterior:
    """Thinned draws of all chains.

    Parameters
    ----------
    frame : a model of the same shape, whose parameters are written over.
    family : law of an observation given its value.
    rows, cores : parameters of every draw, ``[chain, draw, ...]``.
    noise : precision of every relation's observations, ``[chain, draw, relation]``; ones for Poisson.
    log_density : of each draw, up to a constant.
    """

    frame: CoupledModel
    family: Family
    rows: Array
    cores: tuple[Array, ...]
    noise: Array
    log_density: Array

    @property
    def parameters(self) -> tuple[Array, ...]:
        return (self.rows, *self.cores, self.noise)

    @classmethod
    def empty(cls, frame: CoupledModel, family: Family, chains: int, draws: int) -> Posterior:
        """Room for draws."""
        rows = np.zeros((chains, draws, frame.rows.shape[0], frame.rank), frame.dtype)
        cores = tuple(np.zeros((chains, draws, core.size), frame.dtype) for core in frame.cores)
        noise = np.ones((chains, draws, len(frame.parts)))
        return cls(frame, family, rows, cores, noise, np.zeros((chains, draws)))

    @property
    def n_chains(self) -> int:
        return int(self.rows.shape[0])

    @property
    def n_draws(self) -> int:
        """Draws of each chain."""
        return int(self.rows.shape[1])

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + sum(core.nbytes for core in self.cores))

    def keep(self, chain: int, draw: int, model: CoupledModel) -> None:
        """Write a model's parameters down as a draw."""
        self.rows[chain, draw] = model.rows[:, : model.rank]
        for mine, core in zip(self.cores, model.cores, strict=True):
            mine[chain, draw] = core

    def model(self, chain: int, draw: int) -> CoupledModel:
        """One draw as a model; the next call writes over it."""
        self.frame.rows[:, : self.frame.rank] = self.rows[chain, draw]
        for core, mine in zip(self.frame.cores, self.cores, strict=True):
            core[:] = mine[chain, draw]
        return self.frame

    def _values(self, part: int, coordinates: Array, threads: int) -> Iterator[tuple[int, int, Array]]:
        for chain in range(self.n_chains):
            for draw in range(self.n_draws):
                model = self.model(chain, draw)
                yield chain, draw, model.predict(part, coordinates, threads=threads)

    # -- what draws say of cells ------------------------------------------------------------------

    def predict(
        self,
        part: int,
        coordinates: Array,
        *,
        threads: int = 1,
        bounds: tuple[float, float] | None = None,
    ) -> Array:
        """Posterior mean of a part's values at the entries ``coordinates[:, e]`` (Eq. 3.13).

        With ``bounds`` that of counts which are clipped to them.
        """
        total = np.zeros(coordinates.shape[1])
        for _, _, values in self._values(part, coordinates, threads):
            total += clipped_mean(values, bounds)
        return total / (self.n_chains * self.n_draws)

    def draws(self, part: int, coordinates: Array, *, threads: int = 1) -> Array:
        """A part's values in every draw: ``[chain, draw, cell]``."""
        found = np.empty((self.n_chains, self.n_draws, coordinates.shape[1]))
        for chain, draw, values in self._values(part, coordinates, threads):
            found[chain, draw] = values
        return found

    def interval(
        self,
        part: int,
        coordinates: Array,
        level: float = 0.9,
        *,
        observation: bool = False,
        seed: int = 0,
        threads: int = 1,
    ) -> tuple[Array, Array]:
        """Bounds between which a cell's value lies with a probability, as much above as below.

        With ``observation`` bounds for a new observation of the cell, noise included.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise SettingError(f"the level of an interval lies between 0 and 1, got {level!r}")
        generator = np.random.default_rng(seed)
        low, high = np.empty((2, coordinates.shape[1]))
        piece = max(1, _PIECE // (self.n_chains * self.n_draws))
        for start in range(0, coordinates.shape[1], piece):
            at = slice(start, start + piece)
            found = self.draws(part, coordinates[:, at], threads=threads)
            if observation:
                found = self._observed(part, found, generator)
            low[at], high[at] = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=(0, 1))
        return low, high

    def _observed(self, part: int, values: Array, generator: np.random.Generator) -> Array:
        if self.family == "poisson":
            return generator.poisson(values).astype(np.float64)
        spread = 1 / np.sqrt(self.noise[..., part, None])
        return np.asarray(values + spread * generator.standard_normal(values.shape))

    # -- whether to believe them ------------------------------------------------------------------

    def convergence(self, part: int, coordinates: Array, *, threads: int = 1) -> list[Convergence]:
        """Of the log density first, then of the values of some cells."""
        cells = self.draws(part, coordinates, threads=threads)
        traces = [self.log_density, *np.moveaxis(cells, 2, 0)]
        return [Convergence(split_rhat(trace), effective_size(trace)) for trace in traces]

    def standard_error(self, part: int, coordinates: Array, *, threads: int = 1) -> Array:
        """Monte Carlo error of the posterior means of some cells."""
        cells = np.moveaxis(self.draws(part, coordinates, threads=threads), 2, 0)
        return np.array([trace.std(ddof=1) / sqrt(effective_size(trace)) for trace in cells])
