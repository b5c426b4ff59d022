"""Paper E's studies on invented counts of UCLAF's shape: what is held out, jobs, files, refusals."""

import csv
import io
import json
from dataclasses import replace

import command_line
import numpy as np
import pytest
from rich.console import Console

from sfumato.data.datasets import Uclaf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.metrics import auc
from sfumato.papers import ermis, ermis_data
from sfumato.papers.ermis_data import AS_PRINTED, LINKS, SHARED, by_means, by_visits
from sfumato.papers.runner import Done, Job, Point
from sfumato.solvers.coupled.multiplicative import Multiplicative
from sfumato.solvers.coupled.variational import Variational

SHAPE = (12, 10, 3)
CELLS = 12 * 10 * 3


@pytest.fixture(autouse=True)
def invented(monkeypatch):
    """Small counts in place of UCLAF, which tests need not have."""
    random = np.random.default_rng(5)
    counts = random.poisson(np.einsum("i,j,k->ijk", *(random.gamma(1.0, 1.0, n) for n in SHAPE)))
    cells = np.nonzero(counts)
    modes = tuple(Mode(n, k) for n, k in zip(("user", "location", "activity"), SHAPE, strict=True))
    data = Uclaf(
        SparseTensor(np.stack(cells), counts[cells].astype(float), modes),
        counts.sum(axis=2),
        random.poisson(1.0, (10, 4)),
        np.eye(12),
        np.eye(3),
    )
    monkeypatch.setattr("sfumato.data.datasets.uclaf", lambda: data)
    ermis_data.uclaf.cache_clear()
    yield counts
    ermis_data.uclaf.cache_clear()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, study in ermis.QUICK.items():
        monkeypatch.setitem(ermis.QUICK, name, replace(study, sweeps=3))


def run(*args):
    return command_line.run("reproduce", "ermis", *args)


# -- data -----------------------------------------------------------------------------------------


def test_a_part_of_all_cells_is_held_out_and_zeros_are_observed(invented):
    problem = ermis_data.some_cells(0.8, 3)
    assert (problem.train.n_entries, problem.test.n_entries) == (72, 288)
    both = np.concatenate([problem.train.coordinates, problem.test.coordinates], axis=1)
    assert len(np.unique(both, axis=1).T) == CELLS
    assert (problem.test.values == (invented > 0)[tuple(problem.test.coordinates)]).all()
    assert 0 in problem.train.values
    other = ermis_data.some_cells(0.8, 4)
    assert not np.array_equal(problem.test.coordinates, other.test.coordinates)


def test_whole_users_are_held_out():
    problem = ermis_data.whole_users(4, 3)
    held = set(problem.test.coordinates[0].tolist())
    assert len(held) == 4
    assert problem.test.n_entries == 4 * 30
    assert not held & set(problem.train.coordinates[0].tolist())


def test_entries_are_split_and_all_else_is_missing(invented):
    problem = ermis_data.some_entries(0.3, 3)
    there = int((invented > 0).sum())
    assert problem.train.n_entries == round(0.3 * there)
    assert problem.train.n_entries + problem.test.n_entries == there
    assert 0 < problem.train.values.min() <= problem.test.values.max() <= 1


def test_zeros_in_closed_form_are_the_same_data():
    """Below one half missing, zeros are not written out: the fit has to be the same."""
    problem = ermis_data.some_cells(0.3, 3)
    closed = problem.relations("cp", 1.0, AS_PRINTED, "binary")[LINKS]
    assert (closed.absent, closed.cells) == ("zero", problem.train.n_entries)
    recipe = ermis.RECIPES["coupled KL"]
    ours = ermis.fitted(problem, recipe, "cp", 20).predict(LINKS, problem.test)
    written = ermis_data.Problem(problem.train, problem.test.take(np.arange(9)), problem.seed)
    assert not written.mostly_seen
    assert ermis.fitted(written, recipe, "cp", 20).predict(LINKS, problem.test) == pytest.approx(ours)


def test_relations_couple_as_printed_and_as_shared():
    problem = ermis_data.some_cells(0.8, 3)
    printed = problem.relations("tucker", 0.0, AS_PRINTED, "logarithm", dispersion={"places": 7.0})
    assert printed.coupling.astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]
    assert [relation.structure for relation in printed.values()] == ["tucker", "cp", "cp"]
    assert [relation.dispersion for relation in printed.values()] == [1.0, 1.0, 7.0]
    assert printed["trips"].tensor.values.max() == 1
    assert len(problem.relations("cp", 1.0, SHARED, "binary").modes) == 4


