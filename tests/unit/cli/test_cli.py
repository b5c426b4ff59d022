"""The command line: every flag, what goes to which stream, exit codes, nothing left half-written."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from command_line import run

import sfumato as sf
from sfumato import cli
from sfumato.cli.complete import SolverName
from sfumato.cli.options import Duplicates
from sfumato.data.io.read import read_table
from sfumato.data.prepare import POLICIES
from sfumato.report.progress import FitProgress
from sfumato.solvers.registry import names

# The command line completes with a mean and biases, which solvers of coupled models do not fit.
COMPLETING = [name for name in names("open") if name not in names("coupled")]

MODES = ["--modes", "user", "item", "day"]
COLUMNS = [*MODES, "--value", "rating"]
QUICK = ["--rank", "2", "--rounds", "2"]


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """A small CSV file; the days are labels that a time bin leaves as they are."""
    tensor = sf.synthetic.ratings_like(20, 15, 6, 300)
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    columns = {
        mode.name: mode.labels[levels]
        for mode, levels in zip(tensor.modes, tensor.coordinates, strict=True)
    }
    table = pa.table({**columns, "rating": tensor.values, "note": ["007"] * tensor.n_entries})
    pacsv.write_csv(table, path)
    return path


@pytest.fixture(scope="module")
def model(ratings, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "model"
    assert run("complete", ratings, *COLUMNS, *QUICK, "--bin", "day=day", "--out", out).exit_code == 0
    return out


def completed_json(*args):
    result = run("complete", *args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# -- reading the command line ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["f", "--modes", "a", "b", "--out", "x"], ["f", "--modes", "a", "--modes", "b", "--out", "x"]),
        (["--modes", "a", "--modes", "b"], ["--modes", "a", "--modes", "b"]),
        (["--ranks=2", "3"], ["--ranks=2", "--ranks", "3"]),
        (["--bounds", "-1", "1", "f"], ["--bounds", "-1", "1", "f"]),
    ],
)
def test_a_flag_takes_several_values(given, meant):
    assert cli.repeat_flags(given) == meant


def test_choices_are_those_of_the_library():
    assert [solver.value for solver in SolverName] == COMPLETING
    assert [policy.value for policy in Duplicates] == list(POLICIES)


def test_version():
    assert run("--version").stdout == f"sfumato {sf.__version__}\n"


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from sfumato import cli; "
        "CliRunner().invoke(cli.app, ['complete', '--help']); "
        "sys.exit(bool({'numba', 'pyarrow', 'numpy', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- complete -------------------------------------------------------------------------------------


def test_complete_saves_the_model_that_the_library_would_fit(ratings, tmp_path):
    result = run(
        "complete", ratings, *COLUMNS, "--bin", "day=day", "--bounds", "1", "5", *QUICK,
        "--seed", "3", "--threads", "1", "--out", tmp_path / "m",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "300 entries" in result.stdout
    assert "not private" in result.stderr
    assert "not private" not in result.stdout
    tensor = sf.read(ratings, ["user", "item", "day"], "rating", bounds=(1, 5), bins={"day": "day"})
    expected = sf.CP(2, solver=sf.ALS(sweeps=2), seed=3, threads=1).fit(tensor)
    loaded = sf.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict(tensor), expected.predict(tensor))
    assert loaded.bounds_ == (1.0, 5.0)
    assert loaded.modes_[2].bin == "day"


def test_errors_at_held_out_entries_come_before_a_fit_to_all(ratings, tmp_path):
    args = [ratings, *COLUMNS, *QUICK, "--test", "0.2", "--out", tmp_path / "m"]
    result = run("complete", *args)
    for expected in (
        "held-out RMSE",
        "constant",
        "bias predictor",
        "CP, rank 2, als",
        "all 300 entries",
    ):
        assert expected in result.stdout
    assert sf.load(tmp_path / "m").n_entries_ == 300
    found = completed_json(*args)
    train, test = sf.read(ratings, ["user", "item", "day"], "rating").split(0.2, seed=0)
    ours = sf.CP(2, solver=sf.ALS(sweeps=2)).fit(train).rmse(test)
    assert [entry["name"] for entry in found["held_out"]] == [
        "constant", "bias predictor", "CP, rank 2, als",
    ]  # fmt: skip
    assert found["held_out"][-1]["rmse"] == pytest.approx(ours)
    assert found["private"] is False
    assert found["test"] == 0.2


@pytest.mark.parametrize("solver", COMPLETING)
def test_solvers(ratings, tmp_path, solver):
    out = tmp_path / "m"
    found = completed_json(ratings, *COLUMNS, *QUICK, "--solver", solver, "--out", out)
    assert found["solver"] == solver
    assert len(sf.load(out).history_) == 2


def test_tucker_with_factors_beside_the_model(ratings, tmp_path):
    out = tmp_path / "m"
    found = completed_json(
        ratings, *COLUMNS, "--model", "tucker", "--ranks", "3", "2", "2", "--rounds", "1",
        "--factors", "parquet", "--quiet", "--out", out,
    )  # fmt: skip
    assert found["ranks"] == [3, 2, 2]
    assert found["written"] == [
        str(out), *(str(tmp_path / "m-factors" / f"{name}.parquet") for name in ("user", "item", "day")),
    ]  # fmt: skip
    user = pq.read_table(tmp_path / "m-factors" / "user.parquet")
    assert user.column_names == ["user", "f1", "f2", "f3", "bias"]
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json", "model.json", "model.safetensors",
    ]  # fmt: skip


def test_one_rank_for_all_modes_of_tucker(ratings, tmp_path):
    found = completed_json(ratings, *COLUMNS, *QUICK, "--model", "tucker", "--out", tmp_path / "m")
    assert found["ranks"] == [2, 2, 2]


@pytest.mark.parametrize(("name", "ranks"), [("cp", [6, 6, 6]), ("tucker", [4, 4, 4])])
def test_the_default_rank_fits_the_shape(ratings, tmp_path, name, ranks):
    args = [ratings, *COLUMNS, "--model", name, "--rounds", "1", "--out", tmp_path / "m"]
    assert completed_json(*args)["ranks"] == ranks
    assert "as no rank is given" in run("complete", *args).stderr
    assert "as no rank is given" not in run("complete", *args, "--quiet").stderr


def test_dates_that_are_not_binned_are_pointed_out(ratings, tmp_path):
    args = [ratings, *COLUMNS, *QUICK, "--out", tmp_path / "m"]
    assert "--bin day=day" in run("complete", *args).stderr
    assert "--bin" not in run("complete", *args, "--bin", "day=day").stderr


def test_duplicates_are_merged_before_entries_are_held_out(ratings, tmp_path):
    args = [ratings, "--modes", "user", "--modes", "item", "--value", "rating", *QUICK]
    refused = run("complete", *args, "--out", tmp_path / "m")
    assert refused.exit_code == 1
    assert "more than once" in refused.stderr
    found = completed_json(*args, "--duplicates", "mean", "--test", "0.3", "--out", tmp_path / "m")
    assert found["entries"] < 300


def test_an_array_of_a_file_and_negative_bounds(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", first=np.zeros(3), second=rng.uniform(-1, 1, (6, 5)))
    found = completed_json(
        tmp_path / "a.npz",
        "--variable",
        "second",
        "--bounds",
        "-1",
        "1",
        *QUICK,
        "--out",
        tmp_path / "m",
    )
    assert found["bounds"] == [-1.0, 1.0]
    assert found["entries"] == 30


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--modes", "usr", "item", "--value", "rating"], 1, "error: there is no column 'usr'"),
        ([], 1, "--modes which columns hold labels"),
        ([*COLUMNS, "--rank", "7"], 1, "rank 7 is larger"),
        ([*COLUMNS, "--bounds", "3", "5"], 1, "outside the bounds"),
        ([*COLUMNS, "--test", "1.5"], 1, "--test must be a number between 0 and 1"),
        ([*COLUMNS, "--bin", "user=year"], 1, "unknown time bin"),
        ([*COLUMNS, "--bin", "day"], 2, "as in time=day"),
        ([*COLUMNS, "--ranks", "2", "2", "2"], 2, "belong to --model tucker"),
        ([*COLUMNS, "--model", "tucker", "--rank", "2", "--ranks", "2"], 2, "not both"),
        ([*COLUMNS, "--solver", "newton"], 2, "newton"),
        ([*COLUMNS, "--bounds", "one", "5"], 2, "--bounds"),
    ],
)
def test_errors_have_a_code_and_a_message_and_leave_nothing(ratings, tmp_path, args, code, message):
    result = run("complete", ratings, *args, "--out", tmp_path / "m")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_refused_before_the_fit(ratings, tmp_path, monkeypatch):
    (tmp_path / "thesis.txt").write_text("dear to someone")
    monkeypatch.setattr(cli.complete, "_fit", None)
    result = run("complete", ratings, *COLUMNS, "--out", tmp_path)
    assert result.exit_code == 1
    assert "holds no model" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_that_is_not_there(tmp_path):
    result = run("complete", tmp_path / "no.csv", *COLUMNS, "--out", tmp_path / "m")
    assert (result.exit_code, "there is no file" in result.stderr) == (1, True)


def test_an_operating_system_error_is_no_traceback(ratings, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(cli.complete, "_save", full)
    result = run("complete", ratings, *COLUMNS, *QUICK, "--out", tmp_path / "m")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "error: no space left on device")


def test_ctrl_c_leaves_no_model(ratings, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(FitProgress, "__call__", interrupt)
    result = run("complete", ratings, *COLUMNS, *QUICK, "--out", tmp_path / "m")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="signals as in POSIX")
def test_a_real_interrupt_ends_a_long_fit(ratings, tmp_path):
    command = [sys.executable, "-c", "from sfumato.cli import main; main()", "complete", str(ratings)]
    command += [*COLUMNS, "--rounds", "10000000", "--out", str(tmp_path / "m")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()  # the note on the rank: the command runs
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "interrupted"
    assert list(tmp_path.iterdir()) == []


# -- predict --------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_estimator_and_columns_stay(ratings, model):
    result = run("predict", model, ratings)
    assert result.exit_code == 0, result.stderr
    found = pacsv.read_csv(
        io.BytesIO(result.stdout_bytes),
        convert_options=pacsv.ConvertOptions(column_types={"note": pa.string()}),
    )
    assert found.column_names == ["user", "item", "day", "rating", "note", "prediction"]
    assert set(found.column("note").to_pylist()) == {"007"}
    labels = {name: read_table(ratings, as_text=["day"]).column(name).to_pylist() for name in MODES[1:]}
    expected = sf.load(model).predict(**labels)
    np.testing.assert_allclose(found.column("prediction").to_numpy(), expected, rtol=1e-12)


def test_predictions_leave_the_text_of_the_file_as_it_is(model, tmp_path):
    cells = tmp_path / "cells.csv"
    lines = ['"item";user;day;note', '"i001";u001;01/04/1998;"007, or 1.50"', "i002;u002;2/4/1998;1,50"]
    cells.write_bytes("\r\n".join(lines).encode())
    flags = ["--separator", ";", "--date-format", "%d/%m/%Y"]
    for result in (run("predict", model, cells, *flags), run("predict", model, cells, *flags[2:])):
        assert result.exit_code == 0, result.stderr
        found = result.stdout_bytes.decode().split("\r\n")
        assert [line.rpartition(";")[0] for line in found] == lines
        assert found[0].endswith(";prediction")
        labels = {
            "item": ["i001", "i002"],
            "user": ["u001", "u002"],
            "day": ["1998-04-01", "1998-04-02"],
        }
        expected = sf.load(model).predict(**labels)
        values = [float(line.rpartition(";")[2]) for line in found[1:]]
        np.testing.assert_allclose(values, expected, rtol=1e-12)
    refused = run("predict", model, cells)
    assert refused.exit_code == 1
    assert "--date-format" in refused.stderr


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_predictions_to_a_file(ratings, model, tmp_path, suffix):
    pq.write_table(read_table(ratings, as_text=["day"]), tmp_path / "cells.parquet")
    out = tmp_path / f"out{suffix}"
    result = run("predict", model, tmp_path / "cells.parquet", "--out", out, "--column", "score")
    assert (result.exit_code, result.stdout) == (0, "")
    assert read_table(out).column_names[-1] == "score"
    assert read_table(out).num_rows == 300


def test_labels_that_were_not_in_training(model, tmp_path):
    cells = tmp_path / "cells.csv"
    cells.write_text("user,item,day\nnobody,i001,1998-04-01\n")
    refused = run("predict", model, cells)
    assert refused.exit_code == 1
    assert "'nobody'" in refused.stderr
    assert refused.stdout == ""
    assert len(run("predict", model, cells, "--unseen", "bias").stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("header", "message"),
    [("user,item,day,prediction", "--column"), ("user,item", "there is no column 'day'")],
)
def test_tables_that_cannot_be_predicted(model, tmp_path, header, message):
    cells = tmp_path / "cells.csv"
    cells.write_text(f"{header}\n{','.join('1' for _ in header.split(','))}\n")
    result = run("predict", model, cells, "--out", tmp_path / "out.csv")
    assert (result.exit_code, message in result.stderr) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["cells.csv"]


def own_file(path, header="user,item,day,rating", value="5"):
    rest = "" if value is None else f",{value}"
    lines = [f"nobody,i{item:03},1998-04-01{rest}" for item in range(1, 6)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_somebody_new_brings_own_ratings(model, tmp_path):
    own, cells = own_file(tmp_path / "own.csv"), tmp_path / "cells.csv"
    cells.write_text("user,item,day\nnobody,i007,1998-04-01\nu001,i007,1998-04-01\n")
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    found = run("predict", model, cells, "--own", own)
    assert found.exit_code == 0, found.stderr
    stranger, known = (float(line.rpartition(",")[2]) for line in found.stdout.splitlines()[1:])
    labels = {"item": ["i007"], "day": ["1998-04-01"]}
    again = sf.load(model)
    assert stranger == pytest.approx(again.predict(user=["nobody"], own=own, **labels)[0])
    assert stranger > again.predict(user=["nobody"], unseen="bias", **labels)[0]
    assert known == pytest.approx(again.predict(user=["u001"], **labels)[0])
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    items = tmp_path / "items.csv"
    items.write_text("user,item,day,rating\nu001,new,1998-04-01,5\nu002,new,1998-04-02,4\n")
    assert run("predict", model, items, "--own", items, "--own-mode", "item").exit_code == 0


@pytest.mark.parametrize(
    ("own", "flags", "message"),
    [
        ({"header": "user,item,date,rating"}, [], "no column 'day'"),
        ({"header": "user,item,day", "value": None}, [], "a column of values"),
        ({"value": "good"}, [], "'good'"),
        ({"value": ""}, [], "not finite"),
        ({"header": "user,item,day,rating,note", "value": "5,x"}, [], "--own-value"),
        ({"header": "user,item,day,rating,note", "value": "5,x"}, ["--own-value", "stars"], "stars"),
        ({}, ["--own-mode", "planet"], "planet"),
        ({}, ["--own-mode", "item"], "'nobody'"),
    ],
)
def test_own_ratings_that_cannot_be_used(model, tmp_path, own, flags, message):
    path, cells = own_file(tmp_path / "own.csv", **own), tmp_path / "cells.csv"
    cells.write_text("user,item,day\nnobody,i007,1998-04-01\n")
    result = run("predict", model, cells, "--own", path, *flags, "--out", tmp_path / "out.csv")
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_file_of_own_ratings_that_is_not_there(model, ratings, tmp_path):
    result = run("predict", model, ratings, "--own", tmp_path / "none.csv")
    assert (result.exit_code, "none.csv" in result.stderr) == (1, True)
    result = run("predict", model, ratings, "--own-mode", "user")
    assert (result.exit_code, "give --own as well" in result.stderr) == (1, True)


def test_predicting_without_a_model(ratings, tmp_path):
    result = run("predict", tmp_path / "m", ratings)
    assert (result.exit_code, "there is no model folder" in result.stderr) == (1, True)


# -- where results go -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["complete", "ratings.csv", *COLUMNS],
        ["couple", "ratings.csv", "--modes", "ratings=user,item", "--value", "rating"],
        ["audit", "--epsilon", "1", "--unit", "value"],
        ["reproduce", "wei", "--figure", "2", "--quick"],
        ["demo"],
    ],
)
@pytest.mark.parametrize("name", ["out.png", "out.csv", "out.JSON"])
def test_several_files_go_to_a_folder(words, name, tmp_path):
    result = run(*words, "--out", tmp_path / name)
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert "name a folder" in result.stderr
    assert not any(tmp_path.iterdir())


def test_a_folder_may_have_a_dot_in_its_name(ratings, tmp_path):
    for name in ("model.v2", "there.csv"):
        (tmp_path / "there.csv").mkdir(exist_ok=True)
        result = run("complete", ratings, *COLUMNS, *QUICK, "--quiet", "--out", tmp_path / name)
        assert result.exit_code == 0, result.stderr
        assert (tmp_path / name / "model.json").is_file()


def test_system_errors_are_told_without_numbers(ratings, tmp_path):
    flags = ["--bounds", "1", "5", "--epsilon", "1", "--unit", "entry", "--out", tmp_path / "m"]
    labels = ["--public-labels", f"item={tmp_path / 'none.txt'}"]
    result = run("complete", ratings, *COLUMNS, *flags, *labels)
    assert result.exit_code == 1
    assert "[Errno" not in result.stderr
    assert f"lists labels, one in each line: there is no file {tmp_path}" in result.stderr


# -- describe and demo ----------------------------------------------------------------------------


def test_describe_in_words_and_as_json(ratings):
    args = ["describe", ratings, *COLUMNS, "--bounds", "1", "5", "--rank", "3"]
    text = run(*args).stdout
    assert "user 20 x item 15 x day 6: 300 entries" in text
    assert "rank 3" in text
    found = json.loads(run(*args, "--json").stdout)
    assert found["shape"] == [20, 15, 6]
    assert found["modes"][0]["name"] == "user"


def test_describe_an_array_needs_no_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    assert "9 entries" in run("describe", tmp_path / "a.npy").stdout


def test_demo_command(tmp_path, monkeypatch):
    small = sf.synthetic.ratings_like(30, 20, 6, 600)
    monkeypatch.setattr(sf.synthetic, "ratings_like", lambda: small)
    result = run("demo", "--out", tmp_path / "d")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "d" / "trade-off.png").exists()


# -- how files are written --------------------------------------------------------------------------


@pytest.fixture
def european(ratings, tmp_path):
    """The ratings with semicolons between columns, and days before months."""
    lines = [line.split(",") for line in ratings.read_text().replace('"', "").splitlines()]
    place = lines[0].index("day")
    for line in lines[1:]:
        line[place] = "/".join(reversed(line[place].split("-")))
    path = tmp_path / "european.csv"
    path.write_text("\n".join(";".join(line) for line in lines))
    return path


@pytest.mark.parametrize("separator", [[], ["--separator", ";"]])
def test_separators_and_dates_on_every_command_that_reads(ratings, european, tmp_path, separator):
    how = ["--bin", "day=day", "--bounds", "1", "5"]
    written = [*separator, "--date-format", "%d/%m/%Y"]
    plain = run("describe", ratings, *COLUMNS, *how, "--json")
    assert run("describe", european, *COLUMNS, *how, *written, "--json").stdout == plain.stdout
    completed_json(ratings, *COLUMNS, *how, *QUICK, "--out", tmp_path / "a")
    completed_json(european, *COLUMNS, *how, *written, *QUICK, "--out", tmp_path / "b")
    np.testing.assert_array_equal(*(sf.load(tmp_path / name).model_.rows for name in "ab"))
    promise = ["--epsilon", "4", "--unit", "value", "--method", "constant", "--canary", "least"]
    result = run(
        "audit", european, *COLUMNS, *how, *written, *promise, "--runs", "40", "--processes", "1"
    )
    assert result.exit_code == 0, result.stderr
    refused = run("describe", european, *COLUMNS, *how, *separator)
    assert refused.exit_code == 1
    assert "--date-format" in refused.stderr
