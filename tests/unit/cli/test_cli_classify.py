"""``sfumato classify``: from a table of people to a release, and predictions from it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from command_line import run

import sfumato as sf
from sfumato.cli import classify as command

pytest.importorskip("jax")

PUBLIC = ["--classes", "no", "yes", "--bounds", "age=0:120", "weight=0:300", "--categories", "sex=f,m"]
BUDGET = ["--epsilon", "2", "--delta", "1e-6", "--unit", "example", "--public-entries", "800"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made, rng = tmp_path_factory.mktemp("patients"), np.random.default_rng(0)
    for name, rows in {"train": 800, "test": 300}.items():
        age, sex = rng.integers(18, 95, rows), rng.choice(["f", "m"], rows)
        ill = rng.random(rows) < 1 / (1 + np.exp(-0.15 * (age - 55.0)))
        table = pa.table(
            {
                "patient": [f"p{row // 2}" for row in range(rows)],
                "age": age,
                "sex": sex,
                "weight": rng.normal(75, 15, rows).round(1),
                "ill": np.where(ill, "yes", "no"),
                "cost": (5.0 * age + rng.normal(0, 20, rows)).round(1),
            }
        )
        pacsv.write_csv(table, made / f"{name}.csv")
        pq.write_table(table, made / f"{name}.parquet")
    return made


def classify(folder, *words, label="ill", file="train.csv"):
    return run("classify", folder / file, "--label", label, *words)


def test_a_private_network_is_trained_measured_explained_and_predicts(folder, tmp_path):
    out = tmp_path / "model"
    done = classify(folder, *PUBLIC, *BUDGET, "--test", folder / "test.csv", "--out", out)
    assert done.exit_code == 0, done.stderr
    for said in (
        "epsilon 2",
        "one example",
        "not for release",
        "calibration",
        str(out),
        "sfumato predict",
    ):
        assert said in " ".join(done.stdout.split())
    assert sorted(path.name for path in out.iterdir()) == ["release"]
    assert "one example" in run("explain", out).stdout
    for model in (out, out / "release"):
        predicted = run("predict", model, folder / "test.csv", "--out", tmp_path / "predicted.csv")
        assert predicted.exit_code == 0, predicted.stderr
        table = pacsv.read_csv(tmp_path / "predicted.csv")
        assert table.column_names[-3:] == ["prediction", "probability_no", "probability_yes"]
        chances = np.stack([table[name].to_numpy() for name in table.column_names[-2:]], 1)
        assert np.allclose(chances.sum(1), 1)
        assert (
            np.mean([a == b for a, b in zip(*table.select(["ill", "prediction"]), strict=True)]) > 0.75
        )


@pytest.mark.parametrize("file", ["train.csv", "train.parquet"])
def test_kinds_of_files_give_the_same_network(folder, tmp_path, file):
    seeded = [*PUBLIC, *BUDGET, "--noise-seed", 1, "--force"]
    for name, source in {"a": "train.csv", "b": file}.items():
        assert classify(folder, *seeded, "--out", tmp_path / name, file=source).exit_code == 0
    a, b = (sf.load(tmp_path / name) for name in "ab")
    assert np.array_equal(a.network_.parameters, b.network_.parameters)


def test_owners_regression_and_json(folder, tmp_path):
    words = (
        "--regress --target-bounds 0 800 --columns age weight --bounds 0:300 --epsilon 2 --delta 1e-6"
    )
    owner = "--unit patient --public-units 400 --ledger"
    done = classify(
        folder,
        *words.split(),
        *owner.split(),
        tmp_path / "spent",
        *("--test", folder / "test.csv", "--json", "--out", tmp_path / "model"),
        label="cost",
    )
    found = json.loads(done.stdout)
    assert found["guarantee"]["unit"] == "all examples of one patient, their presence included"
    assert found["test"]["for_release"] is False
    assert found["test"]["network"]["R2"] > 0.3 > found["test"]["constant"]["R2"]
    assert len((tmp_path / "spent").read_text().splitlines()) > 1
    assert run("predict", tmp_path / "model", folder / "test.csv").stdout.count("\n") == 301


def test_a_plan_reads_no_row_and_charges_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "read_examples", lambda *_: pytest.fail("rows were read"))
    done = classify(folder, *PUBLIC, *BUDGET, "--plan-only", "--ledger", tmp_path / "spent")
    assert done.exit_code == 0, done.stderr
    assert "600 steps" in done.stdout
    assert not (tmp_path / "spent").exists()


def test_without_privacy_columns_are_looked_at(folder, tmp_path):
    done = classify(folder, "--columns", "age", "sex", "--out", tmp_path / "model")
    assert done.exit_code == 0, done.stderr
    assert "not private" in done.stderr
    assert set(sf.load(tmp_path / "model").classes_) == {"no", "yes"}


def test_what_rows_hold_is_not_complained_of(folder, tmp_path):
    """A row that is damaged in every cell is read by itself, and nothing is said of it."""
    text = (folder / "train.csv").read_text() + 'nobody,old,?,"",maybe,free\n'
    (tmp_path / "odd.csv").write_text(text)
    seeded = [*PUBLIC, *BUDGET, "--noise-seed", 1, "--force", "--label", "ill"]
    said = []
    for name, source in {"a": folder / "train.csv", "b": tmp_path / "odd.csv"}.items():
        done = run("classify", source, *seeded, "--out", tmp_path / name)
        assert done.exit_code == 0, done.stderr
        said.append(done.stderr)
    assert said[0] == said[1]
    a, b = (sf.load(tmp_path / name) for name in "ab")
    assert np.array_equal(a.network_.parameters, b.network_.parameters)


WRONG = {
    "--bounds age=0:120 --epsilon 1 --delta 1e-6 --classes no yes": "--unit",
    f"{' '.join(BUDGET)} --classes no yes": "--bounds",
    f"{' '.join(BUDGET)} --bounds age=0:120": "--classes a b",
    f"{' '.join(PUBLIC)} --epsilon 1 --delta 1e-6 --unit example": "--public-entries N",
    f"{' '.join(PUBLIC)} --epsilon 1 --delta 1e-6 --unit patient": "--public-units N",
    f"{' '.join(PUBLIC)} --epsilon 1 --delta 1e-6 --unit nobody --public-units 9": "'nobody'",
    f"{' '.join(PUBLIC)} {' '.join(BUDGET)} --noise-seed 1": "--force",
    f"{' '.join(BUDGET)} --classes no yes --bounds height=0:9": "'height'",
    f"{' '.join(BUDGET)} --classes no yes --bounds ill=0:9": "ill is not learnt from",
    f"{' '.join(BUDGET)} --classes no yes --columns age sex --bounds age=0:120": "sex=LOW:HIGH",
    f"{' '.join(BUDGET)} --classes no no --bounds age=0:9": "each once",
    f"{' '.join(BUDGET)} --classes no yes --bounds age=9:0": "lower one first",
    f"{' '.join(BUDGET)} --classes no yes --bounds age=old": "age=0:120",
    f"{' '.join(BUDGET)} --classes no yes --categories sex=f,f": "sex=f,m",
    f"{' '.join(PUBLIC)} {' '.join(BUDGET)} --regress": "--classes",
    f"{' '.join(BUDGET)} --bounds age=0:9 --regress": "--target-bounds LOW HIGH",
    f"{' '.join(PUBLIC)} --unit example": "--epsilon",
    f"{' '.join(PUBLIC)} {' '.join(BUDGET)} --hidden 0": "hidden",
    f"{' '.join(PUBLIC)} {' '.join(BUDGET)} --test nowhere.csv": "nowhere.csv",
    "--target-bounds 0 1": "--regress",
}


@pytest.mark.parametrize("words", WRONG)
def test_errors_come_before_a_charge_and_say_what_to_do(folder, tmp_path, words):
    ledger = ["--ledger", tmp_path / "spent"] if "--epsilon" in words else []
    done = classify(folder, *words.split(), *ledger, "--out", tmp_path / "model")
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert WRONG[words] in done.stderr
    assert not (tmp_path / "spent").exists()
    assert not (tmp_path / "model").exists()


def test_a_folder_that_holds_other_things_is_not_overwritten(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = classify(folder, *PUBLIC, *BUDGET, "--out", tmp_path, "--ledger", folder / "unspent")
    assert done.exit_code == 1
    assert not (folder / "unspent").exists()
