"""A small run of the fuzzer of settings: no crash, no hang, no raw traceback, nothing paid for in vain.

``python -m benchmarks.fuzz settings`` runs 10,000 cases.
"""

import pytest

from benchmarks.fuzz.harness import BAD, attack, cases_of
from benchmarks.fuzz.settings import COMMANDS, KINDS, SUBJECT, attempt, charged

SECONDS = 300.0  # kernels may have to be compiled first


def test_hostile_settings_are_used_or_refused():
    cases = cases_of(SUBJECT, 5 * len(SUBJECT.kinds), seed=3)
    findings = list(attack(SUBJECT, cases, seconds=SECONDS))
    assert [finding for finding in findings if finding.ending in BAD] == []
    assert {finding.case.kind for finding in findings if finding.ending == "refused"} == {*KINDS}
    assert {finding.case.kind for finding in findings if finding.ending == "used"} >= {COMMANDS, "CP"}


def test_a_fit_that_is_paid_for_and_fails_is_found(tmp_path, monkeypatch):
    def pay_and_fail(**_):
        (tmp_path / "ledger").write_text("a head\na charge\n")
        raise ValueError

    target = KINDS["PrivateConstant"](tmp_path, None)._replace(use=pay_and_fail)
    monkeypatch.setitem(KINDS, "PrivateConstant", lambda *_: target)
    with pytest.raises(RuntimeError, match="budget was spent"):
        attempt("PrivateConstant", 0, tmp_path)
    assert charged(tmp_path / "ledger")
