"""Paper E's private networks: what rows are, what their noise promises, and the table in small."""

import csv
import json
from dataclasses import replace

import command_line
import numpy as np
import pytest

from sfumato.papers import ermis_digits, ermis_networks, ermis_recipes
from sfumato.papers.ermis_digits import (
    AC,
    DIGITS,
    MEANT,
    MNIST,
    PRINTED,
    RUN,
    SGLD,
    THESIS,
    TOGETHER,
    ZCDP,
    Claim,
    Pictures,
    changed,
    multiplier,
    pictures,
)
from sfumato.papers.ermis_networks import Accuracies, ByPass, Effect, epsilon_kept
from sfumato.papers.runner import Done, summarise
from sfumato.privacy.caveats import without_warnings

TINY = replace(THESIS[DIGITS], hidden=(8,), passes=2)


@pytest.fixture
def no_fits(monkeypatch):
    """Proven fits take seconds; here they are said to be right nine times out of ten."""

    class Model:
        dropout_ = (np.full((3, 2), 0.25),)

    monkeypatch.setattr(ermis_networks, "fitted", lambda *_: (Model(), 0.9))


def done(experiment):
    return [Done(job, tuple(experiment.do_job(job)), 0.0) for job in experiment.jobs()]


# -- claims ---------------------------------------------------------------------------------------


def test_settings_are_those_of_the_thesis():
    assert THESIS[MNIST].setting == ermis_recipes.FIGURES["figure 8.2"].settings_of[0]
    assert THESIS[DIGITS].setting == ermis_recipes.FIGURES["figure 8.2"].settings_of[1]


def test_rows_say_what_is_run():
    mnist = THESIS[MNIST]
    printed = Claim(PRINTED, AC).settings(mnist, 0.5)
    assert printed.sigma == pytest.approx(76.0, rel=4e-3)
    assert (printed.clipping, printed.decay, printed.langevin) == ("batch", 1.0, False)
    meant = Claim(MEANT, SGLD).settings(mnist, 0.5)
    assert meant.sigma == pytest.approx(13.35, rel=4e-3)
    assert (meant.clipping, meant.decay, meant.langevin) == ("example", 1.0, True)
    for method, in_text in ((AC, 10.88), (ZCDP, 3.23)):
        run = Claim(RUN, method).settings(mnist, 0.5)
        assert run.sigma == pytest.approx(in_text, rel=3e-3)
        assert run.passes * run.each_pass == 20_000
        assert run.decay == 0
    assert Claim(RUN, ZCDP).settings(mnist, None).sigma is None


def test_layers_share_epsilon_where_they_are_clipped_apart():
    two = changed(THESIS[MNIST], "hidden layers", 2)
    apart, together = (Claim(RUN, method).settings(two, 1.0) for method in (ZCDP, TOGETHER))
    assert apart.apart
    assert not together.apart
    assert apart.sigma == Claim(RUN, ZCDP).sigma(THESIS[MNIST], 0.5)
    assert together.sigma == Claim(RUN, ZCDP).sigma(THESIS[MNIST], 1.0)
    assert multiplier(apart) == pytest.approx(2 * apart.sigma / 3**0.5)


@pytest.mark.parametrize(
    ("sigma", "whole", "single"), [(3.23, 1.52, 0.70), (10.88, 0.41, 0.24)], ids=str
)
def test_noise_in_the_text_breaks_its_promise_if_steps_are_all_counted(sigma, whole, single):
    """At epsilon 0.5; the values are by a coarser accountant, which may only say more."""
    setting = THESIS[MNIST].setting
    assert 0.85 * whole < ermis_recipes.true_epsilon(setting, sigma) <= whole
    assert 0.65 * single < ermis_recipes.true_epsilon(setting, 2 * sigma) <= single


def test_epsilon_kept_counts_what_is_run(monkeypatch):
    few = Pictures(*(np.zeros(n) for n in (60_000, 60_000, 1, 1)), 255.0)
    monkeypatch.setattr(ermis_networks, "pictures", lambda *_: few)
    mnist = THESIS[MNIST]
    broken = epsilon_kept(Claim(RUN, ZCDP).settings(mnist, 0.5), mnist)
    assert broken == pytest.approx(0.67, abs=0.03)
    kept = epsilon_kept(Claim(MEANT, ZCDP).settings(mnist, 0.5), mnist)
    assert kept < 0.2
    once = epsilon_kept(Claim(PRINTED, ZCDP).settings(mnist, 0.5), mnist)
    assert once == pytest.approx(0.30, abs=0.03)


# -- data -----------------------------------------------------------------------------------------


def test_digits_are_split_and_scaled():
    data = pictures(DIGITS, 0)
    assert (len(data.train), len(data.test)) == (1437, 360)
    rows = data.rows(held_out=True)
    assert rows.shape == (360, 64)
    assert rows.dtype == np.float32
    assert (rows.min(), rows.max()) == (0, 1)
    assert 0.05 < data.constant < 0.15
    assert not np.array_equal(data.labels, pictures(DIGITS, 1).labels)


