"""Values from JSON, held against types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from sfumato.typed import finite_number, fits, made_of, whole_number

EXAMPLES = [
    (int, [0, -3, 2.0], [2.5, True, "2", None, [], float("nan"), float("inf")]),
    (float, [0, 2.5, float("nan")], [True, "2.5", None, {}]),
    (bool, [True, False], [0, 1, "true", None]),
    (str, ["", "word"], [1, None, ["word"]]),
    (int | None, [3, None], ["3", False]),
    (Literal["a", 1], ["a", 1], [True, "b", 1.0, None]),
    (tuple[str, ...], [[], ["a", "b"]], ["ab", [1], None, {"a": "b"}]),
    (tuple[float, float], [[1, 2.0]], [[1], [1, 2, 3], ["1", "2"]]),
    (Sequence[int], [[1, 2]], [["a"], 3]),
    (Mapping[str, float], [{}, {"a": 1}], [{"a": "b"}, [], 1]),
    (float | Mapping[str, float] | Literal["learn"], [1, {"a": 2}, "learn"], ["lean", {"a": None}]),
    (Any, [None, [], object()], []),
]


@pytest.mark.parametrize(("hint", "good", "bad"), EXAMPLES, ids=[str(each[0]) for each in EXAMPLES])
def test_types(hint, good, bad):
    assert all(fits(value, hint) for value in good)
    assert not any(fits(value, hint) for value in bad)


@dataclass(frozen=True)
class Record:
    kind: ClassVar[str] = "record"
    count: int
    words: tuple[str, ...] = ()


def test_a_record_is_made_of_what_fits():
    assert made_of(Record, {"count": 3, "words": ["a"]}, "a record") == Record(3, ("a",))
    for data, message in (
        ({"count": "3"}, "count of a record cannot be '3'"),
        ({"count": 3, "more": 1}, "a field 'more' that this version does not know"),
        ({"count": 3, "kind": "x"}, "does not know"),
        ({}, "missing"),
        ([3], "has no fields"),
    ):
        with pytest.raises(ValueError, match=message):
            made_of(Record, data, "a record")


def test_numbers():
    assert whole_number(3, "it", least=3) == 3
    assert finite_number(3, "it") == 3.0
    for wrong in (2, 3.0, True, "3", None):
        with pytest.raises(ValueError, match="it must be a whole number from 3 on"):
            whole_number(wrong, "it", least=3)
    for wrong in (float("inf"), float("nan"), False, "3", [3]):
        with pytest.raises(ValueError, match="it must be a finite number"):
            finite_number(wrong, "it")
