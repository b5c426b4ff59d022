"""No proven method is found out: every method on every unit, audited once, on a tiny table.

The audits' confidences are such that all of them together raise a false alarm in 5% of the cases at
most; seeds are fixed. These audits look for what is released without its noise, which shows whatever
epsilon is: at a small one few runs are enough. By 64 of them at epsilon 0.25 a release that tells
neighbours apart is refuted always, and one that is mistaken in 2% of the runs in 87 of 100 cases
(``test_it_would_be_seen``). How much shows where there is noise, at three budgets, with all noise laws
and with more runs, is what ``make audit`` measures.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.auditing import audit
from sfumato.data.tensor import Mode
from sfumato.engines.local import Local
from sfumato.solvers.behind import evidence
from sfumato.solvers.private.alternating.solver import PrivateAlternating
from sfumato.solvers.private.gradient.solver import PrivateSGD
from sfumato.solvers.private.input.solver import InputPerturbation
from sfumato.solvers.private.output import PrivateOutput
from sfumato.solvers.private.passes import PrivatePasses
from sfumato.solvers.protocol import NoisyQuery, PrivateQuery

pytestmark = pytest.mark.usefixtures("few_trees")
SHAPE = (Mode("user", 5), Mode("item", 4), Mode("week", 3))
EPSILON, RUNS = 0.25, 64
SHORT = {"starts": 1, "sweeps": 1}
DELTA = {"delta": 1e-3}
CAP = {"max_entries": 4}
RESPONSE = InputPerturbation(noise_law="response", **SHORT)
LAPLACE = InputPerturbation(noise_law="laplace", **SHORT)
GAUSSIAN = InputPerturbation(noise_law="gaussian", **SHORT)
STEPS, ALTERNATING = PrivateSGD(passes=2), PrivateAlternating(sweeps=1)
OUTPUT = PrivateOutput(STEPS, noise_law="gaussian")

CASES = {
    "value, input": (RESPONSE, "value", {}),
    "value, gradient, residual": (PrivatePasses(passes=2), "value", {}),
    "value, gradient, vector": (PrivatePasses(passes=2, noise_law="vector"), "value", {}),
    "value, gradient, Gaussian": (STEPS, "value", DELTA),
    "value, output": (PrivateOutput(PrivatePasses(passes=1)), "value", {}),
    "value, bias": ("bias", "value", {}),
    "value, constant": ("constant", "value", {}),
    "value, alternating": (ALTERNATING, "value", DELTA),
    "entry, input": (LAPLACE, "entry", {}),
    "entry, gradient": (STEPS, "entry", DELTA),
    "entry, output": (OUTPUT, "entry", DELTA),
    "entry, bias": ("bias", "entry", DELTA),
    "entry, constant": ("constant", "entry", {}),
    "entry, alternating": (ALTERNATING, "entry", DELTA),
    "user, input": (GAUSSIAN, "user", {**DELTA, **CAP}),
    "user, gradient": (STEPS, "user", DELTA),
    "user, output": (OUTPUT, "user", {**DELTA, **CAP, "local": None}),
    "user, bias": ("bias", "user", DELTA),
    "user, constant": ("constant", "user", DELTA),
    "user, alternating": (ALTERNATING, "user", DELTA),
    "values of a user, bias": ("bias", "values:user", {**DELTA, **CAP}),
    "Tucker, value, gradient": (PrivatePasses(passes=2), "value", {}),
    "Tucker, entry, alternating": (ALTERNATING, "entry", DELTA),
}
CONFIDENCE = 1 - 0.05 / len(CASES)
CANARY = {"value": "least", "entry": "least", "user": "full", "values:user": "most"}


@pytest.fixture(scope="module", autouse=True)
def laws_are_kept():
    """Every run of an audit has the same channel, of public numbers: what it does is worked out once."""
    law_of, kept = evidence.law_of, {}

    def kept_law(noise, means, deviation, which):
        what = noise, means.tobytes(), deviation, which
        if what not in kept:
            kept[what] = law_of(noise, means, deviation, which)
        return kept[what]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "law_of", kept_law)
        yield


def audited(name):
    method, unit, rest = CASES[name]
    kind = sf.Tucker if name.startswith("Tucker") else sf.CP
    privacy = sf.Privacy(epsilon=EPSILON, unit=unit, method=method, **rest)
    return audit(
        kind(2, privacy=privacy),
        SHAPE,
        runs=RUNS,
        canaries=[CANARY[unit]],
        confidence=CONFIDENCE,
        processes=1,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_proven_method_passes(name):
    found = audited(name)
    assert found.promise.proven
    assert found.promise.accounted <= EPSILON
    assert not found.violated, found


@dataclass(frozen=True)
class Unnoticed(PrivateSGD):
    """Gradient perturbation with hardly any noise in it that is new."""

    def ask(self, state):
        return _Quieted(super().ask(state))


@dataclass(frozen=True)
class _Quieted(NoisyQuery):
    """Another query, answered with hardly any noise."""

    query: PrivateQuery

    def noisy(self, site, draw):
        return Local(site).released(self.query, _Quiet(draw))


class _Quiet:
    """The right to draw, whose noise is a ten-thousandth of what was charged."""

    def __init__(self, draw):
        self._draw, self.mechanism = draw, draw.mechanism

    def release(self, clipped):
        noisy = self._draw.release(clipped)
        return replace(noisy, values=clipped.values + 1e-4 * (noisy.values - clipped.values))

    def stream(self):
        self._draw.stream()
        return np.random.default_rng(0)


@pytest.mark.parametrize("unit", ["value", "user"])
def test_it_would_be_seen(unit, monkeypatch):
    """The same runs, the same confidence, and a method whose noise is always the same."""
    rest = {"local": None} if unit == "user" else {}
    monkeypatch.setitem(CASES, "broken", (Unnoticed(passes=2), unit, {**DELTA, **rest}))
    assert audited("broken").violated
