"""Checks of settings: what they let through, and that errors name setting, wish and value."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from sfumato import checks
from sfumato.errors import DataError, SettingError

NO_NUMBERS = (
    None,
    "1",
    True,
    np.bool_(True),
    float("nan"),
    float("inf"),
    1j,
    [1],
    np.array([1]),
    b"1",
    {},
)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "good", [1, 2.5, np.float32(0.5), np.int8(3), np.uint16(7), Fraction(1, 3), 1e60]
)
def test_numbers_may_be_pythons_or_numpys(good):
    checks.check_positive(ridge=good)
    checks.check_number(0, ridge=good)


@pytest.mark.parametrize("bad", [*NO_NUMBERS, 10**30, Unprintable()])
def test_what_is_no_number_is_named(bad):
    for check in (checks.check_positive, checks.check_number, checks.check_share):
        with pytest.raises(SettingError, match=r"^ridge must be a number .*, got "):
            check(ridge=bad)


@pytest.mark.parametrize("bad", [*NO_NUMBERS, 0, -1, 1.5, 2.0, np.float64(2), 2**60])
def test_counts_are_whole(bad):
    with pytest.raises(SettingError, match=r"^sweeps must be a whole number .*, got "):
        checks.check_count(sweeps=bad)


def test_limits_stand_in_the_error():
    with pytest.raises(SettingError, match=r"step must be a number between 1e-60 and 1e\+60, got 1e-61"):
        checks.check_positive(step=1e-61)
    with pytest.raises(
        SettingError, match="passes must be a whole number of at most 100,000, got 100001"
    ):
        checks.check_count(1, checks.MOST_ROUNDS, passes=100_001)
    with pytest.raises(SettingError, match="64 bits at most or written as a float"):
        checks.check_positive(ridge=10**30)


def test_seeds_flags_and_choices():
    checks.check_seed(seed=np.uint64(2**64 - 1))
    checks.check_flag(mean=np.bool_(False))
    checks.check_choice(("a", "b"), law="b")
    for bad in (-1, 2**128, 1.0, True, "0"):
        with pytest.raises(SettingError, match="seed must be a whole number from 0 on"):
            checks.check_seed(seed=bad)
    for bad in (0, 1, "yes", None, np.array([True])):
        with pytest.raises(SettingError, match="mean must be True or False"):
            checks.check_flag(mean=bad)
    for bad in ("c", None, np.array(["a", "b"]), ["a"]):
        with pytest.raises(SettingError, match="law must be one of a, b, got"):
            checks.check_choice(("a", "b"), law=bad)


def test_lists_pairs_and_paths():
    assert checks.as_pair("bounds", np.array([1, 5])) == (1.0, 5.0)
    assert checks.as_names("modes", ("user", "item")) == ["user", "item"]
    assert checks.as_path("file", "a/b.csv") == Path("a/b.csv")
    for bad in (5, "15", (1,), (1, None), ((1, 2), 3), {1: 2, 3: 4}, np.eye(2), np.array(3)):
        with pytest.raises(SettingError, match="bounds must be two numbers, got"):
            checks.as_pair("bounds", bad)
    for bad in ("user", 3, [1], None):
        with pytest.raises(SettingError, match="modes must be a list of names"):
            checks.as_names("modes", bad)
    for bad in (5, None, b"x", "a\x00b", "x" * 300):
        with pytest.raises(SettingError, match="file must be "):
            checks.as_path("file", bad)
    with pytest.raises(DataError, match="y must be numbers, got 'abc'"):
        checks.as_numbers("y", "abc")


@pytest.mark.parametrize("bad", ["abc", int, "float16", {"a": 1}, [1], object()])
def test_a_precision_is_single_or_double(bad):
    assert checks.as_precision("f4") == np.float32
    with pytest.raises(SettingError, match="dtype must be float32 or float64, got"):
        checks.as_precision(bad)


def test_whatever_is_shown_is_short():
    assert checks.shown("ab") == "'ab'"
    assert len(checks.shown(list(range(1000)))) == 80
    assert checks.shown(Unprintable()) == "a value of type Unprintable"
    assert checks.shown(10**5000) == "a value of type int"


# -- where they are used --------------------------------------------------------------------------

TENSOR = sf.prepare.clip(sf.synthetic.cp((6, 5, 4), 2, entries=60, seed=0).tensor, (-3.0, 3.0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "abc"}, "dtype must be float32 or float64"),
        ({"rank": True}, "rank must be a whole number"),
        ({"seed": "0"}, "seed must be"),
        ({"threads": 0.5}, "threads must be"),
        ({"starts": None}, "starts must be"),
        ({"mean": "no"}, "mean must be True or False"),
        ({"progress": 3}, "progress must be a function"),
        ({"privacy": "high"}, "privacy must be a Privacy"),
        ({"solver": sf.ALS}, "solver must be a solver by name or as a record"),
        ({"solver": sf.ALS(sweeps="3")}, "sweeps must be a whole number"),
        ({"solver": sf.SGD(prior_mean={"mode0": np.inf})}, "prior_mean of mode0 must be"),
        ({"duplicates": np.array(["mean"])}, "duplicates must be one of"),
    ],
)
def test_an_estimator_stores_and_fit_and_plan_check(settings, words):
    model = sf.CP(**settings)
    assert model.get_params()[next(iter(settings))] is next(iter(settings.values()))
    with pytest.raises(SettingError, match=words):
        model.plan(TENSOR.modes)
    with pytest.raises(SettingError, match=words):
        model.fit(TENSOR)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sf.Privacy(epsilon="1", unit="value"), "epsilon must be a number above zero"),
        (lambda: sf.Privacy(epsilon=1e70, unit="value"), "epsilon must be a number between"),
        (lambda: sf.Privacy(epsilon=1, delta=None, unit="value"), "delta must be a number at least 0"),
        (lambda: sf.Privacy(epsilon=1, unit=3), "unit must be a name or one of the unit types"),
        (
            lambda: sf.Privacy(epsilon=1, unit="value", method=3),
            "method must be a name, or a private solver",
        ),
        (lambda: sf.Privacy(epsilon=1, unit="value", seed=1.5), "seed must be"),
        (lambda: sf.Privacy(epsilon=1, unit="value", public=None), "public must be a Public"),
        (lambda: sf.Privacy(epsilon=1, unit="value", ledger=4), "ledger must be the path"),
        (lambda: sf.Public(labels="user"), "labels must be True, or the labels by"),
        (lambda: sf.Public(labels={"user": 3}), "the public labels of user must be a list"),
        (lambda: sf.Public(spread=1e-70), "spread must be a number between 1e-60"),
        (lambda: sf.Public(step=1e61), "step must be a number between 1e-60"),
        (lambda: sf.Public(entries=2.0), "entries must be a whole number"),
        (lambda: sf.Sample(norm=1e-61), "norm must be a number between 1e-60"),
        (lambda: sf.TensorEntry(change=1e61), "change must be a number between 1e-60"),
        (lambda: sf.Unit(3), "mode must be text"),
        (lambda: sf.UnitValues("user", None), "max_entries must be a whole number"),
        (lambda: sf.Profile(skew=3), "skew must be two Zipf exponents"),
        (lambda: sf.Budget(None), "epsilon must be a number above zero"),
        (lambda: sf.ZCDP("1"), "rho must be a number above zero"),
    ],
)
def test_records_of_privacy_check_when_they_are_made(make, words):
    with pytest.raises(SettingError, match=words):
        make()


@pytest.mark.parametrize(
    "record",
    [
        sf.PrivateBiases(sweeps="2"),
        sf.PrivateConstant(pure=1),
        sf.PrivatePasses(ridge=1e44),  # the pull would be larger than what is pulled
        sf.PrivatePasses(init_scale=1e30),
        sf.PrivateAlternating(sweeps=10**6),
        sf.PrivateSGD(prior_mean={"mode0": 1e30}),
        sf.PrivateOutput(others="input"),
        sf.InputPerturbation(clamp=3),
        sf.PaperGradient(descent=sf.ALS()),
    ],
)
def test_a_private_fit_that_must_fail_charges_nothing(record, tmp_path):
    ledger = tmp_path / "ledger"
    paper = isinstance(record, sf.PaperGradient)
    privacy = sf.Privacy(
        epsilon=1,
        delta=0.0 if paper else 1e-6,
        unit="value",
        method=record,
        analysis="paper" if paper else "proven",
        ledger=ledger,
    )
    with pytest.raises(SettingError, match=" must be "):
        sf.CP(2, privacy=privacy, threads=1).fit(TENSOR)
    assert not ledger.exists()
