"""``--intervals``, ``predict --interval``, ``explain --groups``: what is written, said and refused."""

import csv
import io
import json

import numpy as np
import pytest
from command_line import run

import sfumato as sf
from sfumato.errors import ModelFileError
from sfumato.store.manifest import read_folder, with_manifest
from sfumato.store.models import write_folder
from sfumato.store.names import RELEASE
from sfumato.store.writing import guarantee_files, model_files

BUDGET = ["--epsilon", "8", "--delta", "1e-6", "--noise-seed", "1", "--force", "--labels-are-public"]
COLUMNS = ["--modes", "user", "item", "--value", "value"]
FIT = [*COLUMNS, "--bounds", "0", "6", "--quiet", "--method", "bias"]
TABLES = ["--modes", "ratings=user,item", "visits=user,place", "--value", "value"]
BOUNDS = ["--bounds", "ratings=0,6", "visits=0,6"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Ratings and visits of 60 users, and ratings that are held out."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    users = generator.standard_normal(60)
    for name, other, size in (("ratings", "item", 20), ("visits", "place", 15)):
        columns = generator.standard_normal(size)
        values = 3 + 0.4 * users[:, None] + 0.6 * columns + 0.7 * generator.standard_normal((60, size))
        there = generator.random(values.shape) < 0.7
        for file, cells in ((name, there), (f"{name}-held-out", ~there)):
            rows = [
                f"u{u:02},{other[0]}{i:02},{np.clip(values[u, i], 0, 6):.3f}"
                for u, i in np.argwhere(cells)
            ]
            (folder / f"{file}.csv").write_text("\n".join([f"user,{other},value", *rows]) + "\n")
    (folder / "cells.csv").write_text("user,item\nu03,i04\nu20,i07\n")
    return folder


@pytest.fixture(scope="module")
def models(world):
    """One table with everything released and with own rows, and two tables."""
    entry, users = ["--unit", "entry"], ["--unit", "user", "--public-units", "60"]
    ratings, visits = world / "ratings.csv", world / "visits.csv"
    asked = {
        "plain": ("complete", ratings, *FIT, *BUDGET, *entry),
        "entry": ("complete", ratings, *FIT, *BUDGET, *entry, "--intervals"),
        "user": ("complete", ratings, *FIT, *BUDGET, *users, "--intervals"),
        "both": ("couple", ratings, visits, *TABLES, *BOUNDS, "--quiet", *BUDGET, *entry, "--intervals"),
    }
    for name, words in asked.items():
        done = run(*words, "--out", world / name)
        assert done.exit_code == 0, done.stderr
    return world


def _rows(done):
    assert done.exit_code == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.mark.parametrize("name", ["entry", "user", "both"])
def test_predictions_have_bounds_and_what_makes_them_wide(models, name):
    of = ["--relation", "ratings"] if name == "both" else []
    rows = _rows(run("predict", models / name, models / "cells.csv", "--interval", "0.9", *of))
    assert len(rows) == 2
    model = sf.load(models / name)
    cells = {"user": ["u03", "u20"], "item": ["i04", "i07"]}
    found = model.predict(*of[1:], cells, interval=0.9)
    for row, *numbers in zip(rows, *found, strict=True):
        told = [float(row[column]) for column in ("prediction", "low", "high", "noise", "scatter")]
        np.testing.assert_allclose(told, numbers, atol=1e-5)
        assert told[1] < told[0] < told[2]


def test_groups_say_what_may_be_handed_out(models):
    release = models / "entry" / RELEASE
    said = run("explain", release, "--groups", "item")
    assert (said.exit_code, "may be handed out" in said.stdout) == (0, True)
    found = json.loads(run("explain", release, "--groups", "item", "--json").stdout)
    assert sum(group["levels"] for group in found["groups"]) == 20
    held = ["--held-out", models / "ratings-held-out.csv"]
    measured = run("explain", models / "entry", "--groups", "item", *held)
    assert (measured.exit_code, "NOT releasable" in measured.stdout) == (0, True)
    (models / "damaged.csv").write_text("user,item,rating\nu03,i04,nan\n")
    damaged = run("explain", models / "entry", "--groups", "item", "--held-out", models / "damaged.csv")
    assert (damaged.exit_code, "NaN or infinite" in damaged.stderr) == (1, True)
    of = ["--groups", "place", "--relation", "visits"]
    assert run("explain", models / "both", *of).exit_code == 0
    assert (
        run("explain", models / "both", *of, "--held-out", models / "visits-held-out.csv").exit_code == 0
    )


@pytest.mark.parametrize("level", ["0", "1", "-0.1", "1.5", "nan", "inf"])
@pytest.mark.parametrize("name", ["entry", "both"])
def test_levels_that_are_none_are_refused_and_nothing_is_written(models, tmp_path, name, level):
    of = ["--relation", "ratings"] if name == "both" else []
    out = tmp_path / "predicted.csv"
    words = ["predict", models / name, models / "cells.csv", "--interval", level, "--out", out, *of]
    done = run(*words)
    assert (done.exit_code, "interval" in done.stderr) == (1, True)
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["predict", "plain", "cells.csv", "--interval", "0.9"], "--intervals"),
        (["explain", "plain", "--groups", "item"], "--intervals"),
        (["explain", "entry", "--groups", "planet"], "planet"),
        (["explain", "user", "--groups", "user"], "how often each user"),
        (["explain", "entry", "--held-out", "cells.csv"], "--groups"),
        (["explain", "both", "--groups", "item"], "--relation"),
        (["explain", "entry", "--groups", "item", "--relation", "ratings"], "--relation"),
        (["complete", "ratings.csv", *FIT, "--intervals", "--out", "x"], "--intervals"),
        (["couple", "ratings.csv", "visits.csv", *TABLES, "--intervals", "--out", "x"], "--intervals"),
    ],
)
def test_what_cannot_be_told_is_refused(models, monkeypatch, words, named):
    monkeypatch.chdir(models)
    done = run(*words)
    assert done.exit_code in (1, 2)
    assert named in " ".join(done.stderr.split())


