"""What the command line imports before a fit computes anything: nothing that is slow and not needed."""

import pytest

from benchmarks.startup import COMPLETIONS, completion, small_file, until_first_kernel

SLOW = {
    "sklearn",
    "dp_accounting",
    "opendp",
    "scipy.stats",
    "scipy.optimize",
    "matplotlib",
    "torch",
    "pandas",
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_a_fit_begins_without_libraries_that_it_does_not_need(name, tmp_path):
    reached = until_first_kernel(completion(small_file(tmp_path), COMPLETIONS[name]))
    assert "sfumato.estimators.completion" in reached.modules
    assert not SLOW & reached.modules
