"""Jobs side by side."""

from __future__ import annotations

import os

import pytest

from sfumato.errors import DataError, SettingError
from sfumato.processes import each_done


def _square(number: int) -> int:
    if number == 13:
        raise DataError("thirteen")
    return number * number


def _where(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_is_done_once_and_keeps_its_number(processes):
    jobs = [5, 3, 8, 1]
    assert dict(each_done(_square, jobs, processes)) == {0: 25, 1: 9, 2: 64, 3: 1}


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_job_reaches_the_caller(processes):
    with pytest.raises(DataError, match="thirteen"):
        list(each_done(_square, [1, 13, 2], processes))


def _end(_: int) -> None:
    os._exit(3)


def test_a_process_that_ends_early_is_an_error_that_says_what_to_do():
    with pytest.raises(SettingError, match="processes=1"):
        list(each_done(_end, [1, 2], 2))


def test_one_process_is_the_callers_own_and_several_are_not():
    assert {place for _, place in each_done(_where, [0, 1], 1)} == {os.getpid()}
    assert os.getpid() not in {place for _, place in each_done(_where, [0, 1], 2)}


def test_a_number_of_processes_below_one_is_refused():
    with pytest.raises(SettingError, match="1 or more"):
        list(each_done(_square, [1], 0))