def test_the_simple_predictor_is_the_product_of_means():
    problem = ermis_data.whole_users(4, 3)
    train = np.zeros(SHAPE)
    train[tuple(problem.train.coordinates)] = problem.train.values
    kept = np.unique(problem.train.coordinates[0])
    location, activity = train[kept].mean(axis=(0, 2)), train[kept].mean(axis=(0, 1))
    _, j, k = problem.test.coordinates
    # A user without a cell counts as an average one.
    expected = location[j] * activity[k] / train[kept].mean()
    assert by_means(problem) == pytest.approx(expected)
    assert auc(problem.test.values, by_means(problem)) > 0.6


def test_pairs_of_the_table_of_trips_come_first(invented):
    problem = ermis_data.some_cells(0.8, 3)
    ranks = by_visits(problem)
    visited = (invented.sum(axis=2) > 0)[problem.test.coordinates[0], problem.test.coordinates[1]]
    assert ranks[visited].min() > ranks[~visited].max()
    assert ranks[~visited] == pytest.approx(by_means(problem)[~visited])


# -- studies --------------------------------------------------------------------------------------


def test_a_table_has_ours_beside_the_printed(tmp_path):
    out = tmp_path / "t"
    order = ("--table", "6.5", "--quick", "--repetitions", 1, "--out", out, "--processes", 1)
    result = run(*order)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "beside-printed.csv",
        "findings.json",
        "jobs.jsonl",
        "picture.png",
        "results.csv",
        "settings.json",
        "summary.csv",
    ]
    assert "…" not in result.stdout
    assert "(0.981)" in result.stdout
    with (out / "beside-printed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 3 * 2  # AUC and seconds
    first = next(row for row in rows if row["series"] == "CTF-VB" and row["at"] == "0.6")
    assert float(first["difference"]) == pytest.approx(float(first["ours"]) - 0.981)
    settings = json.loads((out / "settings.json").read_text())
    assert settings["command"].startswith("sfumato reproduce ermis --table 6.5 --quick")
    assert settings["recipes"]["CTF-ML"]["sides"] == {k: list(v) for k, v in AS_PRINTED.items()}
    before = (out / "jobs.jsonl").read_text()
    again = run(*order, "--json")  # nothing is left to do
    assert (out / "jobs.jsonl").read_text() == before
    findings = json.loads(again.stdout)["findings"]
    worse = {(row["series"], row["at"]) for row in findings["worse_than_printed"]}
    assert worse == {
        (row["series"], float(row["at"]))
        for row in rows
        if row["measure"] == "auc" and float(row["difference"]) < -0.02
    }
    assert "CTF-VB cp" in findings["better_than_means_by"]


@pytest.mark.parametrize("name", ["6.3", "6.5"])
def test_figures_are_asked_for_by_their_own_option(name, tmp_path, monkeypatch):
    """Table 6.5 and figure 6.5 are two things."""
    if name == "6.3":  # the invented data have 12 users
        study = replace(ermis.QUICK["figure 6.3"], places=(2, 4))
        monkeypatch.setitem(ermis.QUICK, "figure 6.3", study)
    out = tmp_path / "f"
    order = ("--figure", name, "--quick", "--repetitions", 1, "--out", out, "--processes", 1)
    result = run(*order)
    assert result.exit_code == 0, result.stderr
    assert f"figure {name}, auc by" in result.stdout
    assert (out / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "settings.json").read_text())["name"] == f"figure {name}"


@pytest.mark.parametrize("study", [*ermis.STUDIES.values(), *ermis.QUICK.values()])
def test_every_study_is_drawn(study, tmp_path):
    results = [
        Done(job, tuple(Point(job.at[0], 0.5, measure) for measure in study.shown), 0.0)
        for job in study.jobs()
    ]
    assert [path.name for path in study.draw(tmp_path, results)] == ["beside-printed.csv", "picture.png"]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", list(ermis.STUDIES))
def test_tables_fit_into_a_terminal(name):
    study = replace(ermis.STUDIES[name], repetitions=1)
    done = [
        Done(job, tuple(Point(job.at[0], 0.5, measure) for measure in study.shown), 0.0)
        for job in study.jobs()
    ]
    console = Console(width=80, file=io.StringIO())
    for part in study.tables(done):
        console.print(part)
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("0.500") == len(study.jobs()) * len(study.shown)


