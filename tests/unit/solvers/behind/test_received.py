"""Fits of what has passed channels: they know the noise, and promise what it does."""

from dataclasses import replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.channels import Response
from sfumato.data.privatised import Passed
from sfumato.errors import ReleaseError, SettingError
from sfumato.solvers.behind.evidence import NormalEvidence, TableEvidence
from sfumato.solvers.behind.received import evidence_of, frame_of

pytestmark = pytest.mark.usefixtures("few_starts")
RNG = np.random.default_rng(5)
USERS, ITEMS = 120, 60
CELLS = np.unique(RNG.integers(0, [[USERS], [ITEMS]], (2, 5200)), axis=1)
MODES = (sf.Mode("user", USERS), sf.Mode("item", ITEMS))
TRUTH = 3 + 0.7 * RNG.standard_normal(USERS)[:, None] + 0.7 * RNG.standard_normal(ITEMS)
CLEAN = np.clip(np.rint(TRUTH[tuple(CELLS)] + 0.5 * RNG.standard_normal(CELLS.shape[1])), 1, 5)
RATINGS = sf.SparseTensor(CELLS, CLEAN, MODES, (1, 5))
HELD = RNG.random(RATINGS.n_entries) < 0.2
TRAIN, TEST = RATINGS.take(~HELD), RATINGS.take(HELD)
CONSTANT = float(TEST.values.std())


def fitted(data, **settings):
    return sf.CP(2, threads=1, **settings).fit(data)


@pytest.mark.parametrize("channel", ["response", "geometric"])
def test_a_fit_behind_the_noise_is_better_than_one_that_takes_it_for_clean(channel):
    noisy = sf.privatise(TRAIN, 2.0, channel=channel, seed=1)
    model = fitted(noisy)
    naive = fitted(noisy.tensor.with_values(np.clip(noisy.tensor.values, 1, 5)))
    assert model.rmse(TEST) < 0.85 * CONSTANT
    assert model.rmse(TEST) < naive.rmse(TEST)


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.4])
def test_much_noise_ends_at_the_noisy_constant_and_never_far_above(epsilon):
    model = fitted(sf.privatise(TRAIN, epsilon, seed=1))
    constant = float(np.sqrt(np.mean((TEST.values - model.model_.mean) ** 2)))
    assert model.rmse(TEST) < 1.005 * constant
    assert abs(model.model_.mean - TRAIN.values.mean()) < 1  # towards the middle, where noise hides it


def test_little_noise_is_next_to_none():
    clean = fitted(TRAIN).rmse(TEST)
    assert fitted(sf.privatise(TRAIN, 12.0, seed=1)).rmse(TEST) < 1.01 * clean


def test_squares_are_least_where_little_is_hidden():
    """Of clean values, and of a response that nearly always tells which of them it is; no other."""
    whole = sf.privatise(TRAIN, 10.0, channel="response", seed=1)
    assert whole.passed[0].channel.categories == 5
    coarse = replace(whole, passed=(Passed(Response((3.5,), 10.0), (1.0, 5.0), 1.0, (2.0, 4.5)),))
    coarse = replace(coarse, tensor=TRAIN.with_values(np.where(TRAIN.values > 3.5, 4.5, 2.0)))
    noisy = sf.privatise(TRAIN, 1.0, channel="response", seed=1)
    kinds = [type(evidence_of(data, frame_of(data))) for data in (whole, coarse, noisy)]
    assert kinds == [NormalEvidence, TableEvidence, TableEvidence]


def test_counts_with_noise_on_events_and_no_bounds():
    counts = (
        np.random.default_rng(2).poisson(np.exp(0.6 * (TRUTH[tuple(CELLS)] - 3) + 1.0)).astype(float)
    )
    tensor = sf.SparseTensor(CELLS, counts, MODES)
    train, test = tensor.take(~HELD), tensor.take(HELD)
    model = fitted(sf.privatise(train, 1.0, unit="event", seed=1))
    assert model.rmse(test) < 0.9 * test.values.std()


def test_other_steps_and_wide_bounds():
    tensor = TRAIN.with_values(TRAIN.values * 0.5, (0, 50))
    model = fitted(sf.privatise(tensor, 4.0, step=0.5, typical=(1.5, 0.5), seed=1))
    held = TEST.with_values(TEST.values * 0.5)
    assert model.rmse(held) < 0.9 * held.values.std()