def test_a_column_that_a_file_has_already_is_not_written_over(models, tmp_path):
    (tmp_path / "cells.csv").write_text("user,item,scatter\nu03,i04,1\n")
    done = run("predict", models / "entry", tmp_path / "cells.csv", "--interval", "0.9")
    assert (done.exit_code, "'scatter' already" in done.stderr) == (1, True)


# -- what is written, damaged --------------------------------------------------------------------------


_ARRAYS = {
    "not a number": lambda a: np.where(np.arange(a.size) == 0, np.nan, a),
    "endless": lambda a: np.where(np.arange(a.size) == 0, np.inf, a),
    "below zero": lambda a: a - 1e3,
    "too short": lambda a: a[:-1],
    "too long": lambda a: np.append(a, 1.0),
    "of two dimensions": lambda a: a[None],
    "of single precision": lambda a: a.astype(np.float32),
    "whole numbers": lambda a: a.astype(np.int64),
}
_NUMBERS = {
    "scatter": (0.0, -1.0, "1", None, True, [1.0]),
    "own_mode": (1, -1, 7, "0", 0.5, None),
    "own_precision": (-1.0, "2", None),
}


@pytest.fixture(scope="module")
def written(models):
    contents = read_folder(models / "user" / RELEASE)
    description = {k: v for k, v in contents.description.items() if k not in ("format", "versions")}
    return description, dict(contents.tensors), contents.guarantee


def _loads(written, folder, description=None, tensors=None):
    about, arrays, guarantee = written
    files = model_files(description or about, tensors or arrays)
    write_folder(with_manifest({**files, **guarantee_files(guarantee)}), folder)
    return sf.load(folder)


@pytest.mark.parametrize("name", ["errors_shape", "errors_own", "errors_noise_1", "errors_counts_1"])
def test_damaged_errors_are_no_model(written, tmp_path, name):
    arrays = written[1]
    for damage, broken in _ARRAYS.items():
        if name == "errors_own" and damage.startswith("too"):
            continue  # a row may have any number of columns
        damaged = {**arrays, name: np.ascontiguousarray(broken(arrays[name]))}
        with pytest.raises(ModelFileError):
            _loads(written, tmp_path / "model", tensors=damaged)


@pytest.mark.parametrize("name", ["errors_shape", "errors_own"])
def test_errors_that_lack_something_are_no_model(written, tmp_path, name):
    left = {key: array for key, array in written[1].items() if key != name}
    with pytest.raises(ModelFileError):
        _loads(written, tmp_path / "model", tensors=left)


@pytest.mark.parametrize("name", _NUMBERS)
def test_damaged_numbers_of_errors_are_no_model(written, tmp_path, name):
    about = written[0]
    for value in _NUMBERS[name]:
        broken = {**about, "errors": {**about["errors"], name: value}}
        with pytest.raises(ModelFileError):
            _loads(written, tmp_path / "model", description=broken)
    lacking = {key: value for key, value in about["errors"].items() if key != name}
    with pytest.raises(ModelFileError):
        _loads(written, tmp_path / "model", description={**about, "errors": lacking})


def test_whole_errors_are_a_model(written, tmp_path):
    model = _loads(written, tmp_path / "model")
    cells = {"user": ["new"], "item": ["i04"]}
    assert model.predict(cells, interval=0.9, unseen="bias").noise[0] > 0
