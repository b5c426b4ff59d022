"""``sfumato couple``, and what other commands make of its models."""

import io
import json
from math import sqrt
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from command_line import run

import sfumato as sf
from sfumato import cli
from sfumato.cli import couple_data
from sfumato.cli.command import TAKE_SEVERAL, with_groups
from sfumato.cli.couple_order import Absent, CoupledSolver, CoupleOrder, TableFlags, files_by_name
from sfumato.cli.options import Columns, ModelName
from sfumato.data import relations as relations_module
from sfumato.metrics import auc, rmse
from sfumato.report.progress import FitProgress
from sfumato.solvers.registry import names

MODES = ["--modes", "played=user,game", "tags=who:user,tag"]
COLUMNS = [*MODES, "--value", "played=hours", "tags=times"]
SETTINGS = ["--absent", "tags=zero"]
QUICK = ["--rank", "2", "--rounds", "8", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Hours that users played games, of which half are known and none of five users, and their tags."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    users, games, tags = (rng.gamma(0.5, size=(n, 2)) for n in (40, 25, 15))
    hours = rng.gamma(8, (0.5 + 3 * users @ games.T) / 8)
    counts = rng.poisson(4 * users @ tags.T)
    known = rng.random(hours.shape) < 0.4
    known[:5] = False
    names = [f"u{u:02}" for u in range(40)]
    write(
        folder / "played.csv",
        "user,game,hours",
        ((names[u], f"g{g}", hours[u, g]) for u, g in np.argwhere(known)),
    )
    write(
        folder / "tags.csv",
        "who,tag,times",
        ((names[u], f"t{t}", counts[u, t]) for u, t in np.argwhere(counts)),
    )
    cells = [(names[u], f"g{g}", hours[u, g]) for u, g in np.argwhere(~known)]
    seen = set(np.unique(np.argwhere(counts)[:, 0])) | set(np.unique(np.argwhere(known)[:, 0]))
    cells = [row for row in cells if int(row[0][1:]) in seen]
    write(folder / "held-out.csv", "user,game,hours", cells)
    return folder


@pytest.fixture(scope="module")
def files(world):
    return [world / "played.csv", world / "tags.csv"]


@pytest.fixture(scope="module")
def model(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "coupled"
    done = run("couple", *files, *COLUMNS, *SETTINGS, *QUICK, "--solver", "variational", "--out", out)
    assert done.exit_code == 0, done.stderr
    return out


def write(path, header, rows):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def couple_json(*args):
    result = run("couple", *args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def read_by_hand(files):
    tags = pacsv.read_csv(files[1]).rename_columns(["user", "tag", "times"])
    return {
        "played": sf.read(files[0], ["user", "game"], "hours"),
        "tags": sf.read(tags, ["user", "tag"], "times"),
    }


# -- the command line -----------------------------------------------------------------------------


def test_choices_are_those_of_the_library():
    assert [solver.value for solver in CoupledSolver] == list(names("coupled"))
    assert tuple(choice.value for choice in Absent) == get_args(relations_module.Absent)
    assert tuple(choice.value for choice in ModelName) == get_args(relations_module.Structure)


def test_flags_that_take_several_values_are_those_that_are_lists():
    commands = cli.typer.main.get_command(cli.app).commands
    for name, command in commands.items():
        lists = {flag for option in command.params if option.multiple for flag in option.opts}
        assert lists == {
            flag for option in command.params for flag in option.opts if flag in command.take_several
        }, name
    assert set(TAKE_SEVERAL) < set(commands["couple"].take_several)


def test_options_of_a_group_stand_where_the_group_stands():
    def command(file: str, *, columns: Columns, quiet: bool = False) -> None:
        found.append((file, columns, quiet))

    found = []
    spread = with_groups(command)
    names = list(spread.__annotations__)
    read = ["modes", "value", "bounds", "bin", "variable", "separator", "date_format"]
    assert names == ["file", *read, "quiet"]
    given = {"modes": ["a", "b"], "value": "v"}
    spread(file="f", quiet=True, **{**dict.fromkeys(read), **given})
    assert found == [("f", Columns(["a", "b"], "v"), True)]


def test_help_says_what_is_private_and_ends_with_an_example():
    text = run("couple", "--help").stdout
    assert "Without --epsilon the result is not private" in " ".join(text.split())
    assert text.partition("Examples:\n")[2].strip().startswith("sfumato couple ")


# -- fitting --------------------------------------------------------------------------------------


def test_counts_are_sampled(tmp_path):
    cells = np.indices((6, 5)).reshape(2, -1).T
    counts = np.random.default_rng(0).poisson(3.0, len(cells))
    rows = [f"u{u},g{g},{n}" for (u, g), n in zip(cells, counts, strict=True)]
    (tmp_path / "visits.csv").write_text("\n".join(["user,game,n", *rows]))
    done = run(
        *("couple", f"visits={tmp_path / 'visits.csv'}", "--modes", "visits=user,game", "--value", "n"),
        *("--solver", "gibbs", "--rounds", 8, "--burn-in", 10, "--rank", 2, "--out", tmp_path / "m"),
    )
    assert done.exit_code == 0, done.output
    assert "R-hat" in done.output
    relations = sf.Relations({"visits": sf.read(tmp_path / "visits.csv", ["user", "game"], "n")})
    same = sf.Coupled(2, sf.Gibbs(samples=8, burn_in=10)).fit(relations)
    np.testing.assert_allclose(sf.load(tmp_path / "m").factor("user"), same.factor("user"), rtol=1e-12)


@pytest.mark.parametrize("solver", [name for name in names("coupled") if name != "gibbs"])
def test_couple_saves_the_model_that_the_library_would_fit(files, tmp_path, solver):
    extra = ["--divergence", "0"] if solver == "langevin" else []
    extra += ["--burn-in", "10"] if solver == "langevin" else ["--starts", "2"]
    multiplicative = solver == "multiplicative"
    extra += ["--structure", "played=tucker", "--dispersion", "tags=3"] if multiplicative else []
    done = run(
        "couple", *files, *COLUMNS, *SETTINGS, *QUICK, "--seed", "3", "--solver", solver, *extra,
        "--out", tmp_path / "m",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    relations = sf.Relations(
        read_by_hand(files),
        absent={"tags": "zero"},
        divergence=0 if solver == "langevin" else 1,
        dispersion=None if solver == "langevin" else {"tags": 3} if multiplicative else 1,
        structure={"played": "tucker"} if multiplicative else "cp",
    )
    record = {
        "multiplicative": sf.Multiplicative(8),
        "variational": sf.Variational(8),
        "langevin": sf.Langevin("normal", samples=8, burn_in=10),
    }[solver]
    starts = 1 if solver == "langevin" else 2
    expected = sf.Coupled(2, record, seed=3, threads=1, starts=starts).fit(relations)
    found = sf.load(tmp_path / "m")
    assert found.solver == expected.solver
    for name, relation in relations.items():
        np.testing.assert_array_equal(
            found.predict(name, relation.tensor), expected.predict(name, relation.tensor)
        )


def test_what_is_printed_and_where(files, tmp_path):
    done = run(
        "couple", *files, *COLUMNS, *SETTINGS, *QUICK, "--test", "played=0.3", "--out", tmp_path / "m"
    )
    assert done.exit_code == 0, done.stderr
    relations = sf.Relations(read_by_hand(files), absent={"tags": "zero"})
    assert done.stdout.startswith(f"{relations}\n")
    shown = [line.split("  ")[0] for line in done.stdout.splitlines()]
    table = ["constant", "bias predictor", "played alone, CP by als", "played alone", "coupled"]
    assert shown[shown.index("constant") :][:5] == table
    assert "AUC" not in done.stdout  # hours are no links
    assert "mean divergence" in done.stdout
    assert f"wrote {tmp_path / 'm'}" in done.stdout
    assert "not private" in done.stderr
    assert "not private" not in done.stdout


def test_errors_at_held_out_entries_are_those_of_the_library(files, tmp_path):
    out = tmp_path / "m"
    found = couple_json(
        *files, *COLUMNS, *SETTINGS, *QUICK, "--test", "played=0.3", "--seed", "1", "--out", out
    )
    tables = read_by_hand(files)
    whole = sf.Relations(tables, absent={"tags": "zero"})
    train, test = whole["played"].tensor.split(0.3, seed=1)
    parts = {"played": train, "tags": tables["tags"]}
    relations = sf.Relations(parts, absent={"tags": "zero"})
    fit = sf.Coupled(2, sf.Multiplicative(8), seed=1, threads=1)
    expected = {
        "constant": rmse(test.values, np.full(test.n_entries, train.values.mean())),
        "bias predictor": sf.Biases().fit(train).rmse(test),
        "played alone, CP by als": sf.CP(seed=1).fit(train).rmse(test),
        "coupled": fit.fit(relations).rmse("played", test),
        "played alone": fit.fit({"played": train}).rmse("played", test),
    }
    held = found["held_out"]["played"]
    assert held["cells"] == test.n_entries
    assert {each["name"]: each["rmse"] for each in held["results"]} == pytest.approx(expected)
    assert all(each["auc"] is None for each in held["results"])
    assert (found["private"], found["written"]) == (False, [str(out)])
    assert found["coupling"] == [[1, 1, 0], [1, 0, 1]]
    assert found["relations"]["played"]["test"] == 0.3
    # What is saved has seen all entries.
    everything = fit.fit(whole).predict("played", test)
    np.testing.assert_array_equal(sf.load(out).predict("played", test), everything)
    divergence = found["relations"]["played"]["mean_divergence"]
    entries = whole["played"].tensor
    x, v = entries.values, fit.predict("played", entries)
    assert divergence == pytest.approx(np.mean(x * np.log(x / v) - x + v))


def test_cells_of_a_file_are_never_part_of_a_fit(world, files, tmp_path):
    """Among zeros they would count as such, unless they are known not to be observed."""
    test = write(
        tmp_path / "test.csv", "who,tag,times", [("u01", "t1", 3), ("u02", "t2", 0), ("u03", "t3", 1)]
    )
    tags = [line.split(",") for line in files[1].read_text().splitlines()[1:]]
    rest = [row for row in tags if row[:2] not in (["u01", "t1"], ["u02", "t2"], ["u03", "t3"])]
    left = write(tmp_path / "tags.csv", "who,tag,times", rest)
    tables = [files[0], left]
    out, held_out = tmp_path / "m", ["--test", f"tags={test}"]
    found = couple_json(*tables, *COLUMNS, *SETTINGS, *QUICK, *held_out, "--out", out)
    by_hand = read_by_hand(tables)
    unknown = pa.table({"user": ["u01", "u02", "u03"], "tag": ["t1", "t2", "t3"], "times": [np.nan] * 3})
    rows = pacsv.read_csv(left).rename_columns(["user", "tag", "times"])
    rows = pa.concat_tables([rows.cast(unknown.schema), unknown])
    by_hand["tags"] = sf.read(rows, ["user", "tag"], "times")
    relations = sf.Relations(by_hand, absent={"tags": "zero"})
    expected = sf.Coupled(2, sf.Multiplicative(8), threads=1).fit(relations)
    cells = {"user": ["u01", "u02", "u03"], "tag": ["t1", "t2", "t3"]}
    predicted = expected.predict("tags", **cells)
    np.testing.assert_array_equal(sf.load(out).predict("tags", **cells), predicted)
    constant, alone, coupled = found["held_out"]["tags"]["results"]
    assert (constant["name"], alone["name"]) == ("constant", "tags alone")
    mean = relations["tags"].tensor.values.sum() / relations["tags"].cells  # zeros included
    assert constant["rmse"] == pytest.approx(rmse([3, 0, 1], [mean] * 3))
    entries, unseen = relations["tags"].tensor, relations["tags"].unknown
    same_cells = sf.SparseTensor(
        np.concatenate([entries.coordinates, unseen], axis=1),
        np.concatenate([entries.values, np.full(3, np.nan)]),
        entries.modes,
    )
    single = sf.Relations({"tags": same_cells}, absent="zero")
    by_itself = sf.Coupled(2, sf.Multiplicative(8), threads=1).fit(single).predict("tags", **cells)
    assert alone["rmse"] == pytest.approx(rmse([3, 0, 1], by_itself))
    assert coupled["rmse"] == pytest.approx(rmse([3, 0, 1], predicted))
    assert coupled["auc"] == pytest.approx(auc([3, 0, 1], predicted))
    assert constant["auc"] == 0.5
    assert found["relations"]["tags"]["observed_cells"] == relations["tags"].cells


def test_coupling_helps_users_of_whom_the_table_knows_nothing(world, files, tmp_path):
    held_out = ["--test", f"played={world / 'held-out.csv'}"]
    args = [*files, *COLUMNS, *SETTINGS, "--rank", "2", "--threads", "1", "--starts", "3", *held_out]
    held = couple_json(*args, "--out", tmp_path / "m")["held_out"]["played"]
    errors = {each["name"]: each["rmse"] for each in held["results"]}
    assert errors["coupled"] < 0.95 * errors["played alone"]
    assert errors["coupled"] < errors["constant"]
    assert held["side_only"] > 0
    text = run("couple", *args, "--out", tmp_path / "m").stdout
    assert f"{held['cells']:,} held-out cells, {held['side_only']} of them known from other" in text


def test_where_coupling_does_harm_that_is_said(files, tmp_path):
    rng = np.random.default_rng(0)
    noise = [(f"u{u:02}", f"n{k}", rng.integers(1, 1000)) for u in range(40) for k in range(30)]
    other = write(tmp_path / "tags.csv", "who,tag,times", noise)
    args = [files[0], other, *COLUMNS, "--rank", "2", "--threads", "1", "--test", "played=0.3"]
    said = run("couple", *args, "--out", tmp_path / "m").stderr
    assert "played is predicted better by itself: the other tables may count too much" in said
    assert "better by itself" not in run("couple", *args, "--out", tmp_path / "m", "--quiet").stderr


def order_of(files, *flags, **settings):
    given = TableFlags(**{"modes": MODES[1:], "value": COLUMNS[-2:], **settings})
    tables = given.tables(files_by_name([str(file) for file in files]), CoupledSolver.multiplicative)
    rest = (2, CoupledSolver.multiplicative, 1, None, None, 0, 1)
    return CoupleOrder(tables, {}, *rest)


def test_a_share_of_a_table_of_zeros_is_one_of_all_cells(files):
    """The number held out is binomial: within six deviations it fails once in 5e8 for another seed."""
    order = order_of(files, absent=["tags=zero"], test=["tags=0.3"])
    parts = couple_data.divide(order, couple_data.find_sources(order))
    whole, train, test = parts.whole["tags"], parts.train["tags"], parts.tests["tags"]
    assert train.cells + test.n_entries == whole.cells
    assert abs(test.n_entries - 0.3 * whole.cells) < 6 * sqrt(0.3 * 0.7 * whole.cells)
    dense = np.zeros(whole.tensor.shape)
    dense[tuple(whole.tensor.coordinates)] = whole.tensor.values
    np.testing.assert_array_equal(test.values, dense[tuple(test.coordinates)])
    assert train.tensor.n_entries + np.count_nonzero(test.values) == whole.tensor.n_entries
    assert 0 < np.count_nonzero(test.values) < test.n_entries
    shown = {tuple(cell) for cell in train.unknown.T.tolist()}
    assert shown == {tuple(cell) for cell in test.coordinates.T.tolist()}


def test_too_many_zeros_to_hold_out(files, monkeypatch):
    monkeypatch.setattr(couple_data, "MOST_HELD_OUT", 100)
    order = order_of(files, absent=["tags=zero"], test=["tags=0.3"])
    with pytest.raises(sf.SettingError, match="hold out less, or name cells with --test tags=FILE"):
        couple_data.divide(order, couple_data.find_sources(order))


@pytest.mark.parametrize("size", [10, 2**31 - 1])
def test_cells_among_others_on_grids_of_any_size(size):
    rng = np.random.default_rng(0)
    cells = rng.integers(size - 5, size, (4, 300))
    others = rng.integers(size - 5, size, (4, 200))
    expected = [tuple(cell) in set(map(tuple, others.T)) for cell in cells.T]
    found = couple_data.among(cells, others, (size,) * 4)
    assert found.tolist() == expected
    assert 0 < found.sum() < 300


def test_files_of_other_kinds_named_tables_bins_duplicates_and_factors(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=rng.random((4, 3)))
    times = ["1998-04-01T10:00", "1998-04-01T12:00", "1998-04-02T10:00", "1998-05-02T10:00"]
    pq.write_table(
        pa.table({"place": [0, 0, 1, 3], "time": times, "n": [1.0, 3.0, 2.0, 4.0]}),
        tmp_path / "visits.parquet",
    )
    out = tmp_path / "m"
    args = [
        f"v={tmp_path / 'visits.parquet'}", f"about={tmp_path / 'a.npz'}", "--variable", "about=y",
        "--modes", "v=place,time:day", "about=place,kind", "--value", "v=n", "--bin", "day=day",
        *QUICK, "--out", out,
    ]  # fmt: skip
    refused = run("couple", *args, "--duplicates", "mean")
    assert refused.exit_code == 1  # labels here, numbers there
    assert "mode 'place' has labels in one of 'v' and 'about' only" in refused.stderr
    np.savetxt(
        tmp_path / "about.csv",
        [[p, k, rng.random()] for p in range(4) for k in range(3)],
        header="place,kind,x",
        delimiter=",",
        comments="",
        fmt=["%d", "%d", "%.3f"],
    )
    args[1] = f"about={tmp_path / 'about.csv'}"
    args[2:4] = ["--value", "about=x"]
    refused = run("couple", *args)
    assert refused.exit_code == 1
    assert "visits.parquet: 1 cells are given more than once" in refused.stderr
    found = couple_json(*args, "--duplicates", "mean", "--factors", "csv")
    assert found["modes"] == {"place": 4, "day": 3, "kind": 3}
    assert found["relations"]["v"]["entries"] == 3
    folder = tmp_path / "m-factors"
    assert found["written"] == [str(out), *(str(folder / f"{m}.csv") for m in ("place", "day", "kind"))]
    assert sf.load(out).predict("v", place=1, day="1998-04-02T23:00") > 0


def test_duplicates_of_each_table(tmp_path):
    for name in ("a", "b"):
        rows = ["u,v,1", "u,v,3", "x,y,2", "u,y,1", "x,v,4"]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"p,{name},n", *rows]))
    args = [tmp_path / "a.csv", tmp_path / "b.csv", "--modes", "a=p,a", "b=p,b", "--value", "n", *QUICK]
    out = ["--out", tmp_path / "m"]
    refused = run("couple", *args, *out, "--duplicates", "a=mean")
    assert (refused.exit_code, "b.csv: 1 cells are given more than once" in refused.stderr) == (1, True)
    for flags in (["a=mean", "b=last"], ["sum"], ["sum", "b=last"]):
        found = couple_json(*args, *out, "--duplicates", *flags)
        assert [each["entries"] for each in found["relations"].values()] == [4, 4]
    for wrong in ("a=most", "c=mean", "a="):
        assert run("couple", *args, *out, "--duplicates", wrong).exit_code == 2


def test_one_table_is_compared_with_no_fit_of_its_own(files, tmp_path):
    found = couple_json(
        files[0],
        *COLUMNS[:2],
        "--value",
        "hours",
        *QUICK,
        "--test",
        "played=0.2",
        "--out",
        tmp_path / "m",
    )
    names = [each["name"] for each in found["held_out"]["played"]["results"]]
    assert names == ["constant", "bias predictor", "coupled"]


def test_the_law_of_langevin_follows_the_divergence(files, tmp_path):
    args = [*files, *COLUMNS, *SETTINGS, *QUICK, "--solver", "langevin", "--burn-in", "5"]
    found = couple_json(*args, "--out", tmp_path / "m")
    assert sf.load(tmp_path / "m").posterior_.family == "poisson"
    assert found["relations"]["played"]["dispersion"] == 1
    assert found["convergence"]["rhat"] > 0
    found = couple_json(*args, "--divergence", "0", "--out", tmp_path / "m")
    assert sf.load(tmp_path / "m").posterior_.family == "normal"
    assert found["relations"]["played"]["dispersion"] is None
    text = run("couple", *args, "--out", tmp_path / "m").stdout
    assert "R-hat" in text
    assert "of the last sample" in text
    short = couple_json(*args, "--rounds", "2", "--out", tmp_path / "m")  # too short to be judged
    assert short["convergence"] is None


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([*MODES[:2], "--value", "hours"], 1, "--modes tags=A,B which columns of"),
        ([*MODES], 1, "--value played=C which holds the values; the columns are user, game, hours"),
        ([*COLUMNS, "--modes", "film=a,b"], 2, "there is no table 'film'"),
        ([*COLUMNS, "--modes", "user,game"], 2, "names no table"),
        (["--modes", "played=user", *COLUMNS[3:]], 2, "two columns or more"),
        (["--modes", "played=usr,game", "tags=who,tag", *COLUMNS[3:]], 1, "did you mean 'user'?"),
        (["--modes", "played=user,game:user", *COLUMNS[2:]], 1, "names a mode twice"),
        (["--modes", "played=user,game", "tags=who,tag", *COLUMNS[3:]], 1, "shares no mode"),
        ([*COLUMNS, "--value", "tags=n"], 2, "given twice for tags"),
        ([*COLUMNS, "--absent", "friends=zero"], 2, "one of played, tags"),
        ([*COLUMNS, "--absent", "tags=none"], 2, "use missing or zero"),
        ([*COLUMNS, "--absent", "tags="], 2, "nothing follows"),
        ([*COLUMNS, "--structure", "svd"], 2, "use cp or tucker"),
        ([*COLUMNS, "--divergence", "tags=4"], 2, "from 0 to 3"),
        ([*COLUMNS, "--divergence", "nan"], 2, "from 0 to 3"),
        ([*COLUMNS, "--dispersion", "tags=0"], 2, "above zero, or auto"),
        ([*COLUMNS, "--bin", "day=day"], 1, "--bin names 'day'"),
        ([*COLUMNS, "--bin", "user=year"], 1, "unknown time bin"),
        ([*COLUMNS, "--test", "0.2"], 2, "names no table"),
        ([*COLUMNS, "--test", "played=1.5"], 2, "between 0 and 1"),
        ([*COLUMNS, "--test", "played=none.csv"], 1, "there is no file none.csv"),
        ([*COLUMNS, "--rank", "0"], 1, "rank"),
        ([*COLUMNS, "--burn-in", "3"], 2, "belongs to --solver langevin"),
        ([*COLUMNS, "--solver", "langevin", "--divergence", "tags=0"], 2, "one divergence for all"),
        ([*COLUMNS, "--solver", "variational", "--dispersion", "2"], 1, "dispersion 1"),
        ([*COLUMNS, "--solver", "als"], 2, "als"),
        ([*COLUMNS, "--epsilon", "1"], 1, "--epsilon needs --unit"),
    ],
)
def test_errors_come_before_any_fit_and_leave_nothing(files, tmp_path, monkeypatch, args, code, message):
    monkeypatch.setattr(sf.Multiplicative, "ask", None)
    monkeypatch.setattr(sf.Langevin, "ask", None)
    monkeypatch.chdir(tmp_path)
    result = run("couple", *files, *args, "--out", tmp_path / "m")
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["played=a.csv", "played=b.csv"], "two tables are called 'played'"),
        (["=a.csv"], "give NAME=FILE"),
        (["played="], "give NAME=FILE"),
    ],
)
def test_tables_without_a_name_or_a_file(tables, message, tmp_path):
    result = run("couple", *tables, *COLUMNS, "--out", tmp_path / "m")
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_a_file_that_is_not_there_or_a_model(files, model, tmp_path):
    for file, message in ((tmp_path / "no.csv", "there is no file"), (model, "the folder of a model")):
        result = run("couple", files[0], f"tags={file}", *COLUMNS, "--out", tmp_path / "m")
        assert (result.exit_code, message in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("u07", "g99", 3)], "mode 'game' has no level 'g99': no table has it"),
        ([("u07", "g1", "")], "not finite"),
        ("known", "are entries of 'played' too"),
    ],
)
def test_test_files_that_cannot_be_used(files, tmp_path, monkeypatch, rows, message):
    monkeypatch.setattr(sf.Multiplicative, "ask", None)
    if rows == "known":
        rows = [files[0].read_text().splitlines()[1].split(",")]
    write(tmp_path / "t.csv", "user,game,hours", rows)
    result = run(
        "couple", *files, *COLUMNS, "--test", f"played={tmp_path / 't.csv'}", "--out", tmp_path / "m"
    )
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_folder_of_something_else_is_refused_before_a_file_is_read(tmp_path):
    (tmp_path / "thesis.txt").write_text("dear to someone")
    result = run("couple", "a.csv", "--modes", "a=x,y", "--out", tmp_path)
    assert (result.exit_code, "holds no model" in result.stderr) == (1, True)