def test_the_fit_promises_what_its_values_do_and_can_be_released(tmp_path):
    noisy = sf.privatise(TRAIN, 2.0)
    model = fitted(noisy)
    guarantee = model.guarantee_
    assert guarantee is not None
    assert guarantee.epsilon == pytest.approx(2.0, rel=1e-3)
    assert "noisy values" in guarantee.released
    assert "rows and biases of item" in guarantee.released
    model.release(tmp_path / "release")
    loaded = sf.load(tmp_path / "release")
    np.testing.assert_allclose(loaded.predict(TEST), model.predict(TEST))
    seeded = fitted(sf.privatise(TRAIN, 2.0, seed=1))
    with pytest.raises(ReleaseError, match="seed"):
        seeded.release(tmp_path / "seeded")


def halves():
    users = TRAIN.coordinates[0]
    return TRAIN.take(users < USERS // 2), TRAIN.take(users >= USERS // 2)


def test_several_owners_promise_the_most_that_one_unit_is_told_by():
    """Cells of two owners are different ones; the same cells twice are charged twice."""
    one, other = halves()
    apart = sf.together(sf.privatise(one, 1.0), sf.privatise(other, 2.0))
    assert fitted(apart).guarantee_.epsilon == pytest.approx(2.0, rel=1e-3)
    twice = sf.together(sf.privatise(one, 1.0), sf.privatise(one, 2.0))
    assert fitted(twice).guarantee_.epsilon == pytest.approx(3.0, rel=1e-3)
    capped = [sf.privatise(each, 1.0, unit="user", max_entries=9) for each in (one, other, one)]
    assert fitted(sf.together(*capped[:2])).guarantee_.epsilon == pytest.approx(1.0, rel=1e-3)
    assert fitted(sf.together(*capped)).guarantee_.epsilon == pytest.approx(2.0, rel=1e-3)
    renamed = sf.together(*capped[:2])
    modes = (sf.Mode("person", USERS), renamed.modes[1])
    tensor = sf.SparseTensor(renamed.tensor.coordinates, renamed.tensor.values, modes)
    unknown = sf.Privatised(tensor, renamed.passed, renamed.which, renamed.promises)
    assert fitted(unknown).guarantee_.epsilon == pytest.approx(2.0, rel=1e-3)
    with pytest.raises(SettingError, match="different units"):
        fitted(sf.together(sf.privatise(one, 1.0), capped[1]))


def test_a_model_of_raw_values_beside_noisy_ones_stays_with_its_owner(tmp_path):
    own, others = halves()
    model = fitted(sf.together(own, sf.privatise(others, 3.0, seed=1)))
    assert model.guarantee_ is None
    with pytest.raises(ReleaseError, match="stays with the site"):
        model.release(tmp_path / "release")
    model.save(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["owner"]
    assert "secret" in (tmp_path / "model" / "owner" / "NOT-FOR-RELEASE.txt").read_text()
    loaded = sf.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict(TEST), model.predict(TEST))
    with pytest.raises(ReleaseError, match="stays with the site"):
        loaded.release(tmp_path / "release")


def test_noisy_values_of_others_help_a_site():
    own, others = halves()
    few = own.take(np.random.default_rng(0).random(own.n_entries) < 0.3)
    held = TEST.take(TEST.coordinates[0] < USERS // 2)
    alone = fitted(few)
    beside = fitted(sf.together(few, sf.privatise(others, 3.0, seed=1)))
    assert beside.rmse(held) < alone.rmse(held)


def test_what_would_take_noisy_values_for_clean_is_refused():
    noisy = sf.privatise(TRAIN, 2.0, seed=1)
    with pytest.raises(SettingError, match="for clean"):
        fitted(noisy, solver="sgd")
    with pytest.raises(SettingError, match="needs no budget"):
        fitted(noisy, privacy=sf.Privacy(1.0, unit="value"))
    with pytest.raises(SettingError, match="starts of its own"):
        fitted(noisy, starts=3)


def test_tucker_models_and_three_modes():
    cells = np.vstack([TRAIN.coordinates, TRAIN.coordinates[1] % 4])
    modes = (*MODES, sf.Mode("kind", 4))
    noisy = sf.privatise(sf.SparseTensor(cells, TRAIN.values, modes, (1, 5)), 4.0, seed=1)
    test = sf.SparseTensor(
        np.vstack([TEST.coordinates, TEST.coordinates[1] % 4]), TEST.values, modes, (1, 5)
    )
    assert sf.Tucker(2, threads=1).fit(noisy).rmse(test) < 0.9 * CONSTANT