# -- experiments ----------------------------------------------------------------------------------


def test_a_proven_fit_is_private_and_of_pixels_or_scattering():
    pytest.importorskip("jax")
    data = pictures(DIGITS, 0)
    few = data._replace(train=data.train[:300], labels=data.labels[:300])
    with without_warnings():
        model, found = ermis_digits.fitted(few, (), 10.0, 1e-4, 0)
        network, _ = ermis_digits.fitted(few, (4,), 10.0, 1e-4, 0)
    assert found > 0.7
    assert model.guarantee_.epsilon <= 10
    assert model.features_.size > 64
    assert network.network_.architecture.hidden == (4,)
    assert network.features_.size == 64


def test_the_table_has_what_is_printed_and_what_we_get(no_fits, tmp_path):
    table = Accuracies("table 8.1", epsilons=(1.0, 0.5), thesis=(TINY,), repetitions=1)
    results = done(table)
    lines = {line.name: line for line in table.lines(summarise(results))}
    assert lines["printed: DPD-zCDP"].values == (0.9367, 0.9125)
    assert lines["printed: no privacy"].values == (0.955, 0.955)
    assert lines["proven, scattering"].values == (0.9, 0.9)
    assert lines["constant"].values == (pictures(DIGITS, 0).constant,) * 2
    kept = lines["as meant: DPD-zCDP"].kept
    assert kept[0] > kept[1] > 0
    assert lines["as printed: DPD-zCDP"].kept[1] > kept[1]
    assert len(lines) == 21
    assert all(None not in line.values for line in lines.values())
    findings = table.findings(results)
    assert findings["of_mnist_at_0.5_in_the_text"]["sigma 3.23"]["a batch's gradient clipped"] > 1.4
    assert "0.5" in findings["epsilon_kept"]["DIGITS, as run: DPD-AC"]
    shown, *_ = table.tables(results)
    assert shown.row_count == 21
    written, picture = table.draw(tmp_path, results)
    with written.open() as file:
        assert len(list(csv.reader(file))) == 22
    assert picture.stat().st_size > 5000


def test_accuracies_by_pass(tmp_path):
    figure = ByPass("figure 8.3", (0.5,), shown=(1, 2, 50), thesis=(TINY,), repetitions=1)
    results = done(figure)
    assert {point.at for one in results for point in one.points} == {1, 2}
    assert figure.tables(results)[0].row_count == 8
    (path,) = figure.draw(tmp_path, results)
    assert path.stat().st_size > 5000


def test_effects_of_settings(no_fits, tmp_path):
    axes = (("hidden units", (4, 8)), ("batch", (100, 200)), ("hidden layers", (1, 2)))
    rows = ("as run: DPD-zCDP", "as run: zCDP, together", "proven, network")
    figure = Effect("figure 8.4", axes, rows, thesis=(TINY,), repetitions=1)
    results = done(figure)
    assert len(results) == 3 * 6 - 2  # proven fits choose their batches by themselves
    tables = [part for part in figure.tables(results) if not isinstance(part, str)]
    assert [table.row_count for table in tables] == [3, 2, 3]
    (path,) = figure.draw(tmp_path, results)
    assert path.stat().st_size > 5000


def test_alpha_falls_with_epsilon(no_fits, tmp_path):
    """As meant weights hardly move in two passes: their dropout is the noise, and no more."""
    rows = ("as meant: DPD-zCDP", "proven, network")
    figure = Effect(
        "figure 8.6", (("epsilon", (1.0, 10.0)),), rows, thesis=(TINY,), measure="alpha", repetitions=1
    )
    results = done(figure)
    small, large, ours, _ = (one.points[0].error for one in results)
    noise = [Claim(MEANT, ZCDP).sigma(TINY, at) ** 2 for at in (1.0, 10.0)]
    assert small / large == pytest.approx(noise[0] / noise[1], rel=0.3)
    assert ours == pytest.approx(0.25)
    (path,) = figure.draw(tmp_path, results)
    assert path.stat().st_size > 5000


def test_the_command_offers_them(monkeypatch, tmp_path):
    figure = Effect(
        "figure 8.5", (("hidden layers", (1,)),), ("as run: DPD-zCDP",), thesis=(TINY,), repetitions=1
    )
    monkeypatch.setitem(ermis_networks.QUICK_FIGURES, "figure 8.5", figure)
    result = command_line.run(
        *("reproduce", "ermis", "--figure", "8.5", "--quick", "--out", str(tmp_path / "out")),
        *("--processes", "1", "--json"),
    )
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["summary"]
    assert found["axis"] == "hidden layers"
    assert 0 <= found["mean"] <= 1
