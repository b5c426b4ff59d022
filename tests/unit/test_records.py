"""Plain data: what is marked as such, and when two pieces of it are the same to the last bit."""

import importlib
import pkgutil
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

import sfumato
from sfumato.models.own_prior import OwnPrior, RowNoise
from sfumato.privacy.budgets import Budget
from sfumato.records import KINDS, is_record, name_of, parts_of, record, same
from sfumato.solvers.protocol import Run
from sfumato.typed import hints_of

NAN = float("nan")


def all_modules():
    """Every module of the package; scripts that a process of their own runs are left out."""
    found = pkgutil.walk_packages(sfumato.__path__, "sfumato.")
    return [each.name for each in found if not each.name.endswith(("_child", "__main__"))]


def test_every_kind_is_a_frozen_record_with_types_that_can_be_told():
    for module in all_modules():
        importlib.import_module(module)
    kinds = {name: kind for name, kind in KINDS.items() if kind.__module__.startswith("sfumato.")}
    assert len(kinds) > 100
    for name, kind in kinds.items():
        assert name == name_of(kind)
        named = issubclass(kind, tuple) and hasattr(kind, "_fields")
        assert named or (is_dataclass(kind) and kind.__dataclass_params__.frozen), name
        parts = set(kind._fields) if named else {part.name for part in fields(kind) if part.init}
        assert set(hints_of(kind)) == parts, name


def test_a_kind_is_known_by_where_it_lives():
    assert name_of(Run) == "solvers.protocol.Run"
    assert KINDS["solvers.protocol.Run"] is Run
    assert is_record(Run())
    assert not is_record(Run)
    assert not any(map(is_record, (1, "text", None, (1,), [1], {"a": 1}, np.ones(2), object())))


def test_what_is_built_on_a_record_is_none_itself():
    class Longer(Run):
        pass

    assert not is_record(Longer())


def test_parts_are_the_fields_that_a_record_is_made_of(monkeypatch):
    monkeypatch.setattr("sfumato.records.KINDS", dict(KINDS))

    @record
    @dataclass(frozen=True)
    class Both:
        given: int
        made_up: int = field(init=False, default=2)

    assert parts_of(Both(1)) == {"given": 1}
    assert parts_of(RowNoise(1, 2)) == {"levels": 1, "columns": 2}


# -- the same to the last bit ---------------------------------------------------------------------


def prior(**parts):
    noise = RowNoise(np.array([1.0, 2.0]), np.array([3.0]))
    return replace(
        OwnPrior(mode=0, precisions=np.array([1.0, 2.0]), scatter=0.5, row_noise=(None, noise)), **parts
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: True,
        lambda: 2**70,
        lambda: "text",
        lambda: -0.0,
        lambda: NAN,
        lambda: np.float32(0.1),
        lambda: np.float64("nan"),
        lambda: np.array([0.0, -0.0, np.nan, np.inf]),
        lambda: np.zeros((0, 3)),
        lambda: np.array(1.5),
        lambda: (1, [2.0, {"a": (np.arange(3),)}]),
        lambda: {"b": 1, "a": np.ones(2)},
        lambda: Budget(1.0, 1e-6),
        prior,
    ],
)
def test_what_is_made_alike_is_the_same(make):
    assert same(make(), make())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.0, -0.0),
        (1.0, 1),
        (1, True),
        (1.0, np.nextafter(1.0, 2).item()),
        (NAN, 0.0),
        (None, 0),
        ("a", "b"),
        (1.0, np.float64(1.0)),
        (np.float32(1), np.float64(1)),
        (np.float64(0.0), np.float64(-0.0)),
        (np.array([0.0]), np.array([-0.0])),
        (np.array([1.0]), np.array([1.0 + 2**-52])),
        (np.ones(2), np.ones(2, np.float32)),
        (np.ones(2, np.int64), np.ones(2, np.uint64)),
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.ones(1), np.array(1.0)),
        (np.zeros((0, 2)), np.zeros((0, 3))),
        (np.array(1.0), np.float64(1.0)),
        ((1, 2), [1, 2]),
        ((1, 2), (1, 2, 3)),
        ((1, -0.0), (1, 0.0)),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 0.0}, {"a": -0.0}),
        (Budget(1.0), Budget(1.0, 1e-9)),
        (Run(0, 1), (0, 1)),
        (prior(), prior(precisions=np.array([1.0, 2.0 + 2**-51]))),
        (prior(), prior(row_noise=(None, RowNoise(np.array([1.0, 2.0]), np.array([4.0]))))),
        (prior(), prior(row_noise=())),
    ],
)
def test_what_differs_in_a_bit_a_type_or_a_shape_is_not_the_same(first, second):
    assert not same(first, second)
    assert not same(second, first)


def test_how_an_array_lies_in_memory_does_not_matter():
    rows = np.arange(6.0).reshape(2, 3)
    assert same(rows, np.asfortranarray(rows))
    assert same(rows[:, ::-1][:, ::-1], rows)


def test_other_named_tuples_are_not_taken_for_records():
    class Pair(NamedTuple):
        levels: int
        columns: int

    assert not is_record(Pair(1, 2))
    assert not same(Pair(1, 2), RowNoise(1, 2))
