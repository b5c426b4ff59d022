"""Budgets, units, public figures and events: arithmetic and refusals."""

from math import inf

import numpy as np
import pytest

from sfumato.errors import SettingError
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.budgets import ZCDP, Budget, rounded_up
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    Repeated,
    SampledGaussianEvent,
    ZCDPEvent,
    event_from_json,
    event_to_json,
    flattened,
)
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import BudgetError, Charge, Ledger
from sfumato.privacy.mechanisms import Laplace
from sfumato.privacy.units import Entry, Public, Unit, UnitValues, Value, parse_unit

MODES = ["user", "item"]


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0.1, "0.1"),
        (0.3, "0.3"),
        (3, "3"),
        (20, "20"),
        (2.9996, "3"),
        (2.99949, "3"),
        (2.99901, "3"),
        (0.99982, "0.9999"),
        (1.0000000001, "1.001"),
        (12345.0, "1.235e+04"),
        (0.0, "0"),
        (inf, "inf"),
    ],
)
def test_what_was_given_prints_as_it_was_and_what_was_spent_rounded_up(number, printed):
    assert rounded_up(number) == printed
    assert rounded_up(np.float64(number)) == printed


def test_everything_that_says_what_was_spent_rounds_up(tmp_path):
    assert str(Budget(0.12341, 1.234e-6)) == "epsilon 0.1235, delta 1.24e-06"
    assert str(ZCDP(0.0123412)) == "rho 0.01235"
    said = str(
        Guarantee(
            0.12341, 1.0004e-6, "unit", "neighbours", ("mean",), "method", True, "a note", True, False,
            assumptions=(), rho=0.0123412, ledger="ledger", fits=2, total_epsilon=0.98761,
        )
    )  # fmt: skip
    for amount in (
        "rho 0.01235",
        "epsilon 0.1235",
        "delta 1.01e-06",
        "epsilon 0.9877 at delta 1.01e-06",
    ):
        assert amount in " ".join(said.split())
    ledger = Ledger(Value(), Budget(0.2), tmp_path / "ledger")
    charge = Charge("one", Laplace(1 / 0.12341))
    with ledger.reserve([charge], Entropy(0)) as reservation:
        reservation.ask(lambda draw: draw.release(Clipped(np.zeros(1, np.int64), 1.0, 1.0)))
    with (
        pytest.raises(
            BudgetError, match=r"spent epsilon 0\.1235, and with this one it would be 0\.2469 "
        ),
        ledger.reserve([charge], Entropy(0)),
    ):
        pass


def test_budgets_add_and_split():
    whole = Budget(1.0, 1e-6)
    assert whole + Budget(0.5) == Budget(1.5, 1e-6)
    assert 0.5 * whole == whole * 0.5 == Budget(0.5, 5e-7)
    small, large = whole.split(1, 3)
    assert (small.epsilon, large.delta) == (0.25, 7.5e-7)
    assert small + large == whole
    assert ZCDP(0.2) + ZCDP(0.1) * 2 == ZCDP(0.4)
    assert [part.rho for part in ZCDP(1.0).split(1, 1)] == [0.5, 0.5]
    assert 2 * ZCDP(0.1) == ZCDP(0.2)


def test_budgets_in_words():
    assert str(Budget(1.0)) == "epsilon 1"
    assert str(Budget(1.0, 1e-6)) == "epsilon 1, delta 1e-06"
    assert str(ZCDP(0.5)) == "rho 0.5"
    assert Budget(1.0).pure
    assert not Budget(1.0, 1e-6).pure


@pytest.mark.parametrize("epsilon", [0, -1, float("inf"), float("nan")])
def test_bad_epsilon(epsilon):
    with pytest.raises(SettingError, match="epsilon"):
        Budget(epsilon)
    with pytest.raises(SettingError, match="rho"):
        ZCDP(epsilon)


@pytest.mark.parametrize("delta", [-1e-9, 1, 2, float("nan")])
def test_bad_delta(delta):
    with pytest.raises(SettingError, match="delta"):
        Budget(1.0, delta)


@pytest.mark.parametrize("shares", [(), (1, 0), (1, -1), (float("nan"),), (float("inf"), 1)])
def test_bad_shares(shares):
    with pytest.raises(SettingError, match="shares"):
        Budget(1.0).split(*shares)


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1, 10])
def test_the_papers_zcdp_conversion_inverts(epsilon):
    rho = ZCDP.within(Budget(epsilon, 1e-6))
    assert rho.epsilon(1e-6) == pytest.approx(epsilon, rel=1e-12)
    assert epsilon_of(ZCDPEvent(rho.rho), 1e-6) < epsilon
    with pytest.raises(SettingError, match="name a delta"):
        ZCDP.within(Budget(epsilon))
    with pytest.raises(SettingError, match="delta"):
        rho.epsilon(0.0)


