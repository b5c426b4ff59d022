"""Noise of a fit of several relations is what was charged: two thirds or three halves of it are noticed.

Each draw's noise is divided by the deviation that its charge and its bound say; all of them together are
standard normal numbers, whose mean square is tested at a false-alarm rate of 1e-6 in all, seeds fixed.
"""

import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from sfumato.estimators.coupled_private import prepared
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Draw
from sfumato.sites.several import RelationSites
from sfumato.solvers.protocol import Run

ALARM = 1e-6


def noise_of(unit, local, method):
    g = np.random.default_rng(0)
    modes = {"user": sf.Mode("user", 40), "item": sf.Mode("item", 30), "tag": sf.Mode("tag", 20)}

    def table(second):
        size = modes[second].size
        cells = np.stack(np.unravel_index(g.choice(40 * size, 400, False), (40, size)))
        return sf.SparseTensor(cells, g.uniform(-1, 1, 400), (modes["user"], modes[second]), (-1.0, 1.0))

    tensors = {"main": table("item"), "side": table("tag")}
    relations = {name: sf.Public(entries=400) for name in tensors}
    public = sf.Public(labels={n: range(m.size) for n, m in modes.items()}, relations=relations)
    privacy = sf.Privacy(3.0, 1e-6, unit=unit, local=local, method=method, public=public, seed=0)
    plan = prepared(tensors, dict.fromkeys(tensors, "cp"), privacy, 8, Run(0, 1), Entropy(0)).plan
    solver, facts, site = plan.task.solver, plan.task.facts, RelationSites(list(tensors.values()), 1)
    state, found = solver.init(plan.run, facts), []
    for number, charge in enumerate(plan.charges):
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


@pytest.mark.parametrize(
    ("unit", "local", "method"),
    [
        ("entry", "user", "bias"),
        ("user", "user", "bias"),
        ("entry", None, "bias"),
        ("entry", "user", "moments"),
        ("user", "user", "moments"),
    ],
)
def test_noise_is_what_was_charged(unit, local, method):
    numbers = noise_of(unit, local, method)
    assert likely(numbers) > ALARM / 5
    for wrong in (2 / 3, 3 / 2):
        assert likely(wrong * numbers) < ALARM
    assert abs(stats.kurtosis(numbers)) < 1
