"""A small run of the fuzzer of readers: no crash, no hang, no raw traceback.

``python -m benchmarks.fuzz readers`` runs 10,000 cases.
"""

from benchmarks.fuzz.harness import BAD, GOOD, attack, cases_of
from benchmarks.fuzz.readers import SUBJECT


def test_damaged_data_is_used_or_refused():
    findings = list(attack(SUBJECT, cases_of(SUBJECT, 20 * len(SUBJECT.kinds), seed=7)))
    assert [finding for finding in findings if finding.ending in BAD] == []
    ends = {(finding.case.kind, finding.ending) for finding in findings}
    # Or the cases would show nothing: some of every kind get through, and some do not.
    assert ends == {(kind, ending) for kind in SUBJECT.kinds for ending in GOOD}
