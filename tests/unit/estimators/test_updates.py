"""``partial_fit`` and ``sfumato update``: a private model goes on with the entries of new periods."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sfumato as sf
from sfumato.cli import app
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import PrivacyWarning, SettingError
from sfumato.estimators.updating import _last
from sfumato.fit.update import Last, left_of
from sfumato.models.multilinear import CPModel
from sfumato.privacy.account import read_ledger
from sfumato.privacy.accounting import deltas_of, epsilon_of
from sfumato.privacy.events import Composed

USERS, ITEMS = 60, 40
_rng = np.random.default_rng(5)
USER_BIAS, ITEM_BIAS = _rng.normal(size=USERS) * 0.5, _rng.normal(size=ITEMS) * 0.5


def drawn(entries: int, seed: int) -> SparseTensor:
    rng = np.random.default_rng(seed)
    user, item = np.divmod(rng.choice(USERS * ITEMS, entries, replace=False), ITEMS)
    values = 3 + USER_BIAS[user] + ITEM_BIAS[item] + 0.3 * rng.normal(size=entries)
    modes = (Mode("user", USERS), Mode("item", ITEMS))
    return SparseTensor(np.array([user, item], np.int32), np.clip(values, 1, 5), modes, (1.0, 5.0))


LISTED = sf.Public(labels={"user": range(USERS), "item": range(ITEMS)})


def asked(folder: Path, unit: str = "entry", **more: Any) -> sf.Privacy:
    given = {"epsilon": 4.0, "delta": 1e-6, "public": LISTED, "seed": 3, "period": "0", **more}
    return sf.Privacy(unit=unit, ledger=folder / "ledger", **given)


def fitted(folder: Path, unit: str = "entry", **more: Any) -> sf.CP:
    return sf.CP(privacy=asked(folder, unit, **more)).partial_fit(drawn(1500, 0))


# -- what comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "more"),
    [("entry", {}), ("user", {}), ("entry", {"local": "user"}), ("value", {"method": "bias"})],
)
def test_updates_gain_and_are_accounted(tmp_path: Path, unit: str, more: dict[str, Any]) -> None:
    model, test = fitted(tmp_path, unit, **more), drawn(2000, 99)
    before = model.rmse(test)
    for number in (1, 2):
        privacy = replace(asked(tmp_path, unit, **more), seed=number)
        model.partial_fit(drawn(1500, number), period=str(number), privacy=privacy)
    assert model.rmse(test) < before
    guarantee, account = model.guarantee_, read_ledger(tmp_path / "ledger")
    assert guarantee is not None
    assert guarantee.period == "2"
    assert guarantee.seeded
    assert [period.label for period in model.periods_] == ["0", "1", "2"]
    assert "proofs/updates.md" in guarantee.proof
    one = epsilon_of(Composed(tuple(c.event for c in account.charges if c.period == "2")), 1e-6)
    all_of_them = epsilon_of(Composed(tuple(account.events)), 1e-6)
    assert model.periods_[-1].epsilon == pytest.approx(one)
    assert guarantee.epsilon == pytest.approx(all_of_them if unit == "user" else one)
    assert account.epsilon(1e-6) == pytest.approx(all_of_them if unit == "user" else one)
    assert all_of_them > 1.2 * one


def test_the_total_is_in_the_guarantee(tmp_path: Path) -> None:
    for unit in ("entry", "user"):
        folder = tmp_path / unit
        folder.mkdir()
        model = fitted(folder, unit, seed=None)
        model.partial_fit(drawn(500, 1), period="1")
        guarantee = model.guarantee_
        assert guarantee is not None
        assert guarantee.total_epsilon is not None
        if unit == "entry":
            assert guarantee.total_epsilon <= 4
            assert "of 2 periods" in str(guarantee)
            assert any("one period alone" in line for line in guarantee.assumptions)
        else:
            assert guarantee.total_epsilon > 1.2 * model.periods_[-1].epsilon
            assert guarantee.epsilon == guarantee.total_epsilon
            assert guarantee.apart is None


def test_noise_of_an_update_is_what_was_charged(tmp_path: Path) -> None:
    """The mean of 500 values, moved by an update under Laplace noise of scale 4 / (epsilon n).

    Of the two periods' means, with like noise, each counts by a half.

    200 draws; the deviation of a Laplace sample has a relative error of 7.9%, so that 25% is passed by
    chance once in 600 times, for these seeds never; noise a third smaller is 33% off.
    """
    told = {"delta": 0.0, "method": "constant", "epsilon": 0.5}
    model = sf.CP(privacy=asked(tmp_path, "value", **told)).partial_fit(drawn(500, 0))
    start, new, means = dict(vars(model)), drawn(500, 1), []
    for number in range(200):
        vars(model).update(start)
        privacy = asked(tmp_path, "value", **{**told, "seed": number + 10})
        privacy = replace(privacy, ledger=_copied(tmp_path, "one"))
        model.partial_fit(new, period="1", privacy=privacy)
        means.append(model.model_.mean)
    scale = 4 / (0.5 * 500)
    assert np.std(means) == pytest.approx(sqrt(2) * scale / 2, rel=0.25)


def _copied(folder: Path, name: str) -> Path:
    """The ledger as it was after the first fit, so that it does not grow."""
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "ledger").write_bytes((folder / "ledger").read_bytes())
    return folder / name / "ledger"


def test_folders_hold_the_history_and_older_ones_load(tmp_path: Path) -> None:
    model = fitted(tmp_path, "user")
    model.partial_fit(drawn(500, 1), period="1", privacy=replace(asked(tmp_path, "user"), seed=8))
    folder = model.save(tmp_path / "model", force=True)
    again, test = sf.load(folder), drawn(300, 9)
    assert again.periods_ == model.periods_
    assert np.allclose(again.predict(test), model.predict(test))
    again.partial_fit(drawn(500, 2), period="2", privacy=replace(asked(tmp_path, "user"), seed=9))
    assert [period.label for period in again.periods_] == ["0", "1", "2"]
    model.periods_ = ()  # as an earlier version wrote it
    assert sf.load(model.save(tmp_path / "older", force=True)).periods_ == ()


def test_tucker_models_are_updated(tmp_path: Path) -> None:
    model = sf.Tucker(2, privacy=asked(tmp_path, method="bias")).partial_fit(drawn(1500, 0))
    before = model.model_.ranks
    model.partial_fit(drawn(1500, 1), period="1")
    assert model.model_.ranks == tuple(2 * rank for rank in before)
    assert np.isfinite(model.predict(drawn(50, 2))).all()


# -- labels that are new --------------------------------------------------------------------------


def _table(labels: dict[str, list[str]], entries: int, seed: int) -> SparseTensor:
    rng = np.random.default_rng(seed)
    modes = tuple(Mode(name, len(these), np.array(these, object)) for name, these in labels.items())
    cells = np.array([rng.integers(0, mode.size, entries) for mode in modes], np.int32)
    return SparseTensor(cells, rng.uniform(1, 5, entries), modes, (1.0, 5.0))


def test_new_labels_are_listed_and_others_left_out(tmp_path: Path) -> None:
    users, items = [f"u{n}" for n in range(20)], ["a", "b", "c"]
    first = _table({"user": users, "item": items}, 400, 0)
    privacy = asked(tmp_path, public=sf.Public(labels={"user": users, "item": items}))
    model = sf.CP(privacy=privacy).partial_fit(first)
    new = _table({"user": users, "item": ["c", "d", "e"]}, 400, 1)
    public = sf.Public(labels={"user": users, "item": ["d"]})
    model.partial_fit(new, period="1", privacy=replace(privacy, public=public))
    assert list(model.modes_[1].labels) == ["a", "b", "c", "d"]
    assert model.n_entries_ == int((new.coordinates[1] < 2).sum())  # e is nobody's to see
    with pytest.raises(SettingError, match="labels"):
        model.partial_fit(
            new, period="2", privacy=replace(privacy, public=sf.Public(labels={"x": ["y"]}))
        )


def test_new_days_alone_make_sure_that_periods_are_apart(tmp_path: Path) -> None:
    users, items = [f"u{n}" for n in range(9)], ["a", "b"]
    labels = {"user": users, "item": items, "day": ["d1", "d2"]}
    privacy = asked(tmp_path, public=sf.Public(labels=dict(labels)))
    model = sf.CP(privacy=privacy).partial_fit(_table(labels, 300, 0))
    later = _table({**labels, "day": ["d2", "d3", "d4"]}, 300, 1)
    public = sf.Public(labels={**labels, "day": ["d3", "d4"]})
    with pytest.raises(SettingError, match="no new levels"):
        model.partial_fit(later, period="1", by="day")
    model.partial_fit(later, period="1", by="day", privacy=replace(privacy, public=public))
    assert model.n_entries_ == int((later.coordinates[2] > 0).sum())
    assert model.periods_[-1].by == "day"
    assert model.modes_[2].size == 4


# -- neighbours -----------------------------------------------------------------------------------


def _released(local: int | None, rows: float) -> Last:
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=(USERS, 2)) * rows, rng.normal(size=(ITEMS, 2))]
    model = CPModel.from_factors(factors, mean=3.2, biases=[USER_BIAS * rows, ITEM_BIAS])
    return Last(model, drawn(10, 0).modes, (1.0, 5.0), local, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("local", [None, 0])
def test_neighbouring_streams_differ_where_their_entry_is(local: int | None) -> None:
    """What is fitted of a period changes by one entry with the period's, and by none with another's."""
    last, whole = _released(local, 1.0), drawn(200, 3)
    rest = left_of(last, whole, 1)
    assert rest.bounds == (1.0 - 3.2, 5.0 - 3.2)
    for gone in range(0, 200, 7):
        kept = np.arange(200) != gone
        one_less = left_of(last, whole.take(kept), 1)
        assert (one_less.values == rest.values[kept]).all()
        assert (one_less.coordinates == rest.coordinates[:, kept]).all()


def test_own_rows_do_not_touch_what_is_asked() -> None:
    """They know entries of other periods."""
    whole = drawn(200, 3)
    with_rows, without = (left_of(_released(0, rows), whole, 1) for rows in (1.0, 0.0))
    assert (with_rows.values == without.values).all()


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"unit": "user"}, "cannot add up"),
        ({"seed": None}, "came from a seed"),
        ({"analysis": "paper", "method": "output"}, "only claimed"),
        ({"local": "user"}, "cannot change"),
        ({"ledger": "another"}, "does not hold the charges"),
        ({"period": None}, "name of its period"),
    ],
)
def test_other_promises_are_refused_before_anything_is_charged(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    model = fitted(tmp_path)
    if "ledger" in changed:
        changed = {"ledger": tmp_path / "another"}
    before, state = (tmp_path / "ledger").read_bytes(), dict(vars(model))
    other = replace(asked(tmp_path), **{"period": "1", **changed})
    with pytest.raises(SettingError, match=message):
        model.partial_fit(drawn(100, 1), privacy=other)
    assert (tmp_path / "ledger").read_bytes() == before
    assert vars(model) == state
    assert not (tmp_path / "another").exists()


def test_a_gpu_that_is_not_there_is_not_passed_over(tmp_path: Path) -> None:
    model = fitted(tmp_path, method="alternating")
    model.device, before = "gpu", (tmp_path / "ledger").read_bytes()
    with pytest.raises(SettingError, match="device"):
        model.partial_fit(drawn(100, 1), period="1")
    assert (tmp_path / "ledger").read_bytes() == before
    model.device = "auto"
    model.partial_fit(drawn(100, 1), period="1")


def test_that_intervals_are_lost_is_said(tmp_path: Path) -> None:
    model = fitted(tmp_path, intervals=True)
    with pytest.warns(PrivacyWarning, match="updated model will have none"):
        model.partial_fit(drawn(100, 1), privacy=replace(asked(tmp_path), period="1"))
    assert model.errors_ is None


def test_other_data_are_refused(tmp_path: Path) -> None:
    model, new = fitted(tmp_path), drawn(100, 1)
    with pytest.raises(SettingError, match="bounds"):
        model.partial_fit(new.with_values(new.values, (0.0, 5.0)), period="1")
    renamed = SparseTensor(new.coordinates, new.values, (Mode("who", USERS), Mode("item", ITEMS)))
    with pytest.raises(SettingError, match="modes"):
        model.partial_fit(renamed, period="1")
    with pytest.raises(SettingError, match="there is no mode"):
        model.partial_fit(new, period="1", by="day")
    with pytest.raises(SettingError, match="not private"):
        sf.CP(2, duplicates="mean").fit(new).partial_fit(new, privacy=asked(tmp_path))
    with pytest.raises(SettingError, match="ledger"):
        sf.Privacy(epsilon=1, unit="entry", period="1")
    assert _last(model).bounds == (1.0, 5.0)


def test_what_is_broken_off_stays_charged_and_leaves_the_model(tmp_path: Path) -> None:
    model = fitted(tmp_path)
    before, state = read_ledger(tmp_path / "ledger").charges, model.model_

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    model.progress = stop
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(drawn(500, 1), period="1")
    charged = read_ledger(tmp_path / "ledger").charges
    assert len(charged) == len(before) + 1
    assert charged[-1].period == "1"
    assert model.model_ is state
    assert len(model.periods_) == 1


# -- from the command line ------------------------------------------------------------------------


def _write(path: str, seed: int, items: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [f"u{rng.integers(20)},i{rng.integers(items)},{rng.integers(1, 6)}" for _ in range(300)]
    Path(path).write_text("\n".join(["user,item,rating", *rows]), "utf-8")


def test_update_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write("march.csv", 0, 5)
    _write("april.csv", 1, 8)
    Path("items.txt").write_text("\n".join(f"i{n}" for n in range(8)), "utf-8")
    Path("users.txt").write_text("\n".join(f"u{n}" for n in range(20)), "utf-8")
    columns = ["--modes", "user", "item", "--value", "rating"]
    budget = ["--epsilon", "1", "--delta", "1e-6", "--unit", "entry", "--ledger", "spent"]
    labels = ["--public-labels", "user=users.txt", "item=items.txt", "--quiet"]
    run = CliRunner().invoke
    first = ["complete", "march.csv", *columns, "--bounds", "1", "5", *budget, *labels, "--out", "model"]
    assert run(app, [*first, "--period", "2026-03"]).exit_code == 0
    update = ["update", "model", "april.csv", *columns, *budget, *labels]
    done = run(app, [*update, "--period", "2026-04", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [period["label"] for period in told["periods"]] == ["2026-03", "2026-04"]
    assert told["guarantee"]["total_epsilon"] <= 1.0
    assert told["guarantee"]["apart"] == 2
    assert "2026-04" in run(app, ["explain", "model"]).stdout
    spent = Path("spent").read_bytes()
    for wrong, message in (
        ([*update], "--period"),
        ([*update, "--period", "2026-05", "--bounds", "0", "5"], "bounds"),
        ([*update, "--period", "2026-05", "--by", "day"], "--by day"),
    ):
        refused = run(app, wrong)
        assert refused.exit_code == 1
        assert message in refused.output, refused.output
    assert Path("spent").read_bytes() == spent


# -- what is promised of several periods ----------------------------------------------------------


def _updated(folder: Path, unit: str, first: dict[str, Any], second: dict[str, Any]) -> sf.CP:
    model = fitted(folder, unit, seed=None, **first)
    privacy = asked(folder, unit, seed=None, **second)
    return model.partial_fit(drawn(500, 1), period="1", privacy=privacy)


def test_a_promise_is_about_all_that_the_release_holds(tmp_path: Path) -> None:
    """A cheap last period does not make the first one private, nor does one without a delta."""
    for unit in ("entry", "user"):
        folder = tmp_path / unit
        folder.mkdir()
        dear, cheap = {"epsilon": 8.0}, {"epsilon": 0.1, "delta": 0.0, "method": "constant"}
        model = _updated(folder, unit, dear, cheap)
        guarantee, events = model.guarantee_, read_ledger(folder / "ledger").charges
        assert guarantee is not None
        assert guarantee.delta == 1e-6
        of_first = epsilon_of(Composed(tuple(c.event for c in events if c.period == "0")), 1e-6)
        of_both = epsilon_of(Composed(tuple(c.event for c in events)), 1e-6)
        assert guarantee.epsilon == pytest.approx(of_first if unit == "entry" else of_both)
        assert guarantee.periods == 2
        assert "the last of 2" in str(guarantee)
        assert [period.epsilon for period in model.periods_] == pytest.approx([of_first, 0.1], rel=1e-3)
        assert guarantee.odds().factor > np.exp(of_first) > 1000
        model.release(folder / "release")
        record = (folder / "release" / "deployment.yaml").read_text("utf-8")
        assert "Many releases" in record
        assert "Pure DP" not in record


def test_the_curve_of_several_periods_is_nowhere_below_any(tmp_path: Path) -> None:
    model = _updated(tmp_path, "entry", {"epsilon": 1.0, "delta": 0.0}, {"epsilon": 1.0})
    guarantee, account = model.guarantee_, read_ledger(tmp_path / "ledger")
    assert guarantee is not None
    for event in account.of_one_unit():
        exact = deltas_of(event, [epsilon for epsilon, _ in guarantee.curve])
        assert all(d >= e for (_, d), e in zip(guarantee.curve, exact, strict=True))


def test_fits_of_others_in_the_ledger_are_not_in_the_promise_but_in_its_total(tmp_path: Path) -> None:
    sf.CP(privacy=asked(tmp_path, "user", seed=None, period="other")).fit(drawn(300, 8))
    guarantee = _updated(tmp_path, "user", {"epsilon": 1.0}, {"epsilon": 1.0}).guarantee_
    assert guarantee is not None
    assert guarantee.total_epsilon is not None
    assert guarantee.epsilon < 2 < 4 < guarantee.total_epsilon


# -- labels and ledgers that are not what they seem -----------------------------------------------


@pytest.mark.parametrize("declared", [True, {"item": range(ITEMS), ...: True}])
def test_who_is_new_is_never_read_off_the_data(tmp_path: Path, declared: Any) -> None:
    """Neither are owners whose rows are released; labels of others are, where they are declared."""
    model = fitted(tmp_path, "user", local=None)
    users = [*map(str, range(USERS)), "777"]
    new = _table({"user": users, "item": [*map(str, range(ITEMS))]}, 400, 1)
    public = sf.Public(labels=declared)
    told = replace(asked(tmp_path, "user", local=None, public=public), period="1")
    model.partial_fit(new, privacy=told)
    assert model.modes_[0].size == USERS
    assert model.n_entries_ == int((new.coordinates[0] < USERS).sum())


def test_labels_that_were_read_off_the_data_are_not_called_given(tmp_path: Path) -> None:
    labels = {"user": [f"u{n}" for n in range(9)], "item": ["a", "b"]}
    model = sf.CP(privacy=asked(tmp_path, public=sf.Public(labels=labels)))
    model.partial_fit(_table(labels, 300, 0))
    new = _table({**labels, "item": ["b", "c"]}, 300, 1)
    privacy = asked(tmp_path, public=sf.Public(labels=True))
    assumptions = model.partial_fit(new, period="1", privacy=privacy).guarantee_.assumptions
    assert any("though they were read off the data" in line for line in assumptions)


def test_another_ledger_of_the_same_name_is_refused(tmp_path: Path) -> None:
    model = fitted(tmp_path, seed=None)
    (tmp_path / "other").mkdir()
    sf.CP(privacy=asked(tmp_path / "other", epsilon=0.01, seed=None)).fit(drawn(100, 4))
    whole = (tmp_path / "ledger").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "ledger").write_text("".join(whole[:-1]), "utf-8")
    for place in ("other", "short"):
        before = (tmp_path / place / "ledger").read_bytes()
        privacy = asked(tmp_path / place, seed=None)
        with pytest.raises(SettingError, match="does not hold the charges"):
            model.partial_fit(drawn(100, 1), period="1", privacy=privacy)
        assert (tmp_path / place / "ledger").read_bytes() == before


def test_by_refuses_entries_that_another_period_may_have(tmp_path: Path) -> None:
    labels = {"user": [f"u{n}" for n in range(9)], "item": ["a", "b"], "day": ["d1", "d2"]}
    privacy = asked(tmp_path, public=sf.Public(labels=dict(labels)), seed=None)
    model = sf.CP(privacy=privacy).partial_fit(_table(labels, 300, 0))
    first = model.save(tmp_path / "first")
    later = _table({**labels, "day": ["d3", "d4"]}, 300, 1)
    grown = replace(privacy, public=sf.Public(labels={**labels, "day": ["d3", "d4"]}))
    model.partial_fit(later, period="1", by="day", privacy=grown)
    again = sf.load(first)
    with pytest.raises(SettingError, match="charged for 1"):
        again.partial_fit(later, period="2", by="day", privacy=grown)
    again.partial_fit(later, period="1", by="day", privacy=grown)  # the same part once more adds up
    assert again.guarantee_.epsilon < again.guarantee_.total_epsilon


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x1b[2J", "a\u2028b"])
def test_periods_have_names_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="name in one line"):
        asked(tmp_path, period=name)


def test_names_of_periods_that_look_alike_are_one(tmp_path: Path) -> None:
    assert (
        asked(tmp_path, period=" m\u0061\u0308rz ").period == asked(tmp_path, period="m\u00e4rz").period
    )