def test_ctrl_c_leaves_an_older_model(files, model, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = {path.name: path.read_bytes() for path in model.iterdir()}
    monkeypatch.setattr(FitProgress, "__call__", interrupt)
    result = run("couple", *files, *COLUMNS, *QUICK, "--out", model)
    assert result.exit_code == 130
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert [path.name for path in model.parent.iterdir()] == ["coupled"]


# -- other commands -------------------------------------------------------------------------------


@pytest.fixture
def cells(tmp_path):
    return write(tmp_path / "cells.csv", "user,game,note", [("u01", "g2", "007"), ("u20", "g3", "x")])


def test_predictions_with_reliance_and_an_interval(model, cells):
    result = run("predict", model, cells, "--relation", "played", "--reliance", "--interval", "0.8")
    assert result.exit_code == 0, result.stderr
    as_text = pacsv.ConvertOptions(column_types={"note": pa.string()})
    found = pacsv.read_csv(io.BytesIO(result.stdout_bytes), convert_options=as_text)
    assert found.column_names == ["user", "game", "note", "prediction", "low", "high", "reliance"]
    assert found.column("note").to_pylist() == ["007", "x"]
    expected = sf.load(model).predict(
        "played", user=["u01", "u20"], game=["g2", "g3"], reliance=True, interval=0.8
    )
    for name, values in zip(found.column_names[3:], expected, strict=True):
        np.testing.assert_allclose(found.column(name).to_numpy(), values, rtol=1e-12)
    assert found.column("reliance").to_pylist()[0] == 1  # nothing is known of what this user played


def test_predictions_to_a_file_under_another_name(model, cells, tmp_path):
    out = tmp_path / "out.parquet"
    result = run("predict", model, cells, "--relation", "played", "--column", "hours", "--out", out)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert pq.read_table(out).column_names == ["user", "game", "note", "hours"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "say with --relation which of its tables the cells are of, played, tags"),
        (["--relation", "films"], "has no relation 'films'; its relations are played, tags"),
        (["--relation", "tags"], "there is no column 'tag'"),
        (["--relation", "played", "--own", "own.csv"], "leave out --own"),
        (["--relation", "played", "--unseen", "bias"], "--unseen bias"),
        (["--relation", "played", "--interval", "2"], "between 0 and 1"),
        (["--relation", "played", "--column", "note"], "choose another with --column"),
    ],
)
def test_predictions_that_cannot_be_made(model, cells, tmp_path, flags, message):
    result = run("predict", model, cells, *flags, "--out", tmp_path / "out.csv")
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / "out.csv").exists()


