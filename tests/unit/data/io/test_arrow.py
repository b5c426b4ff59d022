"""Arrays between Arrow and NumPy, against Arrow's own functions."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from sfumato.data.io.arrow import filled, from_numpy, to_numpy

ARRAYS = {
    "whole": pa.array([3, 1, 2], pa.int64()),
    "small": pa.array([3, 1, 2], pa.int32()),
    "unsigned": pa.array([3, 1, 2], pa.uint64()),
    "float": pa.array([0.5, float("nan"), -0.0], pa.float32()),
    "text": pa.array(["b", "", "ä"], pa.large_string()),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("cut", [slice(None), slice(1, None), slice(0, 0)])
def test_arrays_are_those_that_arrow_makes(name, cut):
    array = ARRAYS[name][cut]
    expected = array.to_numpy(zero_copy_only=False)
    made = to_numpy(array)
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)
    if name != "text":
        assert from_numpy(made).equals(pa.array(made)) or np.isnan(made).any()
        assert from_numpy(made[::2]).type == array.type


def test_nulls_are_filled():
    array = pa.array([1, None, 3], pa.int32())
    assert to_numpy(filled(array, -1)).tolist() == [1, -1, 3]
    assert filled(array[2:], -1).equals(array[2:])
    numbers = to_numpy(filled(pa.array([0.5, None]), np.nan))
    assert numbers.tobytes() == np.array([0.5, np.nan]).tobytes()


def test_pandas_stays_out():
    program = (
        "import sys, numpy as np\n"
        "from sfumato.data.io.arrow import filled, from_numpy, to_numpy\n"
        "print(to_numpy(filled(from_numpy(np.arange(3)), -1)).tolist(), 'pandas' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[0, 1, 2] False\n"
