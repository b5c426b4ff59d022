"""What does not hold in paper A, as far as it is measured; ``docs/papers/wang.md``."""

import numpy as np
from threadpoolctl import threadpool_limits

from sfumato.papers.wang_points import deflation_as_printed


def test_algorithm_2_as_printed_finds_a_component_again():
    """Deflated by the accumulator, all is well or not with the unit in which samples are measured."""
    with threadpool_limits(1):  # products are small
        errors = deflation_as_printed((0.5, 2.0), 6_000)
    assert np.max(errors.ours) < 0.2
    assert np.sum(errors.printed[0.5] > 1) == 2
    assert np.max(errors.printed[2.0]) < 0.2
