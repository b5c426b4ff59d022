"""Noise of fits to what was seen is what was charged: two thirds or three halves of it are noticed.

Each draw's noise over the deviation that its charge and its bound say are standard normal numbers, whose
mean square is tested at a false-alarm rate of 1e-6 in all, seeds fixed. Both methods are audited too.
"""

import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from sfumato.auditing import audit
from sfumato.models.shape import Shape
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import Run

ALARM = 1e-6
MODES = (sf.Mode("user", 40), sf.Mode("item", 30))
TOGETHER = sf.PrivateSeen(levels=30)


def noise_of(unit, solver):
    rng = np.random.default_rng(0)
    cells = np.stack(np.unravel_index(rng.choice(1200, 400, replace=False), (40, 30)))
    site = Site(sf.SparseTensor(cells, np.ones(400), MODES, (0.0, 1.0)), 1)
    facts = Facts(Shape(MODES, (4, 4)), unit, (0.0, 1.0), 400, local=0)
    state, found = solver.init(Run(), facts), []
    for number, charge in enumerate(solver.charges(facts)):
        clipped = solver.ask(state).clipped(site)
        noisy = Draw(charge, Entropy(number)).release(clipped)
        expected = charge.mechanism.noise_multiplier * clipped.l2
        assert noisy.deviation == pytest.approx(expected)
        found.append(((noisy.values - clipped.numbers) / expected).ravel())
        state, _ = solver.update(state, noisy)
    return np.concatenate(found)


def likely(numbers):
    square = float(numbers @ numbers)
    return 2 * min(stats.chi2.cdf(square, numbers.size), stats.chi2.sf(square, numbers.size))


@pytest.mark.parametrize("unit", [sf.Entry(), sf.Unit("user")], ids=str)
def test_noise_is_what_was_charged(unit):
    numbers = noise_of(unit, TOGETHER)
    assert numbers.size == 30 + 28 * 27 // 2  # pairs of levels: no more than there are entries
    assert likely(numbers) > ALARM / 2
    for wrong in (2 / 3, 3 / 2):
        assert likely(wrong * numbers) < ALARM


@pytest.mark.parametrize("unit", ["entry", "user"])
@pytest.mark.parametrize("method", ["popularity", sf.PrivateSeen(levels=4)], ids=("popularity", "seen"))
def test_an_audit_does_not_find_it_out(unit, method):
    """At epsilon 0.25 64 runs refute what tells neighbours apart; see ``test_audit_proven.py``."""
    privacy = sf.Privacy(0.25, 1e-3, unit=unit, local="user", method=method)
    modes = (sf.Mode("user", 5), sf.Mode("item", 4))
    canary = "full" if unit == "user" else "least"
    found = audit(
        sf.CP(3, loss="seen", privacy=privacy),
        modes,
        runs=64,
        canaries=[canary],
        confidence=1 - 0.05 / 4,
        processes=1,
    )
    assert found.promise.proven
    assert not found.violated, found
