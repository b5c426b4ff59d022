"""Paper E's Algorithms 1 and 2 as printed: noise by recipe, steps that stand still, what is kept."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

import sfumato as sf
from sfumato.errors import SettingError
from sfumato.solvers.as_printed import ermis
from sfumato.solvers.as_printed.ermis import PaperLangevin, released, samples, schedule

USERS, ITEMS, RANK = (6, 4), 8, 2
SMALL = PaperLangevin(rank=RANK, passes=3, batch=8)
COUNTS = replace(SMALL, algorithm=1, prior=(0.5, 0.5))


def sites(seed=0, *, counts=False, users=USERS):
    """All cells of two matrices that share their items."""
    stream = np.random.default_rng(seed)
    items, made = stream.gamma(1.0, 1.0, (ITEMS, RANK)), []
    for size in users:
        means = stream.gamma(1.0, 1.0, (size, RANK)) @ items.T
        values = stream.poisson(means) if counts else means + stream.standard_normal(means.shape)
        cells = np.indices(means.shape, np.int32).reshape(2, -1)
        modes = (sf.Mode("user", size), sf.Mode("item", ITEMS))
        made.append(sf.SparseTensor(cells, values.astype(float).ravel(), modes))
    return made


def last(settings, seed=0, tensors=None, **rest):
    tensors = sites(counts=settings.counts) if tensors is None else tensors
    *_, sample = samples(tensors, ("item",), settings, seed, **rest)
    return sample


# -- noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("composition", "sigma"), [("ac", 8.58), ("zcdp", 2.70)])
def test_the_recipes_reach_the_algorithm(composition, sigma):
    """5,000 records in batches of 100, 6 passes: of these the thesis has 8.14 and 2.87."""
    settings = PaperLangevin(composition=composition, steps="as run", first_step=0.5)
    assert settings.iterations(5000) == 300
    assert settings.sigma(5000, 300) == pytest.approx(sigma, rel=2e-3)
    plan = schedule(settings, 5000, 300)
    np.testing.assert_allclose(plan.shared[:50], 0.5 / 5000)
    np.testing.assert_allclose(plan.shared[-50:], 0.5 / 6 / 5000)
    spread = 2 * settings.clip * settings.sigma(5000, 300) / settings.batch
    np.testing.assert_allclose(np.sqrt(plan.shared_variance[:50]), 0.5 * spread)


def test_steps_and_noise_of_algorithm_2_are_those_of_appendix_c():
    plan = schedule(PaperLangevin(composition="ac", epsilon=2.0), 5000, 300)
    width, tail = log(2.5 * 300 / 1e-3), log(2 / 1e-3)
    steps = 0.9 * 4 / (128 * 4 * width * tail * np.arange(1, 301))
    np.testing.assert_allclose(plan.shared, steps)
    sigma = sqrt(128 * 300 * 4 / 4 * width * 2 * tail) * steps
    np.testing.assert_allclose(plan.shared_variance, np.maximum(sigma**2, steps))
    np.testing.assert_allclose(plan.own, steps)
    again = sqrt(schedule(PaperLangevin(), 5000, 300).shared_variance[0])
    by_hand = (
        schedule(PaperLangevin(), 5000, 300).shared[0] * 50 * 2 * 2.0 * PaperLangevin().sigma(5000, 300)
    )
    assert again == pytest.approx(by_hand)


def test_noise_as_printed_grows_with_epsilon():
    """Steps grow with its square, sigma falls with itself alone: the more privacy, the less noise."""
    variances = [
        schedule(PaperLangevin(epsilon=epsilon, composition="ac"), 5000, 300).shared_variance.sum()
        for epsilon in (0.1, 1.0, 10.0)
    ]
    assert variances == sorted(variances)
    assert variances[2] > 50 * variances[1]


def test_steps_of_algorithm_1_are_at_the_bounds_of_its_theorems():
    """The one step length that is printed: below 0.103."""
    settings = PaperLangevin(algorithm=1, epsilon=0.1, delta=1e-5, clip=1.0)
    assert schedule(settings, 50_000, 10_000).shared[0] == pytest.approx(0.103, rel=2e-3)
    plan = schedule(settings, 50_000, 10_000)
    np.testing.assert_allclose(plan.shared[999] / plan.shared[0], 0.1)  # t^(-1/3)
    np.testing.assert_allclose(plan.shared_variance, plan.shared / 50_000)  # what 1 / S^2 comes to
    fixed = schedule(replace(settings, steps="fixed"), 50_000, 10_000)
    assert np.ptp(fixed.shared) == 0
    noise = ermis.HIDDEN * sqrt(log(1e5)) / 0.1 * fixed.shared[0]
    np.testing.assert_allclose(np.sqrt(fixed.shared_variance), noise)


# -- what moves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("composition", ["ac", "zcdp"])
def test_eq_4_27_stands_still(epsilon, composition):
    """Without noise, gradients move a factor by at most G eta_1 (ln(iterations) + 0.58) a site."""
    settings = replace(SMALL, epsilon=epsilon, composition=composition, noise=0.0, passes=20)
    found = released(sites(), ("item",), settings, 1)
    iterations = len(found["item"]) - 1
    first = max(schedule(settings, size * ITEMS, iterations).shared[0] for size in USERS)
    most = settings.clip * first * (log(iterations) + 0.58)
    for name, rows in found.items():
        moved = np.linalg.norm(rows[-1] - rows[0])
        assert 0 < moved <= (len(USERS) if name == "item" else 1) * most
    assert most < 0.1


def test_at_site_level_own_factors_are_not_hidden():
    """They move by plain steps, and are not among what leaves the sites."""
    site, user = (replace(SMALL, level=level, steps="as run") for level in ("site", "user"))
    assert released(sites(), ("item",), site, 0).keys() == {"item"}
    assert released(sites(), ("item",), user, 0).keys() == {"item", "user of site 1", "user of site 2"}
    plain = schedule(site, 48, 18)
    np.testing.assert_allclose(plain.own_variance, 2 * plain.own)
    hidden = schedule(user, 48, 18)
    np.testing.assert_array_equal(hidden.own_variance, hidden.shared_variance)
    assert hidden.own_variance.sum() > 4 * plain.own_variance.sum()


def test_one_record_moves_the_own_rows_beyond_the_clipping_at_site_level_alone():
    quiet = replace(SMALL, steps="as run", noise=0.0, batch=48, passes=1)
    tensors = sites(users=(6,))
    other = tensors[0].with_values(np.where(np.arange(48) == 0, 1e4, tensors[0].values))

    def moved(level):
        settings = replace(quiet, level=level)
        rows = [last(settings, tensors=[one]).sites[0]["user"].copy() for one in (tensors[0], other)]
        return np.abs(rows[0] - rows[1]).max()

    assert moved("user") <= 2 * quiet.clip * quiet.first_step / 48 * 1.01
    assert moved("site") > 20 * moved("user")


def test_noise_of_rows_that_no_batch_is_about_has_the_law_of_all_steps():
    """Row after row gets its noise late; at the end the variance is that of every step."""
    settings = replace(SMALL, passes=4, batch=3, rank=4, composition="ac", epsilon=3.0)
    found = np.array([released(sites(), ("item",), settings, seed)["item"] for seed in range(150)])
    spread = (found[:, -1] - found[:, 0]).var()
    iterations = found.shape[1] - 1
    due = sum(schedule(settings, size * ITEMS, iterations).shared_variance.sum() for size in USERS)
    assert spread == pytest.approx(due, rel=0.08)


def test_a_run_of_noise_alone_has_the_law_of_one_with_gradients():
    settings = replace(SMALL, passes=4, composition="ac", epsilon=1.0)
    ends = [last(settings, seed).sites[0]["item"].copy() for seed in range(200)]
    slow = [released(sites(), ("item",), settings, 500 + seed)["item"][-1] for seed in range(200)]
    assert np.var(ends) == pytest.approx(np.var(slow), rel=0.1)


# -- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SMALL, COUNTS], ids=["normal", "counts"])
@pytest.mark.parametrize("level", ["site", "user", "open"])
def test_runs_are_made_again_by_their_seed(settings, level):
    own = replace(settings, level=level, steps="as run")
    first, again, other = (last(own, seed) for seed in (3, 3, 4))
    assert first.epsilon == own.epsilon
    for number in range(2):
        for name in ("user", "item"):
            rows = first.sites[number][name]
            assert rows.shape == ((USERS[number], ITEMS)[name == "item"], RANK)
            np.testing.assert_array_equal(rows, again.sites[number][name])
            assert not np.array_equal(rows, other.sites[number][name])
            assert not settings.counts or (rows >= 0).all()
    np.testing.assert_array_equal(first.sites[0]["item"], first.sites[1]["item"])


@pytest.mark.parametrize("settings", [SMALL, COUNTS], ids=["normal", "counts"])
def test_without_privacy_it_learns(settings):
    own = replace(settings, level="open", steps="as run", passes=60, first_step=0.5)
    tensors = sites(counts=settings.counts)
    sample = last(own, tensors=tensors)
    cells, values = tensors[0].coordinates, tensors[0].values
    error = np.sqrt(np.mean((sample.predict(0, ("user", "item"), cells) - values) ** 2))
    assert error < 0.9 * values.std()


def test_a_public_table_takes_part_without_noise():
    """Model 3: the shared factor follows it although the sites' noise is all that they add."""
    stream = np.random.default_rng(0)
    table = stream.gamma(1.0, 1.0, (ITEMS, RANK)) @ stream.gamma(1.0, 1.0, (3, RANK)).T
    cells = np.indices(table.shape, np.int32).reshape(2, -1)
    modes = (sf.Mode("item", ITEMS), sf.Mode("feature", 3))
    public = sf.SparseTensor(cells, table.ravel(), modes)
    settings = replace(SMALL, steps="as run", noise=0.0, passes=100, first_step=0.5, decay=0.6)
    sample = last(settings, public=(public,))
    assert sample.sites[2].keys() == {"item", "feature"}
    error = np.sqrt(np.mean((sample.predict(2, ("item", "feature"), cells) - table.ravel()) ** 2))
    assert error < table.std()