def test_labels_that_no_table_knows_and_columns_that_are_taken(model, tmp_path):
    table = write(tmp_path / "c.csv", "user,game,low", [("nobody", "g2", 1)])
    known = ["predict", model, table, "--relation", "played"]
    result = run(*known)
    assert (result.exit_code, "mode 'user' has no level 'nobody'" in result.stderr) == (1, True)
    result = run(*known, "--interval", "0.9")
    assert (result.exit_code, "has a column 'low' already: rename it" in result.stderr) == (1, True)


def test_no_interval_without_a_posterior(files, cells, tmp_path):
    out = tmp_path / "m"
    assert run("couple", *files, *COLUMNS, *QUICK, "--out", out).exit_code == 0
    result = run("predict", out, cells, "--relation", "played", "--interval", "0.9")
    assert (result.exit_code, "'variational', 'gibbs' or 'langevin'" in result.stderr) == (1, True)


def test_models_of_one_table_have_no_relations(files, cells, tmp_path):
    out = tmp_path / "m"
    args = ["--modes", "user", "game", "--value", "hours", "--rank", "1", "--rounds", "1"]
    assert run("complete", files[0], *args, "--out", out).exit_code == 0
    for flags in (["--relation", "played"], ["--reliance"]):
        result = run("predict", out, cells, *flags)
        assert (result.exit_code, "is no coupled model" in result.stderr) == (1, True)


