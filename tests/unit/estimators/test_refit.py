"""A site's own model, made of a release and raw data: how good it is, and that it stays there."""

from functools import cache

import numpy as np
import pytest

import sfumato as sf
from sfumato.fit.refit import blended
from sfumato.models.multilinear import CPModel

BOUNDS = (1.0, 5.0)
USERS, ITEMS = 900, 60


@cache
def ratings():
    """Planted ratings of rank 3 with biases; every user has 20."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 3)) for n in (USERS, ITEMS)]
    biases = [0.3 * rng.normal(size=USERS), 0.5 * rng.normal(size=ITEMS)]
    items = np.concatenate([rng.permutation(ITEMS)[:20] for _ in range(USERS)])
    cells = np.stack([np.repeat(np.arange(USERS), 20), items])
    u, i = cells
    values = 3 + 0.4 * np.sum(rows[0][u] * rows[1][i], axis=1) + biases[0][u] + biases[1][i]
    values = np.clip(values + 0.4 * rng.normal(size=values.shape), *BOUNDS)
    names = np.array([f"u{number:03}" for number in range(USERS)], object)
    modes = (sf.Mode("user", USERS, names), sf.Mode("item", ITEMS))
    return sf.SparseTensor(cells, values, modes, BOUNDS).split(0.2, seed=1)


@cache
def private(epsilon=8.0, method="auto", local="user"):
    train, _ = ratings()
    public = sf.Public(labels={"user": train.modes[0].labels, ...: True}, entries=train.n_entries)
    privacy = sf.Privacy(epsilon, 1e-5, unit="entry", method=method, local=local, public=public, seed=3)
    return sf.CP(privacy=privacy).fit(train)


def site(users):
    """The first users' entries: to fit, and held out."""
    return tuple(part.take(part.coordinates[0] < users) for part in ratings())


@cache
def errors(users, epsilon=8.0, method="auto"):
    """At a site's held-out entries: of the release, of its own data alone, and of both together."""
    train, test = site(users)
    model = private(epsilon, method)
    alone = sf.CP(16).fit(train).rmse(test)
    return model.rmse(test), alone, sf.refit(model, train).rmse(test)


def test_a_site_with_few_entries_gains_over_being_alone():
    release, alone, both = errors(30)
    assert both < 0.95 * alone
    assert both < 1.005 * release


def test_a_site_with_much_loses_next_to_nothing():
    """All of the data are the site's own, and the release of epsilon 0.1 says little beside them."""
    _, alone, both = errors(USERS, epsilon=0.1)
    assert both < 1.005 * alone


def test_in_between_it_is_as_good_as_the_better_one():
    release, alone, both = errors(200)
    assert both < 1.005 * min(release, alone)


def test_a_release_that_says_nothing_leaves_the_site_alone():
    _, alone, both = errors(200, method="constant")
    assert both == pytest.approx(alone, rel=0.01)


def test_what_was_chosen_is_told():
    train, _ = site(200)
    told = sf.refit(private(), train).refit_
    assert set(told) == {"weight", "informed", "errors"}
    assert set(told["errors"]) == {"release", "refit", "alone", "chosen"}
    assert told["errors"]["chosen"] == min(told["errors"].values())
    few = train.take(np.arange(40))
    assert sf.refit(private(), few).refit_ == {"weight": 1.0, "informed": False, "errors": {}}


def test_it_is_not_private_and_stays_with_the_site(tmp_path):
    made = sf.refit(private(), site(30)[0])
    assert made.guarantee_ is None
    loaded = sf.load(made.save(tmp_path / "own"))
    assert loaded.refit_ == made.refit_
    assert np.array_equal(loaded.predict(site(30)[1]), made.predict(site(30)[1]))
    for model in (made, loaded):
        with pytest.raises(sf.ReleaseError, match="stays with the site"):
            model.release(tmp_path / "out")
        with pytest.raises(sf.ReleaseError, match="raw data"):
            model.release_files(force=True)
    assert not (tmp_path / "out").exists()
    again = loaded.fit(site(30)[0])
    assert again.refit_ is None


def test_a_release_and_the_fit_it_came_from_give_the_same(tmp_path):
    """Rows that stayed with their owners have no part in it."""
    train, test = site(200)
    release = sf.load(private().release(tmp_path / "release", force=True))
    first, second = (sf.refit(model, train, threads=1).predict(test) for model in (private(), release))
    assert np.array_equal(first, second)


def test_levels_the_site_has_no_entries_at_are_predicted():
    """An item of which the site knows nothing has what the release says of it."""
    train, test = site(200)
    unseen = train.coordinates[1] < 10
    made = sf.refit(private(), train.take(~unseen))
    there = test.take(test.coordinates[1] < 10)
    alone = sf.CP(16).fit(train.take(~unseen)).rmse(there)
    assert made.rmse(there) < 0.9 * alone


def test_everything_released_and_biases_alone_can_be_refitted():
    train, test = site(200)
    open_fit = sf.Biases().fit(ratings()[0])
    assert sf.refit(open_fit, train).rmse(test) < 0.9 * open_fit.rmse(test)
    released = private(local=None)  # whose rows of users have seen all that the site could hold out
    assert sf.refit(released, train).rmse(test) < 1.005 * sf.CP(16).fit(train).rmse(test)


def test_bad_requests_are_refused():
    train, _ = site(30)
    with pytest.raises(sf.NotFittedError):
        sf.refit(sf.CP(), train)
    with pytest.raises(sf.SettingError, match="fitted model"):
        sf.refit(train, train)
    with pytest.raises(sf.SettingError, match="Tucker"):
        sf.refit(sf.Tucker(2).fit(train), train)
    with pytest.raises(sf.SettingError, match="stay with their owners"):
        sf.refit(private(), train, own_mode="item")
    modes = (train.modes[0], sf.Mode("item", ITEMS, np.arange(ITEMS) + 7))
    stranger = sf.SparseTensor(train.coordinates, train.values, modes, BOUNDS)
    with pytest.raises(sf.UnknownLabelError):
        sf.refit(private(), stranger)


def test_a_mixture_predicts_the_mean_of_both():
    rng = np.random.default_rng(0)
    models = [
        CPModel.from_factors(
            [rng.normal(size=(n, rank)) for n in (4, 5, 3)],
            mean=rank,
            biases=[rng.normal(size=n) for n in (4, 5, 3)],
        )
        for rank in (2, 3)
    ]
    cells = np.indices((4, 5, 3), np.int32).reshape(3, -1)
    first, second = (model.predict(cells) for model in models)
    mixed = blended(*models, 0.3, 1).predict(cells)
    assert mixed == pytest.approx(0.3 * first + 0.7 * second)
