"""Private fits of several relations are not found out, at two budgets; and would be, were they broken.

The confidences are such that all audits together raise a false alarm in 5% of the cases at most; seeds
are fixed.
"""

from dataclasses import replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.privacy import mechanisms

RUNS = 80
USERS, ITEMS, TAGS = 6, 5, 4
STEPS = sf.PrivateLangevin(passes=3, keep=1)


def tensors():
    g = np.random.default_rng(0)
    modes = {"user": sf.Mode("user", USERS), "item": sf.Mode("item", ITEMS), "tag": sf.Mode("tag", TAGS)}

    def table(first, second, entries):
        sizes = modes[first].size, modes[second].size
        cells = np.unravel_index(g.choice(np.prod(sizes), entries, False), sizes)
        return sf.SparseTensor(
            np.stack(cells), g.choice([-0.5, 0.5], entries), (modes[first], modes[second]), (-1.0, 1.0)
        )

    return {"main": table("user", "item", 18), "side": table("user", "tag", 15)}


def privacy(unit, epsilon, method="bias", **rest):
    labels = {"user": range(USERS), "item": range(ITEMS), "tag": range(TAGS)}
    relations = {"main": sf.Public(entries=18), "side": sf.Public(entries=15)}
    public = sf.Public(labels=labels, relations=relations)
    return sf.Privacy(epsilon, 1e-3, unit=unit, method=method, public=public, **rest)


CASES = {
    "entry, rows local": ("entry", {"local": "user"}, "side: least"),
    "entry, all released": ("entry", {"local": None}, "main: least"),
    "user": ("user", {}, "main: full"),
    "value": ("value", {}, "main: least"),
    "langevin, entry": ("entry", {"local": None, "method": STEPS}, "side: least"),
    "langevin, user": ("user", {"method": STEPS}, "main: full"),
}
BUDGETS = (1.0, 4.0)
CONFIDENCE = 1 - 0.05 / (len(CASES) * len(BUDGETS))


def audited(unit, rest, canary, epsilon, runs=RUNS):
    return sf.audit(
        sf.Coupled(2, privacy=privacy(unit, epsilon, **rest)),
        tensors(),
        runs=runs,
        canaries=[canary],
        confidence=CONFIDENCE,
        processes=1,
    )


@pytest.mark.parametrize("epsilon", BUDGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_proven_fit_of_relations_passes(name, epsilon):
    unit, rest, canary = CASES[name]
    found = audited(unit, rest, canary, epsilon)
    assert found.promise.proven
    assert found.promise.accounted <= epsilon
    assert not found.violated, found


@pytest.mark.parametrize("name", ["entry, rows local", "user"])
def test_it_would_be_seen(name, monkeypatch):
    """The same runs with hardly any noise."""
    release = mechanisms.Gaussian.release

    def quiet(self, clipped, entropy):
        noisy = release(self, clipped, entropy)
        values = clipped.numbers + 1e-4 * (noisy.values - clipped.numbers)
        return replace(noisy, values=values)

    monkeypatch.setattr(mechanisms.Gaussian, "release", quiet)
    unit, rest, canary = CASES[name]
    assert audited(unit, rest, canary, 1.0, runs=120).violated


def test_a_canary_of_no_relation_is_refused():
    with pytest.raises(sf.SettingError, match="there is no canary"):
        audited("entry", {"local": "user"}, "least", 1.0)
