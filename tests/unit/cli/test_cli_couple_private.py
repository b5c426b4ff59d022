"""``sfumato couple --epsilon``: what is fitted, written and said, and what is refused when."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_line import run

import sfumato as sf
from sfumato.cli import couple_private
from sfumato.cli.couple_promise import CoupledMethod
from sfumato.fit import coupled as coupled_fits
from sfumato.solvers.registry import names

TWO = ["ratings.csv", "tags.csv", "--modes", "ratings=user,item", "tags=item,tag"]
VALUES = ["--value", "ratings=stars", "tags=times"]
BOUNDS = ["--bounds", "ratings=1,5", "tags=0,20"]
BUDGET = ["--epsilon", "3", "--delta", "1e-6"]
ENTRY = [*TWO, *VALUES, *BOUNDS, *BUDGET, "--unit", "entry", "--labels-are-public", "--method", "bias"]
USERS = ["--unit", "user", "--labels-are-public", "--public-units", "60"]
BESIDE = [*TWO, *VALUES, "--bounds", "ratings=1,5", "--public-relation", "tags", *BUDGET, *USERS]
SEEDED = ["--noise-seed", "1", "--force"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Ratings and follows of users, and tags of items, by the same two factors."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    users, items, tags = (rng.standard_normal((n, 2)) for n in (50, 20, 8))
    stars = np.clip(3 + users @ items.T, 1, 5)
    known = rng.random(stars.shape) < 0.5
    known[:2] = False  # two users who have rated nothing
    tables = {
        "ratings": ("user,item,stars", stars, known, "ui"),
        "held-out": ("user,item,stars", stars, ~known, "ui"),
        "tags": ("item,tag,times", np.clip(10 + 4 * items @ tags.T, 0, 20), None, "it"),
        "follows": ("user,tag,much", np.clip(5 + 2 * users @ tags.T, 0, 10), None, "ut"),
    }
    for name, (head, values, where, letters) in tables.items():
        cells = np.argwhere(np.ones(values.shape) if where is None else where)
        rows = [f"{letters[0]}{a:02},{letters[1]}{b:02},{values[a, b]:.3f}" for a, b in cells]
        (folder / f"{name}.csv").write_text("\n".join([head, *rows]) + "\n")
    (folder / "items.txt").write_text("\n".join(f"i{i:02}" for i in range(20)))
    (folder / "cells.csv").write_text("user,item\nu02,i03\nu20,i07\n")
    (folder / "cold.csv").write_text("user,item\nu00,i03\n")
    return folder


@pytest.fixture(autouse=True)
def _there(world, monkeypatch):
    monkeypatch.chdir(world)


@pytest.fixture(scope="module")
def by_entry(world, tmp_path_factory):
    """Ratings and tags, one entry protected, with a ledger and held-out cells."""
    made = tmp_path_factory.mktemp("by-entry")
    files = [world / "ratings.csv", world / "tags.csv"]
    kept = ["--ledger", made / "spent", "--ledger-limit", "4"]
    done = run("couple", *files, *ENTRY[2:], *kept, "--test", "ratings=0.2", "--out", made / "model")
    assert done.exit_code == 0, done.stderr
    return made, done


@pytest.fixture(scope="module")
def by_user(world, tmp_path_factory):
    """Everything of a user in ratings and follows protected, tags of items public."""
    made = tmp_path_factory.mktemp("by-user")
    done = run(
        *("couple", world / "ratings.csv", world / "follows.csv", world / "tags.csv"),
        *("--modes", "ratings=user,item", "follows=user,tag", "tags=item,tag"),
        *("--value", "ratings=stars", "follows=much", "tags=times", "--public-relation", "tags"),
        *("--bounds", "ratings=1,5", "follows=0,10", "--public-entries", "ratings=500"),
        *(*BUDGET, *USERS, "--quiet", "--factors", "csv", "--out", made / "model"),
    )
    assert done.exit_code == 0, done.stderr
    return made, done


def predictions(folder, cells="cells.csv"):
    done = run("predict", folder, cells, "--relation", "ratings")
    assert done.exit_code == 0, done.stderr
    return [float(line.rpartition(",")[2]) for line in done.stdout.splitlines()[1:]]


# -- what is made ---------------------------------------------------------------------------------


def test_methods_are_those_of_the_library():
    known = {"auto", *names("private coupled"), *coupled_fits._BESIDE}
    assert {method.value for method in CoupledMethod} == known


def test_an_entry_is_protected_and_all_rows_are_released(by_entry):
    made, done = by_entry
    assert sorted(path.name for path in (made / "model").iterdir()) == ["release"]
    assert "one entry, its presence included, in one of ratings and tags" in " ".join(
        done.stdout.split()
    )
    assert "ratings: user 48 x item 20" in done.stdout
    assert "not private:" not in done.stdout + done.stderr
    assert "ratings: private biases" in done.stderr  # the plan, before anything is spent
    assert f"wrote {made / 'model'}" in done.stdout
    whole, alone = (predictions(folder) for folder in (made / "model", made / "model" / "release"))
    assert whole == alone
    assert all(1 <= value <= 5 for value in whole)


def test_held_out_errors_are_for_the_holder_alone(by_entry):
    made, done = by_entry
    rows = [
        "constant, not private",
        "biases, not private",
        "ratings alone, CP, not private",
        "ratings alone, private",
        "coupled, private",
    ]
    lines = {row: line for line in done.stdout.splitlines() for row in rows if line.startswith(row)}
    assert list(lines) == rows
    assert couple_private.FOR_YOUR_EYES in done.stdout
    charges = [json.loads(line) for line in (made / "spent").read_text().splitlines()[1:]]
    assert {charge["fit"] for charge in charges} == {1}
    written = b"".join(path.read_bytes() for path in (made / "model").rglob("*") if path.is_file())
    for line in lines.values():
        assert re.search(r"\d\.\d{4}", line)[0].encode() not in written


def test_a_ledger_refuses_what_it_has_no_room_for(by_entry, tmp_path):
    made, _ = by_entry
    before, out = (made / "spent").read_bytes(), tmp_path / "again"
    done = run("couple", *ENTRY, "--ledger", made / "spent", "--out", out)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "limit" in done.stderr
    assert (made / "spent").read_bytes() == before
    assert not out.exists()
    assert "1 fit," in run("ledger", made / "spent").stdout


def test_rows_of_users_stay_with_them(by_user):
    made, done = by_user
    model = made / "model"
    assert sorted(path.name for path in model.iterdir()) == ["owner", "release"]
    assert "in ratings and follows together" in " ".join(done.stdout.split())
    assert "the relation tags is public with all its entries" in " ".join(done.stdout.split())
    assert "u20" not in (model / "release" / "model.json").read_text()
    assert sorted(path.name for path in (made / "model-factors").iterdir()) == [
        "follows-tag.csv",
        "ratings-item.csv",
    ]
    assert all(1 <= value <= 5 for value in predictions(model))
    assert len(predictions(model, "cold.csv")) == 1  # somebody who has rated nothing, but follows
    alone = run("predict", model / "release", "cells.csv", "--relation", "ratings")
    assert (alone.exit_code, "rows of user stay with their owners" in alone.stderr) == (1, True)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--reliance"], "--reliance"),
        (["--interval", "0.9"], "--interval"),
        (["--own", "cells.csv"], "own entries need a column of values"),
        (["--own", "planets=ratings.csv"], "there is no table 'planets'"),
        (["--own", "ratings.csv", "--own", "ratings=follows.csv"], "given twice"),
        (["--own", "ratings.csv", "--own-mode", "item"], "Leave out --own-mode"),
        (["--own-value", "stars"], "give --own as well"),
        (["--relation", "tags"], "has no relation 'tags'"),
    ],
)
def test_what_a_private_model_does_not_tell(by_user, flags, named):
    done = run("predict", by_user[0] / "model", "cells.csv", "--relation", "ratings", *flags)
    assert done.exit_code in (1, 2)
    assert named in " ".join(done.stderr.split())


def test_somebody_new_brings_entries_of_several_tables(by_user, tmp_path):
    """The same prediction as that of the user whose entries they are, who is in the fit."""
    made, _ = by_user
    for name, user in (("ratings", "u20"), ("follows", "u20"), ("follows", "u00")):
        head, *rows = Path(f"{name}.csv").read_text().splitlines(keepends=True)
        mine = [line.replace(user, "me", 1) for line in rows if line.startswith(user)]
        (tmp_path / f"{name}-{user}.csv").write_text("".join([head, *mine]))
    (tmp_path / "cells.csv").write_text("user,item\nme,i07\n")
    (tmp_path / "cold.csv").write_text("user,item\nme,i03\n")
    for cells, user, tables, place in (
        ("cells.csv", "u20", ("ratings", "follows"), 1),
        ("cold.csv", "u00", ("follows",), 0),
    ):
        own = [
            each for name in tables for each in ("--own", f"{name}={tmp_path / f'{name}-{user}.csv'}")
        ]
        done = run(
            "predict", made / "model" / "release", tmp_path / cells, "--relation", "ratings", *own
        )
        assert done.exit_code == 0, done.stderr
        found = float(done.stdout.splitlines()[1].rpartition(",")[2])
        assert found == pytest.approx(predictions(made / "model", cells)[place], abs=1e-6)


def test_a_release_explains_itself_and_can_be_signed(by_user, tmp_path):
    model = by_user[0] / "model"
    for folder in (model, model / "release"):
        said = " ".join(run("explain", folder).stdout.split())
        assert "all entries of one user" in said
        assert "rows of user" in said
    assert json.loads(run("explain", model, "--json").stdout)["epsilon"] <= 3
    run("sign", "--new-key", tmp_path / "key")
    assert run("sign", model / "release", "--key", tmp_path / "key").exit_code == 0
    assert run("verify", model / "release", "--key", tmp_path / "key.pub").exit_code == 0
    assert len(predictions(model)) == 2  # a signature changes no other file


def test_json_has_the_guarantee_and_no_other_private_fit(tmp_path):
    out = tmp_path / "model"
    done = run("couple", *BESIDE, *SEEDED, "--test", "ratings=held-out.csv", "--json", "--out", out)
    shown = json.loads(done.stdout)
    assert (shown["private"], shown["guarantee"]["seeded"]) == (True, True)
    assert shown["guarantee"]["epsilon"] <= 3
    assert {name: each["public"] for name, each in shown["relations"].items()} == {
        "ratings": False,
        "tags": True,
    }
    results = shown["held_out"]["ratings"]["results"]
    assert [each["name"] for each in results][-1] == "coupled, private"
    assert "ratings alone, private" not in [each["name"] for each in results]
    assert shown["written"] == [str(out)]
    model = sf.load(out)
    held = sf.read("held-out.csv", ["user", "item"], "stars")
    known = np.isin(held.modes[0].labels_at(held.coordinates[0]), model.modes_[0].labels)
    assert shown["held_out"]["ratings"]["cells"] == np.count_nonzero(known)
    assert results[-1]["rmse"] == pytest.approx(model.rmse("ratings", held.take(known)))


def test_cells_of_a_file_that_were_fitted_are_not_measured_at(tmp_path):
    flags = [*SEEDED, "--test", "ratings=ratings.csv", "--json"]
    shown = json.loads(run("couple", *BESIDE, *flags, "--out", tmp_path / "model").stdout)
    assert shown["held_out"] == {}


def test_seeded_fits_are_those_of_the_library(tmp_path):
    done = run("couple", *ENTRY, *SEEDED, "--quiet", "--out", tmp_path / "model")
    assert done.exit_code == 0, done.stderr
    tables = {
        "ratings": sf.read("ratings.csv", ["user", "item"], "stars", bounds=(1, 5)),
        "tags": sf.read("tags.csv", ["item", "tag"], "times", bounds=(0, 20)),
    }
    public = sf.Public(labels=True)
    privacy = sf.Privacy(3, 1e-6, unit="entry", method="bias", public=public, seed=1)
    model = sf.Coupled(privacy=privacy).fit(tables)
    cells = tables["ratings"]
    assert np.array_equal(
        sf.load(tmp_path / "model").predict("ratings", cells), model.predict("ratings", cells)
    )


def test_langevin_fits_two_tables(tmp_path):
    flags = [*ENTRY[:-1], "langevin", "--rank", "1", "--quiet"]
    done = run("couple", *flags, "--out", tmp_path / "model")
    assert done.exit_code == 0, done.stderr
    assert all(1 <= value <= 5 for value in predictions(tmp_path / "model"))


def test_a_plan_alone_spends_and_writes_nothing(tmp_path):
    flags = [*BESIDE, "--ledger", tmp_path / "spent", "--out", tmp_path / "model", "--plan-only"]
    text = run("couple", *flags)
    assert text.exit_code == 0, text.stderr
    assert couple_private.ONLY_PLANNED in text.stdout
    assert "of the budget" in text.stdout
    shown = json.loads(run("couple", *flags, "--json").stdout)
    assert shown["plan"] in text.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_that_is_cut_short_leaves_the_model(tmp_path, monkeypatch):
    def cut_short(*_args, **_settings):
        assert (tmp_path / "model" / "release").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(couple_private, "_compare", cut_short)
    done = run("couple", *ENTRY, "--test", "ratings=0.2", "--out", tmp_path / "model")
    assert done.exit_code == 0, done.stderr
    assert "was not compared with others" in done.stderr
    assert "held-out RMSE" not in done.stdout


def test_a_fit_that_does_not_pay_is_called_so():
    def results(alone):
        both = [sf.report.records.Result("x alone, private", alone, 0.0)]
        return couple_private.HeldOut(9, [*both, sf.report.records.Result("coupled, private", 1.0, 0.0)])

    assert couple_private._remarks({"x": results(1.1)}) == [couple_private.FOR_YOUR_EYES]
    assert "does not beat x alone" in couple_private._remarks({"x": results(0.9)})[0]
    assert couple_private._remarks({}) == []


def test_values_and_labels_that_are_not_public_end_no_fit(world, tmp_path):
    """What is wrong with protected entries is clipped or left out, and nobody is told."""
    lines = (world / "ratings.csv").read_text().splitlines()
    odd = ["u03,i01,99", "u03,i01,99", "u04,i02,NaN", "u05,i77,3"]
    (tmp_path / "ratings.csv").write_text("\n".join([*lines, *odd]))
    flags = [*BESIDE[1:], "--public-labels", f"item={world / 'items.txt'}", "--test", "ratings=0.3"]
    done = run("couple", tmp_path / "ratings.csv", *flags, "--out", tmp_path / "model")
    assert done.exit_code == 0, done.stderr
    assert "nan" not in done.stdout
    assert "i77" not in (tmp_path / "model" / "release" / "model.json").read_text()


# -- what is refused ------------------------------------------------------------------------------

BOTH = f"couple {shlex.join([*TWO, *VALUES])}"
BOUNDED = f"{BOTH} --bounds ratings=1,5 tags=0,20"
PRIVATE = f"{BOUNDED} --epsilon 3 --delta 1e-6"
OPEN_LABELS = f"{PRIVATE} --labels-are-public"
ONE = f"{OPEN_LABELS} --unit entry"

WRONG = {
    f"{BOTH} --epsilon 3 --delta 1e-6 --unit entry": "--bounds ratings=LOW,HIGH",
    f"{BOTH} --bounds ratings=1,5 --epsilon 3 --delta 1e-6 --unit entry": "--bounds tags=LOW,HIGH",
    f"{BOTH} --bounds ratings=5,1 --epsilon 3 --delta 1e-6 --unit entry": "such as 1,5",
    f"{BOTH} --bounds films=1,5 --epsilon 3 --delta 1e-6 --unit entry": "no table 'films'",
    f"{PRIVATE}": "--epsilon needs --unit",
    f"{PRIVATE} --unit entry": "--labels-are-public",
    f"{BOUNDED} --epsilon 3 --unit entry --labels-are-public --method moments": "delta",
    f"{OPEN_LABELS} --unit planet": "planet",
    f"{OPEN_LABELS} --unit user --public-units 60": "--public-relation tags",
    f"{OPEN_LABELS} --unit user --public-relation tags": "--public-units N",
    f"{ONE} --local planet": "planet",
    f"{ONE} --public-relation films": "no table 'films'",
    f"{ONE} --public-relation tags ratings": "nothing to protect",
    f"{ONE} --public-relation tags --public-entries tags=9": "leave --public-entries",
    f"{ONE} --public-relation tags --test tags=0.2": "--test tags",
    f"{ONE} --public-entries 900": "names no table",
    f"{ONE} --public-entries ratings=many": "whole number",
    f"{ONE} --public-spread ratings=0": "above zero",
    f"{ONE} --public-labels planet=items.txt": "'planet' is no mode",
    f"{ONE} --public-labels item=nowhere.txt": "--public-labels",
    f"{ONE} --absent tags=zero": "--absent tags=zero",
    f"{ONE} --structure ratings=tucker": "--structure ratings=tucker",
    f"{ONE} --divergence 0": "--method",
    f"{ONE} --dispersion tags=9": "--method",
    f"{ONE} --solver variational": "--solver",
    f"{ONE} --starts 3": "--starts",
    f"{ONE} --rounds 9": "--rounds",
    f"{ONE} --burn-in 9": "--burn-in",
    f"{ONE} --method input": "--method",
    f"{ONE} --noise-seed 1": "--force",
    f"{ONE} --ledger-limit 3": "--ledger",
    f"{ONE} --ledger spent --ledger-limit 0": "--ledger-limit",
    f"{ONE} --max-entries 3": "--max-entries",
    f"{ONE} --test ratings=2": "between 0 and 1",
    f"{BOTH} --unit entry": "--unit needs --epsilon",
    f"{BOUNDED}": "--bounds needs --epsilon",
    f"{BOTH} --public-relation tags": "--public-relation needs --epsilon",
    f"{BOTH} --method bias": "needs --epsilon",
    f"{BOTH} --plan-only": "give --epsilon",
    f"{ONE.replace('tags=item,tag', 'tags=item:thing,tag')}": "shares no mode",
}
PYTHON = re.compile(
    r"=(True|False|None)\b|\bNone\b|\bPublic\(|\bsf\.|\bsfumato\.\w|\w\(\)|\b[a-z]+_[a-z_]+\b"
)


@pytest.mark.parametrize("asked", WRONG)
def test_what_is_wrong_is_said_in_flags_and_costs_nothing(asked, tmp_path, monkeypatch):
    def spent(*_args, **_settings):
        raise AssertionError("a fit was begun")

    monkeypatch.setattr(sf.privacy.ledger.Ledger, "reserve", spent)
    done = run(*shlex.split(asked), "--out", tmp_path / "out")
    assert done.exit_code in (1, 2), done.output
    assert isinstance(done.exception, SystemExit)
    assert WRONG[asked] in done.stderr
    assert not PYTHON.search(done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_most_of_it_is_said_before_a_table_is_read(tmp_path, monkeypatch):
    def read(*_args, **_settings):
        raise AssertionError("a table was read")

    monkeypatch.setattr(couple_private, "_divide", read)
    late = ("tags=item:thing,tag", "--method moments")
    for asked, named in WRONG.items():
        if not any(part in asked for part in late):
            done = run(*shlex.split(asked), "--out", tmp_path / "out")
            assert named in done.stderr, asked
