"""Paper E's tables over sites on invented ratings: who is at which site, jobs, rows, files."""

import csv
import io
import json
from dataclasses import replace

import command_line
import numpy as np
import pytest
from rich.console import Console

import sfumato as sf
from sfumato.papers import ermis, ermis_claimed, ermis_local, ermis_sharing
from sfumato.papers.ermis_sharing import ALONE, EACH, OPEN, POOLED, REFITTED, SHARES, TOGETHER, Job
from sfumato.papers.ermis_sharing_printed import PRINTED
from sfumato.papers.runner import Done, Point
from sfumato.privacy.caveats import without_warnings
from sfumato.solvers.behind.fitting import Length

USERS, ITEMS = 120, 40
TINY = {
    "7.2": ("sites", (2,)),
    "7.3": ("sites", (3,)),
    "7.6": ("sites", (1,)),
    "7.7": ("sites", (1, 4)),
}


@pytest.fixture(autouse=True)
def invented(monkeypatch):
    """Small ratings in place of MovieLens."""
    modes = (sf.Mode("user", USERS), sf.Mode("item", ITEMS))
    made = sf.synthetic.typical(modes, 2000, seed=1).tensor
    values = np.clip(np.round(3 + made.values / made.values.std()), 1, 5)
    data = sf.SparseTensor(made.coordinates, values, modes, (1.0, 5.0))
    monkeypatch.setattr(ermis_sharing, "ratings", lambda: data)
    ermis_sharing.split.cache_clear()
    yield data
    ermis_sharing.split.cache_clear()


def tiny(name):
    table = ermis_sharing.TABLES[name]
    epsilons = (10.0, 1.0) if name == "7.2" else (1.0,)
    return replace(table, sites=TINY[name][1], epsilons=epsilons, passes=2)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """The thesis' algorithms with a few passes, and fits behind noise with a few sweeps."""
    monkeypatch.setattr("sfumato.solvers.behind.received.usual_length", lambda *_: Length(15, 1))
    for name, (settings, rows) in ermis_claimed.BY_TABLE.items():
        monkeypatch.setitem(ermis_claimed.BY_TABLE, name, (replace(settings, passes=2), rows))


# -- sites ----------------------------------------------------------------------------------------


def test_every_rating_is_at_one_site(invented):
    whole = ermis_sharing.split(3)
    assert whole.train.n_entries + whole.test.n_entries == invented.n_entries
    assert whole.test.n_entries == pytest.approx(0.2 * invented.n_entries, abs=1)
    sites = [whole.site(number, 7) for number in range(1, 8)]
    assert sum(site.train.n_entries for site in sites) == whole.train.n_entries
    assert sum(site.test.n_entries for site in sites) == whole.test.n_entries
    labels = np.concatenate([site.train.modes[0].labels for site in sites])
    assert sorted(labels) == list(range(USERS))


def test_a_site_s_ratings_are_those_that_were_there():
    whole = ermis_sharing.split(0)
    for part, site in zip(whole, whole.site(2, 5), strict=True):
        users = site.modes[0].labels[site.coordinates[0]]
        there = np.isin(part.coordinates[0], site.modes[0].labels)
        assert np.array_equal(part.coordinates[0][there], users)
        assert np.array_equal(part.values[there], site.values)


def test_who_is_at_site_1_is_random():
    def first(seed):
        return ermis_sharing.split(seed).site(1, 4).train

    assert not np.array_equal(first(0).values, first(1).values)
    assert np.array_equal(first(1).values, first(1).values)


# -- jobs -----------------------------------------------------------------------------------------


def test_jobs_are_the_printed_ones_and_those_beside_them():
    jobs = ermis_sharing.TABLES["7.7"].jobs()
    assert {job.about.get("epsilon") for job in jobs} == {None, 10.0, 3.0, 1.0, 0.1}
    claimed = {ermis_claimed.OPEN, *ermis_claimed.BY_TABLE["table 7.7"][1]}
    assert {job.series for job in jobs} == {*OPEN, POOLED, EACH, SHARES, *claimed}
    of_claims = [job for job in jobs if job.series in claimed]
    assert {job.about.get("epsilon") for job in of_claims} == {None, 10.0, 1.0, 0.1}  # those printed
    assert {job.at for job in jobs if job.series == SHARES} == {(5,), (10,)}
    assert {job.at for job in jobs if job.series == POOLED} == {(1, 2, 5, 10)}
    assert {job.at for job in jobs if job.series == EACH} == {(2,), (5,), (10,)}
    assert len(set(jobs)) == len(jobs)
    for name, table in ermis_sharing.TABLES.items():
        assert len(ermis_sharing.QUICK[name].jobs()) <= 0.6 * len(table.jobs())


