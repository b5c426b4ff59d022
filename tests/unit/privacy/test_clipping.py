"""Clipped numbers: what they state has to be possible, and adds up only with its like."""

from math import inf

import numpy as np
import pytest

from sfumato.errors import SettingError
from sfumato.privacy.clipping import Clipped, combine


def sums(values=(1.0, 2.0), **stated):
    return Clipped(np.array(values), 1.0, 1.0, **{"step": 0.5, **stated})


@pytest.mark.parametrize("step", [0.3, 3.0, -0.5, 0.0, inf, np.nan])
def test_the_step_of_a_grid_is_a_power_of_two(step):
    with pytest.raises(SettingError, match="power of two"):
        sums(step=step)


@pytest.mark.parametrize(
    "other",
    [
        sums((1.0, 2.0, 3.0)),
        sums(step=0.25),
        sums(single=True),
        sums(public=(np.ones(2),)),
        Clipped(np.ones(2), 1.0, 2.0, step=0.5),
    ],
    ids=["size", "grid", "single", "public", "bound"],
)
def test_answers_to_different_questions_do_not_add_up(other):
    with pytest.raises(SettingError, match="do not add up"):
        combine([sums(), other])


def test_public_parts_of_different_sizes_are_not_broadcast():
    with pytest.raises(SettingError, match="do not add up"):
        combine([sums(public=(np.ones(1),)), sums(public=(np.ones(3),))])
    whole = combine([sums(public=(np.ones(3),)), sums(public=(np.arange(3.0),))])
    assert whole.public[0].tolist() == [1.0, 2.0, 3.0]
    assert whole.values.tolist() == [2.0, 4.0]
