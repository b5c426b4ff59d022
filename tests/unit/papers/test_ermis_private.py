"""Paper E's private models of UCLAF and of planted data: sites, rows, files; and what an audit shows."""

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
from sfumato.papers import ermis_claimed, ermis_data, ermis_local, ermis_planted, ermis_uclaf
from sfumato.papers.ermis_audit import LevelAudit
from sfumato.papers.ermis_claimed import Claim, Site, claim_of
from sfumato.papers.ermis_planted import LogLikelihoods, log_likelihood, planted
from sfumato.papers.ermis_uclaf import Models
from sfumato.papers.runner import Done, Job, Point, summarise
from sfumato.privacy.caveats import without_warnings
from sfumato.solvers.behind.fitting import Length

SHAPE = (20, 10, 3)
FAST = replace(ermis_claimed.UCLAF, passes=3)


@pytest.fixture
def invented(monkeypatch):
    """Small counts in place of UCLAF."""
    random = np.random.default_rng(5)
    counts = random.poisson(np.einsum("i,j,k->ijk", *(random.gamma(1.0, 1.5, n) for n in SHAPE)))
    cells = np.nonzero(counts)
    modes = tuple(Mode(n, k) for n, k in zip(("user", "location", "activity"), SHAPE, strict=True))
    data = Uclaf(
        SparseTensor(np.stack(cells), counts[cells].astype(float), modes),
        counts.sum(axis=2),
        random.poisson(1.0, (10, 4)),
        np.eye(20),
        np.eye(3),
    )
    monkeypatch.setattr("sfumato.data.datasets.uclaf", lambda: data)
    monkeypatch.setattr(ermis_claimed, "UCLAF", FAST)
    for kept in (ermis_data.uclaf, ermis_uclaf.split):
        kept.cache_clear()
    yield counts
    for kept in (ermis_data.uclaf, ermis_uclaf.split):
        kept.cache_clear()


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """Fits behind noise with a few sweeps."""
    monkeypatch.setattr("sfumato.solvers.behind.received.usual_length", lambda *_: Length(15, 1))


# -- claims ---------------------------------------------------------------------------------------


def test_rows_say_what_is_run():
    claim = claim_of("as run: AC site")
    assert (claim.kind, claim.method, str(claim)) == ("as run", "AC site", "as run: AC site")
    settings = claim.settings(ermis_claimed.RATINGS, 3.0)
    assert (settings.steps, settings.level, settings.composition) == ("as run", "site", "ac")
    assert (settings.epsilon, settings.batch, settings.clip) == (3.0, 80, 3.0)
    printed = Claim("as printed", "zCDP user").settings(ermis_claimed.RATINGS, 3.0)
    assert (printed.steps, printed.level, printed.composition) == ("decreasing", "user", "zcdp")
    assert claim_of(ermis_claimed.OPEN).settings(ermis_claimed.RATINGS, None).level == "open"


def test_predictions_are_means_of_the_last_passes_and_none_where_they_grow_wild():
    sites = [Site(*planted(False, (20, 20), 0).sites[k]) for k in range(2)]
    settings = replace(ermis_claimed.PLANTED, level="open", steps="as run", passes=20)
    first, second = ermis_claimed.predictions(sites, ("item",), settings, 0)
    assert (first.size, second.size) == (200, 200)
    assert ermis_claimed.rmse(first, sites[0].test) < 10
    wild = replace(settings, first_step=1e4)
    assert ermis_claimed.predictions(sites, ("item",), wild, 0) is None
    assert ermis_claimed.rmse(None, sites[0].test) == np.inf


# -- UCLAF ----------------------------------------------------------------------------------------


def test_values_are_counts_above_zero_and_every_user_is_at_one_site(invented):
    data = ermis_uclaf.split(0)
    assert data.train.n_entries + data.test.n_entries == (invented > 0).sum()
    assert data.train.values.min() >= 1
    assert data.train.values.max() <= 5
    sites = ermis_uclaf.at_sites(data, 3)
    assert [site.train.shape[0] for site in sites] == [7, 7, 6]
    assert sum(site.train.n_entries for site in sites) == data.train.n_entries
    assert sum(site.test.values.sum() for site in sites) == data.test.values.sum()