def test_units_from_names():
    assert parse_unit("value", MODES) == Value()
    assert parse_unit("entry", MODES) == Entry()
    assert parse_unit("user", MODES) == Unit("user")
    assert parse_unit("user", MODES, 5) == Unit("user", 5)
    assert parse_unit("values:user", MODES, 5) == UnitValues("user", 5)
    for unit in (Value(), Entry(), Unit("item", 2), UnitValues("item", 2)):
        assert parse_unit(unit, MODES) == unit
    assert parse_unit(Unit("item", 2), MODES, 2) == Unit("item", 2)


@pytest.mark.parametrize(
    ("unit", "cap", "message"),
    [
        ("day", None, "not a mode"),
        ("", None, "not a mode"),
        ("values:day", 3, "not a mode"),
        ("values:user", None, "needs a cap"),
        ("values:user", 0, "max_entries"),
        ("user", 0, "max_entries"),
        ("user", -3, "max_entries"),
        ("user", 1.5, "max_entries"),
        ("user", True, "max_entries"),
        ("user", float("nan"), "max_entries"),
        ("value", 3, "does not go with"),
        ("entry", 3, "does not go with"),
        (Unit("user"), 3, "does not go with"),
        (UnitValues("user", 4), 3, "does not go with"),
        (7, None, "one of the unit types"),
    ],
)
def test_bad_units(unit, cap, message):
    with pytest.raises(SettingError, match=message):
        parse_unit(unit, MODES, cap)


def test_what_units_say_of_themselves():
    units = [Value(), UnitValues("user", 3), Entry(), Unit("user")]
    assert [unit.hides_presence for unit in units] == [False, False, True, True]
    assert [unit.replaces for unit in units] == [True, True, False, False]
    assert [unit.mode for unit in units] == [None, "user", None, "user"]
    assert len({unit.key for unit in units}) == 4
    assert all(str(unit) and unit.neighbours for unit in units)


@pytest.mark.parametrize(
    "figures", [{"entries": 0}, {"entries": 1.5}, {"entries": float("nan")}, {"spread": 0}]
)
def test_bad_public_figures(figures):
    with pytest.raises(SettingError, match=next(iter(figures))):
        Public(**figures)


def test_public_figures():
    assert Public().entries is None
    assert Public(entries=10, labels={"item": ["a"]}, spread=0.5).spread == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianEvent(0.0),
        lambda: GaussianEvent(float("nan")),
        lambda: LaplaceEvent(-1.0),
        lambda: PureEvent(-0.1),
        lambda: ApproximateEvent(1.0, 1.0),
        lambda: ZCDPEvent(float("inf")),
        lambda: SampledGaussianEvent(1.0, 0.0, False),
        lambda: SampledGaussianEvent(1.0, 0.5, "no"),
        lambda: Repeated(PureEvent(1.0), -1),
        lambda: Repeated(PureEvent(1.0), 1.5),
    ],
)
def test_impossible_events(make):
    with pytest.raises(SettingError, match="such an event"):
        make()


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"kind": "Magic"},
        {"kind": "PureEvent"},
        {"kind": "PureEvent", "epsilon": "1"},
        {"kind": "PureEvent", "epsilon": -1},
        {"kind": "PureEvent", "epsilon": 1, "extra": 2},
        {"kind": "Repeated", "event": {"kind": "PureEvent", "epsilon": 1}, "times": -2},
        {"kind": "Composed", "events": "all"},
    ],
)
def test_damaged_records_of_events(record):
    with pytest.raises(SettingError):
        event_from_json(record)


def test_flattening_multiplies():
    event = Repeated(Composed((PureEvent(1.0), Repeated(GaussianEvent(1.0), 3))), 2)
    assert list(flattened(event)) == [(PureEvent(1.0), 2), (GaussianEvent(1.0), 6)]
    assert list(flattened(Repeated(PureEvent(1.0), 0))) == []
    assert event_from_json(event_to_json(event)) == event


def test_events_of_numpy_numbers_are_equal_to_those_of_python():
    assert GaussianEvent(np.float64(2.0)) == GaussianEvent(2.0)
    assert hash(Repeated(PureEvent(1.0), np.int64(3))) == hash(Repeated(PureEvent(1.0), 3))


@pytest.mark.parametrize("labels", ["ann", b"ann", 7, None, np.array(7), {"ann": 1}], ids=repr)
def test_public_labels_are_lists(labels):
    with pytest.raises(SettingError, match="public labels of user must be a list of labels, or True"):
        Public(labels={"user": labels})


def test_public_labels_may_be_any_sequence():
    for labels in (["a", "b"], ("a", "b"), range(2), np.arange(2), True):
        assert Public(labels={"user": labels}).labels_of("user") is labels
