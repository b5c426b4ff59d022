"""How far owners differ, and what is left of their entries beside that: asked once biases are known.

Owners solve their own biases, and how much these are to shrink hangs on two variances: of what is left
of an owner's entries about their mean, and of these means themselves. Bounds do not tell them, and taken
for granted they cost more than noise does: fares differ far more from route to route than from year to
year. Proof: ``proofs/biases.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, inf, sqrt

from sfumato.kernels.grid import grid
from sfumato.models.told import OwnScales
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.private.contributions import owned_entries, taken_off_owned
from sfumato.solvers.private.known import Known
from sfumato.solvers.protocol import SumQuery
from sfumato.types import Array

_LENGTHS = {1: 2.5, 2: 1.5}  # that an owner's numbers are shortened to, by norm
_ERROR = 0.25  # that a variance may have, over itself
_LIKELY = 0.4  # of the values' variance: what is left, where it is planned for
_LEAST, _MOST = 0.003, 0.1  # of the budget; where more would be needed it is not asked for
_FLOOR = 1e-3  # of the values' variance
_DOUBT_OF_SHARE = 0.25  # of the values' variance: by so much more or less may be left than is assumed


@record
@dataclass(frozen=True)
class OwnersQuery(SumQuery):
    """Ask owners for the variance of their entries and the square of their mean, beside released biases.

    No number is negative, and an owner's are shortened together: where one takes another's place, the
    difference is at most sqrt(2) times as long (twice, in the norm of pure privacy).
    """

    known: Known
    mean: float
    biases: tuple[Array, ...]  # by mode

    def clipped(self, site: Site) -> Clipped:
        known, facts, local = self.known, self.known.facts, self.known.facts.local or 0
        taken = taken_off_owned(facts.bounds, local, self.mean, self.biases)
        length = _LENGTHS[known.norm]
        sums = site.contributions.scales_of_owners(
            owned_entries(site, facts.bounds, local),
            taken,
            facts.spread**2,
            length,
            known.norm,
            site.threads,
        )
        change = owners_change(known)
        return Clipped(sums, change if known.pure else inf, change, grid(length))


def owners_change(known: Known) -> float:
    """How much neighbours change the sums, in the norm that noise is drawn for."""
    length = _LENGTHS[known.norm]
    if known.facts.whole_units:
        return length
    return length * (2 if known.pure else sqrt(2))


def owners_share(known: Known) -> float:
    """Of the budget: what tells the variances well enough, or nothing where that would be much."""
    local = known.facts.local
    if local is None:
        return 0.0
    error = known.mechanism(1.0).deviation(owners_change(known))
    error /= known.facts.sizes[local] * _LIKELY * _ERROR
    share = error if known.pure else error**2
    return 0.0 if share > _MOST else max(share, _LEAST)


def assumed_scales(known: Known, spread_error: float = 0.0) -> OwnScales:
    """Where they are not asked for: from the spread, which noise may have moved by its own error."""
    facts = known.facts
    moved = 2 * facts.scatter_share * facts.spread * spread_error
    error = hypot(moved, _DOUBT_OF_SHARE * facts.spread**2)
    variance = facts.scatter / known.ridge
    return OwnScales(facts.scatter, variance, error, variance)


def scales_from(known: Known, noisy: Noisy) -> OwnScales:
    """The variances: the best linear guesses around those of earlier periods, or that are assumed."""
    unit, start = known.facts.spread**2, assumed_scales(known)
    before = start._replace(error=start.scatter)  # what is assumed may be as wrong as it is large
    if known.facts.before is not None and known.facts.before.own is not None:
        before = known.facts.before.own
    several, owners, thin, within, squares = map(float, noisy.values)
    several, owners = max(2 * several, 1.0), max(2 * owners, 1.0)
    thin = min(max(2 * thin / owners, 0.0), 1.0)  # one over the entries of an owner, on average
    error, doubt = unit * noisy.deviation / several, unit * noisy.deviation / owners
    scatter = _nearer(before.scatter, before.error, unit * within / several, error)
    apart = unit * squares / owners - scatter * thin
    variance = _nearer(before.variance, before.doubt, apart, doubt)
    least = _FLOOR * unit
    return OwnScales(
        max(scatter, least),
        max(variance, least),
        error * before.error / hypot(error, before.error),
        doubt * before.doubt / hypot(doubt, before.doubt),
    )


def _nearer(assumed: float, doubt: float, guess: float, error: float) -> float:
    """A guess as far as its error lets it count, beside one that may be wrong by as much as the doubt.

    Not below its error, nor below what is assumed where that is less: noise can make a variance
    negative, and own biases that shrink to nothing cost more than those that hardly shrink.
    """
    kept = doubt**2 / (doubt**2 + error**2)
    return max(assumed + kept * (guess - assumed), min(error, assumed))
