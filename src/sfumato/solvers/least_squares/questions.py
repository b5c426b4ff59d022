"""What least squares asks the data: normal equations of rows and of a core, and what is left over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sfumato.kernels.numba.normal import NormalEquations, Uncertainty
from sfumato.models.multilinear import Multilinear
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.core import CoreEquations, core_equations


@record
class Rows(NamedTuple):
    """Some rows of a mode."""

    mode: int
    low: int
    high: int


@record
@dataclass(frozen=True)
class Residuals:
    """Sum of squared residuals, sum of the predictions' variances, number of entries."""

    squares: float
    variances: float
    entries: int

    def __add__(self, other: Residuals) -> Residuals:
        return Residuals(
            self.squares + other.squares,
            self.variances + other.variances,
            self.entries + other.entries,
        )


@record
@dataclass(frozen=True)
class RowsQuery:
    """Ask for the normal equations of some rows of a mode."""

    model: Multilinear
    uncertainty: Uncertainty
    rows: Rows

    @property
    def part(self) -> Rows:
        return self.rows

    def about(self, part: Rows) -> RowsQuery:
        return replace(self, rows=part)

    def follows(self, before: Any) -> bool:
        """The rows that come next in a sweep: till then rows of this mode change, which none reads."""
        return (
            isinstance(before, RowsQuery)
            and before.model is self.model
            and before.uncertainty is self.uncertainty
            and (before.rows.mode, before.rows.high) == (self.rows.mode, self.rows.low)
        )

    def concerns(self, site: Site) -> bool:
        """Whether there are entries of these rows: of the mode that shards are cut by, one has them."""
        starts = site.by_mode(self.rows.mode).starts
        return bool(starts[self.rows.low] < starts[self.rows.high])

    def answer(self, site: Site) -> NormalEquations:
        return site.normal_equations(self.model, self.uncertainty, *self.rows)


@record
@dataclass(frozen=True)
class CoreQuery:
    """Ask for the normal equations of the core."""

    model: Multilinear
    uncertainty: Uncertainty

    def answer(self, site: Site) -> CoreEquations:
        return core_equations(self.model, self.uncertainty, site)


@record
@dataclass(frozen=True)
class ResidualQuery:
    """Ask how far the model is from the entries."""

    model: Multilinear
    uncertainty: Uncertainty

    def answer(self, site: Site) -> Residuals:
        return residuals(self.model, self.uncertainty, site)


def residuals(model: Multilinear, uncertainty: Uncertainty, site: Site) -> Residuals:
    """Fit to the training entries: squared residuals, and the variance that is still in the model."""
    squares, variances = site.residual_sums(model, uncertainty)
    return Residuals(squares, variances, site.tensor.n_entries)