def test_a_site_that_is_everybody_is_the_pooled_fit():
    table = tiny("7.7")
    data = (("epsilon", 1.0), ("unit", "entry"))
    with without_warnings():
        pooled = {point.at: point.error for point in table.do_job(Job(POOLED, "", (1, 4), 0, data))}
        whole = ermis_sharing.split(0)
        model = ermis_sharing.private_model(whole.train, "entry", 1.0, 1e-4, sf.Trust(), 1000)
        model.fit(whole.train)
    assert pooled[1] == pytest.approx(model.rmse(whole.test))
    assert pooled[4] == pytest.approx(model.rmse(whole.site(1, 4).test))


def test_each_site_has_more_noise_and_a_refit_beside_it():
    table, data = tiny("7.7"), (("epsilon", 1.0), ("unit", "entry"))
    with without_warnings():
        (pooled,) = table.do_job(Job(POOLED, "", (4,), 0, data))
        each, refitted = table.do_job(Job(EACH, "", (4,), 0, data))
    assert (each.part, refitted.part) == ("X1", f"X1{REFITTED}")
    assert len({pooled.error, each.error, refitted.error}) == 3


def test_open_fits_know_their_site_alone():
    table = tiny("7.2")
    whole = ermis_sharing.split(0)
    first, second = table.do_job(Job(ermis_sharing.ALONE_CONSTANT, "", (2,), 0))
    for point, number in ((first, 1), (second, 2)):
        site = whole.site(number, 2)
        guess = site.train.values.mean()
        assert point.error == pytest.approx(np.sqrt(np.mean((site.test.values - guess) ** 2)))
    assert [point.part for point in table.do_job(Job(TOGETHER, "", (2,), 0))] == ["X1", "X2"]


# -- noise on every value -------------------------------------------------------------------------


def local_job(row, n=2, epsilon=1.0):
    return Job(row, "", (n,), 0, (("epsilon", epsilon), ("unit", "value")))


def test_noise_on_values_is_where_the_thesis_has_it():
    """In tables 7.2 and 7.3; what has left all sites does not depend on how many there are."""
    for name, table in ermis_sharing.TABLES.items():
        jobs = [job for job in table.jobs() if job.about.get("unit") == "value"]
        assert bool(jobs) == (name in {"7.2", "7.3"})
        for job in jobs:
            everybody = job.series in ermis_local.EVERYBODY
            assert job.at == table.sites if everybody else len(job.at) == 1
    (point,) = tiny("7.3").do_job(local_job(ermis_local.NOISY_MEAN, 3))
    whole = ermis_sharing.split(0)
    noisy = sf.privatise(whole.train, 1.0, channel="geometric", seed=ermis_sharing.NOISE_SEED)
    wrong = whole.site(1, 3).test.values - noisy.tensor.values.mean()
    assert point.error == pytest.approx(np.sqrt(np.mean(wrong**2)))


def test_the_thesis_takes_noisy_values_for_clean_and_ours_does_not():
    """At epsilon 1 noise has a deviation of 5.6 where values have 1: that is fitted, or known."""
    table, whole = tiny("7.2"), ermis_sharing.split(0)
    spread = whole.site(1, 2).test.values.std()
    with without_warnings():
        errors = {
            row: table.do_job(local_job(row))[0].error
            for row in (*ermis_local.EVERYBODY, *ermis_local.BESIDE_RAW)
        }
    assert errors["LDP1, z as clean"] > 1.2 * spread
    assert errors["LDP1, geometric"] < 1.1 * spread
    assert errors["LDP2, geometric"] < errors["LDP2, z as clean"]
    assert errors["LDP2, best channel"] < errors["LDP1, best channel"]


def test_quick_tables_of_noisy_values_have_few_users(invented):
    assert {ermis_sharing.QUICK[name].users for name in ("7.2", "7.3")} == {600}
    table = replace(tiny("7.2"), users=30)
    (first, _) = table.do_job(Job(ermis_sharing.ALONE_CONSTANT, "", (2,), 0))
    few = ermis_sharing.split(0, 30)
    assert few.train.shape == (30, ITEMS)
    assert few.train.n_entries + few.test.n_entries < invented.n_entries / 2
    site = few.site(1, 2)
    assert first.error == pytest.approx(
        np.sqrt(np.mean((site.test.values - site.train.values.mean()) ** 2))
    )
    assert ermis_sharing.split(0, 10**6).train.shape == (USERS, ITEMS)


