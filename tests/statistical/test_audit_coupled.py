"""Private fits of several relations are not found out, and would be, were they broken.

The confidences are such that all audits together raise a false alarm in 5% of the cases at most; seeds
are fixed. As in test_audit_proven.py, what is released without its noise is looked for, with few runs at
a small epsilon: a release that tells neighbours apart is refuted always, and one that is mistaken in 2%
of the runs in 95 of 100 cases. ``make audit`` has larger budgets and more runs.
"""

from dataclasses import replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.privacy import mechanisms

pytestmark = pytest.mark.usefixtures("few_trees")
EPSILON, RUNS = 0.25, 64
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


def privacy(unit, method="bias", **rest):
    labels = {"user": range(USERS), "item": range(ITEMS), "tag": range(TAGS)}
    relations = {"main": sf.Public(entries=18), "side": sf.Public(entries=15)}
    public = sf.Public(labels=labels, relations=relations)
    return sf.Privacy(EPSILON, 1e-3, unit=unit, method=method, public=public, **rest)


CASES = {
    "entry, rows local": ("entry", {"local": "user"}, "side: least"),
    "entry, all released": ("entry", {"local": None}, "main: least"),
    "user": ("user", {}, "main: full"),
    "value": ("value", {}, "main: least"),
    "langevin, entry": ("entry", {"local": None, "method": STEPS}, "side: least"),
    "langevin, user": ("user", {"method": STEPS}, "main: full"),
}
CONFIDENCE = 1 - 0.05 / len(CASES)


def audited(unit, rest, canary):
    return sf.audit(
        sf.Coupled(2, privacy=privacy(unit, **rest)),
        tensors(),
        runs=RUNS,
        canaries=[canary],
        confidence=CONFIDENCE,
        processes=1,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_proven_fit_of_relations_passes(name):
    found = audited(*CASES[name])
    assert found.promise.proven
    assert found.promise.accounted <= EPSILON
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
    assert audited(*CASES[name]).violated


def test_a_canary_of_no_relation_is_refused():
    with pytest.raises(sf.SettingError, match="there is no canary"):
        audited("entry", {"local": "user"}, "least")