def test_steps_that_are_too_long_end_the_run():
    """As printed, own factors take steps kappa_t times the gradient of all records."""
    wild = replace(SMALL, level="site", first_step=100.0)
    assert list(samples(sites(), ("item",), wild, 0)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": 3}, "algorithms are 1 and 2"),
        ({"steps": "fixed"}, "Eq. 4.27 alone"),
        ({"level": "item"}, "level"),
        ({"composition": "rdp"}, "composition"),
        ({"batch": 0}, "batch"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(SettingError, match=message):
        replace(SMALL, **change)


def test_there_has_to_be_a_site():
    with pytest.raises(SettingError, match="a site"):
        released([], ("item",), SMALL, 0)


def test_it_says_that_nothing_is_proven():
    assert not PaperLangevin.proven


# -- as a method of relations ---------------------------------------------------------------------


def _printed(local, **steps):
    import sfumato as sf
    from sfumato.solvers.as_printed.ermis_coupled import PaperCoupled

    g = np.random.default_rng(0)
    modes = [sf.Mode(name, size) for name, size in (("user", 20), ("item", 15), ("tag", 10))]
    tensors = {}
    for name, second in (("ratings", 1), ("tags", 2)):
        sizes = 20, modes[second].size
        cells = np.stack(np.unravel_index(g.choice(sizes[0] * sizes[1], 100, False), sizes))
        values = g.uniform(1, 5, 100)
        tensors[name] = sf.SparseTensor(cells, values, (modes[0], modes[second]), (1.0, 5.0))
    labels = {"user": range(20), "item": range(15), "tag": range(10)}
    said = {name: sf.Public(entries=100) for name in tensors}
    method = PaperCoupled(PaperLangevin(batch=20, passes=3, **steps), delta=1e-3) if steps else "auto"
    privacy = sf.Privacy(
        1.0,
        1e-3,
        unit="entry",
        analysis="paper",
        local=local,
        method=method,
        seed=0,
        public=sf.Public(labels=labels, relations=said),
    )
    return sf.Coupled(3, privacy=privacy).fit(tensors), tensors


@pytest.mark.parametrize("local", [None, "user"])
def test_relations_fitted_as_printed_are_claimed_and_not_released(local, tmp_path):
    import sfumato as sf

    model, tensors = _printed(local, steps="as run")
    assert not model.guarantee_.proven
    assert model.guarantee_.epsilon == pytest.approx(1.0, rel=1e-3)
    assert np.isfinite(model.predict("ratings", tensors["ratings"])).all()
    with pytest.raises(sf.ReleaseError):
        model.release(tmp_path / "release")
    names = model.release_files(force=True)
    assert b"relation_0_factor_1" in names["model.safetensors"]
    assert (b"relation_0_factor_0" in names["model.safetensors"]) == (local is None)


def test_the_paper_protects_records_alone():
    import sfumato as sf

    privacy = sf.Privacy(
        1.0, 1e-3, unit="user", analysis="paper", public=sf.Public(labels={"user": range(20), ...: True})
    )
    _, tensors = _printed(None, steps="as run")
    with pytest.raises(sf.SettingError, match="one record"):
        sf.Coupled(privacy=privacy).fit(tensors)