# -- what comes of it -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_a_table_has_ours_beside_the_printed_and_alone(name, tmp_path, monkeypatch):
    monkeypatch.setitem(ermis_sharing.QUICK, name, tiny(name))
    order = ("ermis", "--table", name, "--quick", "--out", tmp_path / "t", "--processes", 1)
    result = command_line.run("reproduce", *order)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "findings.json",
        "jobs.jsonl",
        "picture.png",
        "results.csv",
        "settings.json",
        "summary.csv",
        "table.csv",
    ]
    assert "noise is seeded" in result.stdout
    assert "…" not in result.stdout
    with (tmp_path / "t" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = [row["row"] for row in rows]
    several = {EACH, f"{EACH}{REFITTED}"} if name != "7.6" else set()
    local = {*ermis_local.EVERYBODY, *ermis_local.BESIDE_RAW}
    assert local & set(names) == (local if name in {"7.2", "7.3"} else set())
    assert {ALONE, POOLED, *several, *ermis_claimed.BY_TABLE[f"table {name}"][1]} <= set(names)
    assert (SHARES in names) == (name in {"7.3", "7.7"})
    assert any(row.startswith("printed") for row in names)
    settings = json.loads((tmp_path / "t" / "settings.json").read_text())
    assert "seeded" in settings["noise"]
    again = json.loads(command_line.run("reproduce", *order, "--json").stdout)
    gains = again["findings"]["gained_by_sharing"]
    if name == "7.6":  # there is one site
        assert not gains
        return
    assert 0 <= again["findings"]["signs_foreseen"] <= again["findings"]["signs"] < len(gains)
    alone = next(row for row in rows if row["row"] == ALONE)
    for gain in gains:
        row = next(
            row
            for row in rows
            if (row["row"], row["unit"]) == (gain["series"], gain["unit"])
            and float(row["epsilon"]) == gain["epsilon"]
        )
        column = f"X1 of {gain['sites']}"
        assert gain["measured"] == pytest.approx(1 - float(row[column]) / float(alone[column]))
        unforeseen = gain["series"].endswith(REFITTED) or gain["unit"] == "value"
        assert (gain["expected"] is None) == unforeseen


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("tables", ["TABLES", "QUICK"])
def test_every_table_is_drawn_and_fits_into_a_terminal(name, tables, tmp_path):
    table = getattr(ermis_sharing, tables)[name]
    results = []
    for job in table.jobs():
        parts = [f"X{k}" for k in range(1, table.scored + 1)]
        parts += [f"X1{REFITTED}"] if job.series == EACH else []
        results.append(Done(job, tuple(Point(n, 0.876, p) for n in job.at for p in parts), 0.0))
    drawn = table.draw(tmp_path, results)
    assert [path.name for path in drawn] == ["table.csv", "picture.png"]
    assert drawn[1].read_bytes().startswith(b"\x89PNG")
    console = Console(width=80, file=io.StringIO())
    for part in table.tables(results):
        console.print(part)
    text = console.file.getvalue()
    assert "…" not in text
    printed = sum(row.epsilon is None or row.epsilon in table.epsilons for row in PRINTED[table.name])
    assert text.count("printed,") == printed
    refitted = sum(job.series == EACH for job in table.jobs())
    cells = sum(len(job.at) * table.scored for job in table.jobs()) + refitted
    assert text.count("0.876") == cells


def test_every_printed_value_has_a_column():
    for name, table in ermis_sharing.TABLES.items():
        for row in PRINTED[f"table {name}"]:
            assert set(table.columns) <= set(row.values)
            assert row.epsilon in (None, *table.epsilons)


def test_the_paper_has_its_chapters():
    assert ermis.PAPER.kinds == {
        "table": ["6.1", "6.2", "6.5", *(f"7.{n}" for n in range(1, 9)), "8.1"],
        "figure": [
            "6.3",
            "6.5",
            "6.6",
            "6.7",
            *(f"7.{n}" for n in range(1, 16)),
            *(f"8.{n}" for n in range(1, 7)),
        ],
    }
    assert list(ermis.PAPER.quick) == list(ermis.PAPER.full)
    for name, study in ermis.PAPER.full.items():
        assert name in (study.title, study.title.removeprefix("table "))
        assert ermis.PAPER.quick[name].title == study.title
        assert len(ermis.PAPER.quick[name].jobs()) <= len(study.jobs())


@pytest.mark.parametrize("figure", [*ermis_sharing.FIGURES, *ermis_sharing.QUICK_FIGURES])
def test_every_figure_is_drawn(figure, tmp_path):
    study = {**ermis_sharing.FIGURES, **ermis_sharing.QUICK_FIGURES}[figure]
    done = [Done(job, tuple(Point(n, 0.9, "X1") for n in job.at), 0.0) for job in study.jobs()]
    assert [path.name for path in study.draw(tmp_path, done)] == ["table.csv", "picture.png"]


def test_what_has_grown_beyond_all_bounds_is_said():
    assert [ermis_sharing.number(value) for value in (None, 0.9, 150.2, float("inf"))] == [
        "",
        "0.900",
        "150",
        "beyond",
    ]