def test_explain_and_describe(model, tmp_path):
    said = run("explain", model)
    assert (said.exit_code, "not private" in said.stdout) == (0, True)
    assert run("explain", model, "--json").stdout == "null\n"
    shown = run("describe", model)
    assert (shown.exit_code, "is the folder of a model" in shown.stderr) == (1, True)


def test_components_promise_what_they_did_but_predict_nothing(cells, tmp_path):
    tensor = np.einsum("ia,ja,ka->ijk", *([np.eye(4)[:, :2]] * 3))
    sf.PowerMethod(2).fit(tensor).save(tmp_path / "m")
    said = run("explain", tmp_path / "m")
    assert (said.exit_code, "not private" in said.stdout) == (0, True)
    result = run("predict", tmp_path / "m", cells)
    assert (result.exit_code, "components" in result.stderr) == (1, True)


def test_tables_with_semicolons_and_other_dates(tmp_path):
    """Each table is written in its own way, and says so by its name."""
    rows = [
        (user, f"{day:02}/02/2020", 1 + (user * day) % 4) for user in range(6) for day in range(1, 7)
    ]
    write(tmp_path / "a.csv", "user|day|hours", [("|".join(map(str, row)),) for row in rows])
    iso = [(user, "-".join(reversed(day.split("/"))), hours) for user, day, hours in rows]
    write(tmp_path / "b.csv", "user,day,hours", iso)
    write(tmp_path / "c.csv", "user,game,hours", [(user, user % 3, 2) for user in range(6)])
    columns = ["--value", "hours", "--bin", "day=day", *QUICK]
    outs = {}
    for name, how in {
        "a": ["--separator", "t=|", "--date-format", "t=%d/%m/%Y"],
        "a again": ["--date-format", "%d/%m/%Y"],  # the header shows the separator
        "b": [],
    }.items():
        file = tmp_path / f"{name[0]}.csv"
        modes = ["--modes", "t=user,day", "c=user,game"]
        outs[name] = tmp_path / name
        result = run(
            "couple", f"t={file}", tmp_path / "c.csv", *modes, *columns, *how, "--out", outs[name]
        )
        assert result.exit_code == 0, result.stderr
    days = [sf.load(out).factor("day") for out in outs.values()]
    np.testing.assert_array_equal(days[0], days[2])
    np.testing.assert_array_equal(days[1], days[2])
    modes = ["--modes", "c=user,game", "d=user,game"]
    files = [f"c={tmp_path / 'c.csv'}", f"d={tmp_path / 'c.csv'}"]
    refused = run(
        "couple", *files, *modes, "--value", "hours", "--date-format", "%d", "--out", tmp_path / "x"
    )
    assert refused.exit_code == 1
    assert "say with --bin" in refused.stderr
