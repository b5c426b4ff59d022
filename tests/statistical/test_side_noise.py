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


SIZES = {"user": 40, "item": 30, "tag": 20, "part": 4}


def noise_of(unit, local, method):
    g = np.random.default_rng(0)
    modes = {name: sf.Mode(name, size) for name, size in SIZES.items()}
    pairs = method == "pairs"  # of three modes, beside a public table

    def table(*names):
        sizes = [SIZES[name] for name in names]
        cells = np.stack(np.unravel_index(g.choice(np.prod(sizes), 400, False), sizes))
        named = tuple(modes[name] for name in names)
        return sf.SparseTensor(cells, g.uniform(-1, 1, 400), named, (-1.0, 1.0))

    main = table("user", "item", "part") if pairs else table("user", "item")
    tensors = {"main": main, "side": table("user", "tag")}
    relations = {name: sf.Public(entries=400) for name in tensors} | ({"side": True} if pairs else {})
    labels = {mode.name: range(mode.size) for tensor in tensors.values() for mode in tensor.modes}
    public = sf.Public(labels=labels, relations=relations)
    privacy = sf.Privacy(3.0, 1e-6, unit=unit, local=local, method=method, public=public, seed=0)
    rank = None if pairs else 8
    plan = prepared(tensors, dict.fromkeys(tensors, "cp"), privacy, rank, Run(0, 1), Entropy(0)).plan
    solver, facts, site = plan.task.solver, plan.task.facts, RelationSites(list(tensors.values()), 1)
    site = site.parts[0] if pairs else site
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
        ("entry", "user", "pairs"),
        ("user", "user", "pairs"),
    ],
)
def test_noise_is_what_was_charged(unit, local, method):
    numbers = noise_of(unit, local, method)
    assert likely(numbers) > ALARM / 7
    for wrong in (2 / 3, 3 / 2):
        assert likely(wrong * numbers) < ALARM
    assert abs(stats.kurtosis(numbers)) < 1