def test_model_1_has_activities_of_every_site(invented):
    data = ermis_uclaf.split(0)
    own = ermis_uclaf.own_activities(data.train, 4)
    assert own.shape == (20, 10, 12)
    where = ermis_uclaf.site_of(data.train, 4)
    order = np.lexsort(own.coordinates[::-1])
    np.testing.assert_array_equal((own.coordinates[2] // 3)[order], where)
    np.testing.assert_array_equal((own.coordinates[2] % 3)[order], data.train.coordinates[2])


@pytest.mark.parametrize("model", ermis_uclaf.ONE)
def test_every_row_has_an_error(invented, model):
    table = Models("table 7.8", sites=(2,), epsilons=(1.0,), models=(model,), repetitions=1)
    with without_warnings():
        errors = {job.series: table.do_job(job)[0].error for job in table.jobs()}
    assert len(errors) == (9 if model != "Model 3" else 8)
    proven = [errors[series] for series in ("one owner", "each site") if series in errors]
    assert max(proven) < 2 * errors["constant"]
    assert len(set(errors.values())) == len(errors)


def test_a_table_of_models_has_ours_beside_the_printed(invented, tmp_path, monkeypatch):
    small = Models("table 7.8", sites=(1, 2), epsilons=(1.0,), models=("Model 2",), repetitions=1)
    monkeypatch.setitem(ermis_uclaf.QUICK_TABLES, "7.8", small)
    order = ("ermis", "--table", "7.8", "--quick", "--out", tmp_path / "t", "--processes", 1)
    result = command_line.run("reproduce", *order)
    assert result.exit_code == 0, result.stderr
    assert "…" not in result.stdout
    assert "Flickr is not to be had" in result.stdout
    with (tmp_path / "t" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    printed = next(row for row in rows if row["row"] == "printed" and row["epsilon"] == "1.0")
    assert (printed["1 sites"], printed["2 sites"]) == ("1.04", "0.89")
    assert (tmp_path / "t" / "picture.png").read_bytes().startswith(b"\x89PNG")
    settings = json.loads((tmp_path / "t" / "settings.json").read_text())
    assert settings["algorithm"]["passes"] == 3


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize("name", ["7.8", "figure 7.14", "figure 7.15"])
def test_tables_of_models_fit_into_a_terminal_and_are_drawn(name, tmp_path):
    study = {**ermis_uclaf.TABLES, **ermis_uclaf.FIGURES}[name]
    done = [Done(job, (Point(job.at[0], 0.876),), 0.0) for job in study.jobs()]
    console = Console(width=80, file=io.StringIO())
    for part in study.tables(done):
        console.print(part)
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("0.876") == len(study.jobs()) / study.repetitions
    assert [path.name for path in study.draw(tmp_path, done)] == ["table.csv", "picture.png"]


# -- planted data ---------------------------------------------------------------------------------


def test_log_likelihoods_are_those_of_scipy():
    from scipy.stats import norm, poisson

    values, means = np.array([0.0, 3.0, 7.0]), np.array([0.5, 2.0, 9.0])
    assert log_likelihood(True, values, means) == pytest.approx(poisson.logpmf(values, means).sum())
    assert log_likelihood(False, values, means) == pytest.approx(norm.logpdf(values, means).sum())
    assert log_likelihood(False, values, means * np.nan) == np.inf


def test_planted_data_have_every_cell_once():
    data = planted(True, (15, 10), 3)
    assert [site.train.n_entries + site.test.n_entries for site in data.sites] == [750, 500]
    test = data.sites[0].test
    assert data.truth.shape == test.values.shape
    assert log_likelihood(True, test.values, data.truth) > log_likelihood(
        True, test.values, np.full_like(data.truth, test.values.mean())
    )


def tiny(study):
    """One look of a study, on less data."""
    look = replace(study.looks[0], users=tuple(size // 10 for size in study.looks[0].users))
    if any(map(ermis_local.is_local, look.rows)):
        look = replace(look, places=look.places[-1:], quoted=())
    return replace(study, looks=(look,), algorithm=replace(study.algorithm, passes=2))


@pytest.mark.parametrize("name", list(ermis_planted.QUICK))
def test_every_study_of_planted_data_runs(name, tmp_path):
    study = tiny(ermis_planted.QUICK[name])
    if study.looks[0].axis == "pass":
        study = replace(study, looks=(replace(study.looks[0], places=(1.0, 2.0)),))
    done = [Done(job, tuple(study.do_job(job)), 0.0) for job in study.jobs()]
    (path,) = study.draw(tmp_path, done)
    assert path.read_bytes().startswith(b"\x89PNG")
    console = Console(width=80, file=io.StringIO())
    for part in study.tables(done):
        console.print(part)
    text = console.file.getvalue()
    assert "…" not in text
    assert all(row in text for row in (*study.looks[0].levels, *study.looks[0].rows))
    found = summarise(done)
    best = {cell.series: each.mean for cell, each in found.items() if cell.at is None}
    assert best["truth"] > best["constant"]


@pytest.mark.parametrize("name", list(ermis_planted.STUDIES))
def test_what_is_quoted_has_a_place(name):
    study = ermis_planted.STUDIES[name]
    for look in study.looks:
        assert all(len(values) == len(look.places) for _, values in look.quoted)
        assert look.axis in ermis_planted.AXES


def test_an_axis_changes_its_setting():
    study = ermis_planted.STUDIES["figure 7.8"]
    for look in study.looks:
        job = Job("as run: zCDP user", look.name, (look.places[0],), 0)
        changed = study._settings(look, job)
        assert getattr(changed, look.axis) == look.places[0]
    assert isinstance(study, LogLikelihoods)


# -- noise on every value -------------------------------------------------------------------------


def test_the_printed_law_is_none_at_epsilon_1_and_has_epsilon_the_wrong_way_round():
    """The ratio of the printed law is epsilon; that which epsilon needs is exp(-epsilon / range)."""

    def law(ratio, most=4000):
        tau = np.arange(-most, most + 1.0)
        return tau, (1 - ratio) / (1 + ratio) * ratio ** np.abs(tau)

    def deviation(ratio):
        tau, probability = law(ratio)
        assert probability.sum() == pytest.approx(1.0)
        return np.sqrt(probability @ tau**2)

    assert not law(1.0)[1].any()
    assert deviation(0.05) < deviation(0.1) < 0.5  # printed: less epsilon, less noise
    asked = [deviation(np.exp(-epsilon / 4)) for epsilon in (1.0, 0.1, 0.05)]
    assert asked == pytest.approx([5.64, 56.6, 113.1], rel=1e-2)


def test_values_that_leave_have_the_noise_that_epsilon_needs_and_own_ones_have_none():
    sites = planted(True, (60, 40), 1).sites
    trains = [site.train for site in sites]
    asked = ermis_local.Asked(0.5, "event", 7)
    own = ermis_local.received("LDP2, geometric", trains, 0, asked)
    everybody = ermis_local.received("LDP1, geometric", trains, 0, asked)
    clean = own.tensor.coordinates[0] < 60
    np.testing.assert_array_equal(np.sort(own.tensor.values[clean]), np.sort(trains[0].values))
    assert own.has_clean
    assert not everybody.has_clean
    true = ermis_planted.of_all(trains)
    noise = everybody.tensor.values - true.values
    ratio = np.exp(-0.5)
    assert noise.std() == pytest.approx(np.sqrt(2 * ratio) / (1 - ratio), rel=0.1)
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(noise.size)


def test_means_of_counts_are_above_zero_and_rows_say_what_they_are():
    sites = planted(True, (15, 10), 3).sites
    for row in ("LDP1, z as clean", "LDP1, geometric"):
        means = ermis_local.means_of_counts(row, sites, ermis_local.Asked(0.1, "event", 7))
        assert means.shape == sites[0].test.values.shape
        assert means.min() >= ermis_local.LEAST_MEAN
    assert ermis_local.local_of("LDP2, best channel") == ("LDP2", "best channel")
    assert ermis_local.local_of(ermis_local.NOISY_MEAN).channel == "geometric"
    assert not ermis_local.is_local("as run: zCDP user")


# -- the audit ------------------------------------------------------------------------------------


def test_site_level_does_not_protect_a_record_and_user_level_is_not_refuted():
    """Claimed is 1. A record moves what is kept at the site, and that moves what is released."""
    site = LevelAudit("site", runs=200)
    assert site.settings.epsilon == 1.0
    assert site.bound() > 2.0
    assert replace(site, level="user").bound() < 1.0
