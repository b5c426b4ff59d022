"""Seeded fits of every method come to the numbers that an earlier version came to.

Where seeds give other noise by now, to those that they came to since (``again``).

``tests/fixtures/make.py`` has the fits. The numbers are compared to seven digits, since other processors
sum in other orders; ``make.py --exact`` shows on one machine whether two versions agree to the last bit.
"""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"
make = runpy.run_path(str(FIXTURES / "make.py"))


@pytest.mark.parametrize("name", make["FITS"])
def test_a_fit_comes_to_the_same_numbers(name):
    expected = json.loads((FIXTURES / "before" / "fits" / name / "expected.json").read_text("utf-8"))
    wanted = expected.get("again", expected["fitted"])
    found = make["some"](make["answers"](make["FITS"][name]()))
    assert found.keys() == wanted.keys()
    for what, numbers in wanted.items():
        np.testing.assert_allclose(found[what], numbers, rtol=1e-7, atol=1e-9, err_msg=what)
