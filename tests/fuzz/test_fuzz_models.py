"""A small run of the fuzzer of model folders; ``python -m benchmarks.fuzz models`` makes a long one."""

import pytest

from benchmarks.fuzz import models
from benchmarks.fuzz.harness import GOOD, attack, cases_of


@pytest.mark.filterwarnings("ignore")
def test_no_damaged_folder_crashes_hangs_or_ends_in_a_traceback():
    cases = cases_of(models.SUBJECT, 12 * len(models.BASES), seed=7)
    findings = list(attack(models.SUBJECT, cases))
    assert len(findings) == len(cases)
    assert [finding for finding in findings if finding.ending not in GOOD] == []
    assert {finding.ending for finding in findings} == set(GOOD)