def test_rmse_has_to_be_small(tmp_path):
    out = tmp_path / "t"
    order = ("--table", "6.1", "--quick", "--repetitions", 1, "--out", out, "--processes", 1)
    result = run(*order, "--json")
    assert result.exit_code == 0, result.stderr
    findings = json.loads(result.stdout)["findings"]
    assert all(row["ours"] > row["printed"] + 0.02 for row in findings["worse_than_printed"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "say which table or figure of ermis with --table: 6.1, 6.2, 6.5, 7.1, 7.2"),
        (["--table", "6.1", "--figure", "6.3"], "say which table or figure"),
        (
            ["--table", "6.3"],
            "tables 6.1, 6.2, 6.5, 7.1, 7.2, 7.3, 7.4, 7.5, 7.6, 7.7, 7.8, 8.1; got 6.3",
        ),
        (["--figure", "6.4"], "figures 6.3, 6.5, 6.6, 6.7, 7.1, 7.2, 7.3"),
        (["--table", "6.1", "--scaling", "minmax"], "--scaling does not belong to ermis"),
    ],
)
def test_bad_orders_are_refused(args, message, tmp_path):
    result = run(*args, "--out", tmp_path / "f")
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "f").exists()


def test_jobs_are_the_thesis_and_quick_ones_are_fewer():
    jobs = ermis.STUDIES["6.2"].jobs()
    assert {job.at[0] for job in jobs} == {0.4, 0.6, 0.8, 0.9, 0.95}
    assert {job.repetition for job in jobs} == set(range(10))
    assert len({(job.series, job.model, job.at, job.repetition) for job in jobs}) == len(jobs)
    for name, study in ermis.STUDIES.items():
        assert len(ermis.QUICK[name].jobs()) <= len(study.jobs()) / 5


def test_at_p_2_only_raised_values_are_fitted():
    """A zero is infinitely far from every model under the Itakura-Saito divergence."""
    at_two = {job.series for job in ermis.STUDIES["figure 6.5"].jobs() if job.at == (2.0,)}
    assert at_two == {"coupled beta, +0.01", ermis.MEANS}


def test_the_axis_p_sets_the_divergence():
    study = ermis.QUICK["figure 6.5"]

    def found(p):
        return study.do_job(Job("coupled beta", "cp", (p,), 0, study.data))[0].error

    assert len({found(0.0), found(1.0), found(1.5)}) == 3


def test_repetitions_have_splits_and_starts_of_their_own():
    study = ermis.QUICK["6.5"]
    found = {study.do_job(Job("TF-ML", "cp", (0.6,), n, study.data))[0].error for n in range(3)}
    assert len(found) == 3
    simple = {study.do_job(Job(ermis.MEANS, "", (0.6,), n, study.data))[0].error for n in range(3)}
    assert len(simple) == 3


@pytest.mark.parametrize(
    ("series", "solver"),
    [
        ("TF-ML", Multiplicative(7)),
        ("KL, MAP", Multiplicative(7, prior_shape=2.0, prior_mean=0.5)),
        ("CTF-VB", Variational(7, prior_shape=0.5, prior_mean=10.0)),
        ("TF-VB, A 100, B 1", Variational(7, prior_shape=100.0, prior_mean=1.0, learn_prior=False)),
    ],
)
def test_recipes_say_how_to_solve(series, solver):
    problem = ermis_data.some_cells(0.8, 3)
    assert ermis.fitted(problem, ermis.RECIPES[series], "cp", 7).solver == solver


def test_recipes_say_rank_scaling_and_what_is_added():
    problem = ermis_data.some_cells(0.8, 3)
    recipe = ermis.RECIPES["CTF-ML, K 20"]
    assert recipe.rank == 20
    assert ermis.fitted(problem, replace(recipe, rank=3), "cp", 1).model_.rank == 3
    scaled = {name: problem.relations("cp", 1.0, AS_PRINTED, name) for name in ermis_data.SCALINGS}
    counts = ermis_data.uclaf().tables["places"].ravel()
    np.testing.assert_array_equal(scaled["binary"]["places"].tensor.values, counts > 0)
    np.testing.assert_allclose(scaled["largest"]["places"].tensor.values, counts / counts.max())
    logarithms = np.log(counts + 1) / np.log(counts.max() + 1)
    np.testing.assert_allclose(scaled["logarithm"]["places"].tensor.values, logarithms)
    raised = problem.relations("cp", 1.0, AS_PRINTED, "binary", more=0.01)
    for name, relation in scaled["binary"].items():
        np.testing.assert_allclose(raised[name].tensor.values, relation.tensor.values + 0.01)


def test_every_printed_value_belongs_to_a_row():
    studies = {study.name: study for study in ermis.STUDIES.values()}
    for name, places in ermis.PRINTED.items():
        study = studies[name]
        for (series, model, measure), values in places.items():
            assert (series, model) in study.rows
            assert measure in study.shown
            assert set(values) <= set(study.places)
