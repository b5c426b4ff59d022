"""What an audit says: in words, as JSON, as a picture."""

import json
from dataclasses import replace

import pytest

from sfumato.auditing.bounds import Counts
from sfumato.auditing.verdict import Audit, Finding, Promise

PROMISE = Promise(
    epsilon=1.0,
    delta=0.0,
    accounted=0.9999,
    unit="one observed value",
    neighbours="one value is replaced",
    method="input perturbation",
    proven=True,
)
ROC = ((0.0, 0.0), (0.0, 0.4), (0.2, 0.8), (1.0, 1.0))
WEAK = Finding("edge", "prediction at the cell", Counts(60, 100, 55, 100), 0.0, 0.025, ROC)
FAIR = Finding("least", "likelihood ratio", Counts(70, 100, 30, 100), 0.0, 0.025, ROC)
STRONG = Finding("least", "linear discriminant", Counts(100, 100, 0, 100), 0.0, 0.025, ROC)


def audit_of(*findings, promise=PROMISE, confidence=0.95, seeded=True):
    return Audit(promise, findings, confidence, 400, seeded)


CONSISTENT, VIOLATED = audit_of(WEAK, FAIR), audit_of(FAIR, STRONG)


def test_the_largest_bound_decides():
    assert CONSISTENT.strongest is FAIR
    assert 0 < CONSISTENT.measured == FAIR.bound < 1
    assert not CONSISTENT.violated
    assert VIOLATED.strongest is STRONG
    assert VIOLATED.violated


def test_verdicts_in_words():
    assert CONSISTENT.verdict == "consistent with epsilon = 1: measured >= 0.34 at 95%"
    assert VIOLATED.verdict == "VIOLATED: measured >= 3.10 at 95% against a promise of epsilon = 1"
    with_delta = audit_of(WEAK, promise=replace(PROMISE, delta=1e-6))
    assert with_delta.verdict == "consistent with epsilon = 1, delta = 1e-06: measured >= 0.00 at 95%"


def test_a_lower_bound_is_rounded_down_and_a_confidence_not_up():
    assert 3.105 < VIOLATED.measured < 3.11
    assert "at 99.9%" in audit_of(WEAK, confidence=0.999).verdict


def test_a_promise_that_is_just_reached_is_kept():
    assert not audit_of(FAIR, promise=replace(PROMISE, epsilon=FAIR.bound)).violated


def test_a_gaussian_bound_is_told_and_decides_nothing():
    told = audit_of(WEAK, replace(FAIR, gaussian=7.1285))
    assert told.gaussian == 7.1285
    assert not told.violated
    assert "consistent" in told.verdict
    assert "Gaussian   epsilon >= 7.12" in str(told)
    assert CONSISTENT.gaussian is None
    assert "Gaussian" not in str(CONSISTENT)


def test_the_whole_text_says_what_was_promised_for_whom_and_how_it_was_attacked():
    text = str(CONSISTENT)
    for part in (
        CONSISTENT.verdict,
        "epsilon = 1, proven: input perturbation",
        "one observed value; one value is replaced",
        "likelihood ratio, canary least: right on 70 of 100 runs, a false alarm on 30 of 100",
        "400 for each canary; half of them chose",
        "accounted  epsilon 0.9999 at delta 0",
        "noise      seeded",
    ):
        assert part in text
    secret = audit_of(FAIR, promise=replace(PROMISE, proven=False, accounted=None), seeded=False)
    assert "claimed by a paper, not proven" in str(secret)
    assert "accounted" not in str(secret)
    assert "seeded" not in str(secret)


def test_another_confidence_from_the_same_counts():
    assert CONSISTENT.measured_at(0.95) == pytest.approx(CONSISTENT.measured)
    assert CONSISTENT.measured_at(0.999) < CONSISTENT.measured < CONSISTENT.measured_at(0.5)


@pytest.mark.parametrize("audit", [CONSISTENT, VIOLATED])
def test_json_holds_it_all(audit):
    data = json.loads(json.dumps(audit.to_json(), allow_nan=False))
    assert data["verdict"] == audit.verdict
    assert data["violated"] is audit.violated
    assert data["measured"] == audit.measured
    assert data["promise"]["epsilon"] == 1.0
    assert (data["runs"], data["confidence"], data["seeded"]) == (400, 0.95, True)
    for written, finding in zip(data["findings"], audit.findings, strict=True):
        counts = Counts(*(written[name] for name in Counts._fields))
        assert counts == finding.counts
        assert replace(finding, counts=counts).bound == written["epsilon_at_least"]


@pytest.mark.parametrize("audit", [CONSISTENT, VIOLATED, audit_of(replace(STRONG, roc=((0.0, 1.0),)))])
def test_the_picture_is_written(audit, tmp_path):
    path = audit.picture(tmp_path / "roc.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000
