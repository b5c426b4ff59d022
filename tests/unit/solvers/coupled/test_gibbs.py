"""Gibbs sampling, and EM and variational Bayes, of counts behind noisy channels."""

import numpy as np
import pytest
from helpers.noisy import five_ary, geometric, noisy, privatised, tensor
from scipy import stats

import sfumato as sf
from sfumato.data.channels import Response
from sfumato.data.privatised import Passed, Privatised, together
from sfumato.kernels.numba.noisy_counts import EXACT, GEOMETRIC, TABLE, expected_counts
from sfumato.models.clipped_counts import clipped_mean
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.noisy_counts import (
    exact_counts,
    information,
    measured_bounds,
    noisy_counts,
    typical_rate,
)
from sfumato.solvers.coupled.gibbs import _proposed, _scaling
from sfumato.solvers.coupled.gibbs_queries import MoveQuery
from sfumato.solvers.coupled.shape import CoupledShape, even_start, values_of
from sfumato.solvers.coupled.sums import divergence, gains
from sfumato.solvers.protocol import Run

SHORT = sf.Gibbs(samples=20, burn_in=10, thin=1)
CHANNELS = {
    "one event": geometric(0.7),
    "range": geometric(0.5, 6),
    "wide range": geometric(0.5, 300),
    "five-ary": five_ary(3.0),
}
channels = pytest.mark.parametrize("passed", CHANNELS.values(), ids=list(CHANNELS))


def planted(shape=(25, 15), rank=2, seed=0, scale=2.0):
    generator = np.random.default_rng(seed)
    users, items = (generator.gamma(1.5, 1 / 1.5, (n, rank)) for n in shape)
    rates = scale * users @ items.T
    return rates, generator.poisson(rates), generator.random(shape) < 0.8, generator


# -- objectives never get worse ---------------------------------------------------------------------


def objectives(solver, relations):
    found = sf.Coupled(2, solver, threads=1).fit(relations).history_
    return np.array([info.objective for info in found if info.objective is not None])


@channels
@pytest.mark.parametrize(
    "solver",
    [
        sf.Multiplicative(25, tolerance=None),
        sf.Multiplicative(25, prior_shape=1.5, prior_mean=1.0, tolerance=None),
        sf.Variational(25, tolerance=None, learn_prior=False),
        sf.Variational(25, tolerance=None),
    ],
    ids=["likelihood", "posterior", "bound", "bound with priors"],
)
def test_no_sweep_lowers_the_likelihood_or_the_bound(passed, solver):
    _, counts, known, generator = planted()
    side = tensor(counts[:, :4][known[:, :4]], known[:, :4], "user", "club")
    values = objectives(solver, {"x": privatised(counts, known, passed, generator), "side": side})
    assert len(values) == 25
    assert (np.diff(values) <= 1e-9 * np.abs(values[1:])).all()
    assert values[-1] < values[0] - 1


def test_without_noise_em_is_the_same_as_without_a_channel():
    """At a ratio of next to nothing, what was released is the count."""
    _, counts, known, generator = planted()
    clean = tensor(counts[known], known, "user", "item")
    behind = privatised(counts, known, geometric(40.0), generator)
    fits = [
        sf.Coupled(2, sf.Multiplicative(20, tolerance=None), threads=1).fit({"x": x})
        for x in (clean, behind)
    ]
    np.testing.assert_allclose(fits[0].model_.rows, fits[1].model_.rows, rtol=1e-9, atol=1e-12)


# -- what is sampled --------------------------------------------------------------------------------


@channels
def test_every_channel_is_sampled_and_kept(passed, tmp_path):
    rates, counts, known, generator = planted()
    model = sf.Coupled(2, SHORT, threads=1).fit({"x": privatised(counts, known, passed, generator)})
    cells = tensor(rates[known], known, "user", "item")
    values, low, high = model.predict("x", cells, interval=0.9)
    assert ((low <= values) & (values <= high)).mean() > 0.9
    if passed.bounds is not None:
        assert values.max() < passed.bounds[1]
    assert np.corrcoef(values, rates[known])[0, 1] > 0.5
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(sf.load(tmp_path / "model").predict("x", cells), values)


def test_predictions_are_of_what_was_measured():
    _, counts, known, generator = planted(scale=6.0)
    data = privatised(counts, known, geometric(2.0, 5), generator)
    cells = data.tensor.coordinates
    for solver in (sf.Multiplicative(20), sf.Variational(20)):
        model = sf.Coupled(2, solver, threads=1).fit({"x": data})
        rates = (model.posterior_ or model.model_).predict(0, cells)
        np.testing.assert_allclose(model.predict("x", data.tensor), clipped_mean(rates, (0, 5)))
        assert rates.max() > 5 > model.predict("x", data.tensor).max()
    model = sf.Coupled(2, SHORT, threads=1).fit({"x": data})
    draws = clipped_mean(model.posterior_.draws(0, cells), (0, 5))
    np.testing.assert_allclose(model.predict("x", data.tensor), draws.mean(axis=(0, 1)))


@pytest.mark.parametrize("bounds", [(0, 4), (2, 9), (0.5, 3.5), (-3, 2)])
def test_means_of_clipped_counts(bounds):
    generator = np.random.default_rng(0)
    for rate in (0.01, 1.0, 3.3, 40.0):
        x = np.arange(200)
        weights = np.exp(x * np.log(rate) - rate - np.cumsum(np.log(np.maximum(x, 1))))
        found = clipped_mean(np.array([rate]), bounds)
        np.testing.assert_allclose(found, weights @ np.clip(x, *bounds), rtol=1e-10)
    rates = np.sort(generator.gamma(1.0, 3.0, 50))
    assert (np.diff(clipped_mean(rates, bounds)) >= 0).all()


def test_mixed_channels_and_clean_entries_in_one_fit():
    _, counts, known, generator = planted((30, 15))
    third = np.arange(30) % 3
    parts = [
        privatised(counts, known & (third == 0)[:, None], geometric(1.0, 8), generator),
        privatised(counts, known & (third == 1)[:, None], geometric(2.0, 8), generator),
    ]
    own = known & (third == 2)[:, None]
    clean = tensor(np.minimum(counts[own], 8), own, "user", "item")
    data = together(*parts, clean)
    assert measured_bounds(data) == (0.0, 8.0)
    laws = noisy_counts(data)
    ends = data.tensor.values[data.numbers == -1] == 8
    kinds = laws.kinds[laws.which[data.numbers == -1]]
    assert ends.any()
    np.testing.assert_array_equal(kinds, np.where(ends, TABLE, EXACT))  # eight may have been more
    found = sf.Coupled(2, SHORT, threads=1).fit({"x": data})
    assert np.isfinite(found.history_[-1].objective)
    beyond = together(*parts, tensor(counts[own] + 9, own, "user", "item"))
    assert measured_bounds(beyond) is None
    laws = noisy_counts(beyond)
    assert (laws.kinds[laws.which[beyond.numbers == -1]] == EXACT).all()


def test_entries_keep_their_channels_when_labels_move():
    """Labels of another table come first: every entry is elsewhere in the order."""
    _, counts, _, generator = planted((6, 5))
    cells, labels = np.stack(np.nonzero(np.ones((6, 5)))), np.array(list("uvwxyz"), object)
    modes = sf.Mode("user", 6, labels), sf.Mode("item", 5)
    values = noisy(counts.ravel(), geometric(1.0), generator)
    which = generator.integers(-1, 2, 30).astype(np.int16)
    values = np.where(which < 0, counts.ravel(), values)
    data = Privatised(sf.SparseTensor(cells, values, modes), (geometric(1.0), geometric(0.3)), which)
    other = sf.Mode("user", 4, np.array(list("zyab"), object)), sf.Mode("club", 2)
    side = sf.SparseTensor(np.stack(np.nonzero(np.ones((4, 2)))), np.ones(8), other)
    relation = sf.Relations({"side": side, "x": data})["x"]
    moved = relation.privatised
    back = {label: level for level, label in enumerate(relation.tensor.modes[0].labels)}
    for level, label in enumerate("uvwxyz"):
        here, there = cells[0] == level, relation.tensor.coordinates[0] == back[label]
        np.testing.assert_array_equal(moved.numbers[there], which[here])
        np.testing.assert_array_equal(moved.tensor.values[there], values[here])


def test_threads_and_chains():
    _, counts, known, generator = planted((90, 80))
    data = privatised(counts, known, geometric(1.0), generator)
    assert data.n_entries > 4096  # more than one block
    found = [sf.Coupled(2, SHORT, threads=threads).fit({"x": data}).posterior_ for threads in (1, 2)]
    np.testing.assert_array_equal(found[0].rows, found[1].rows)
    assert not np.array_equal(found[0].rows[0], found[0].rows[1])


def test_zeros_need_no_visit_and_change_nothing():
    """Zeros as entries or as absent cells: the same law."""
    _, counts, _, _ = planted()
    whole = tensor(counts.ravel(), np.ones(counts.shape, bool), "user", "item")
    some = whole.take(whole.values > 0)
    solver = sf.Gibbs(samples=200, burn_in=50, thin=1)
    dense = sf.Coupled(2, solver, threads=1).fit({"x": whole})
    sparse = sf.Coupled(2, solver, threads=1).fit(sf.Relations({"x": some}, absent="zero"))
    mean, other = (model.predict("x", whole) for model in (dense, sparse))
    error = np.hypot(
        *(model.posterior_.standard_error(0, whole.coordinates) for model in (dense, sparse))
    )
    assert (np.abs(mean - other) / error).max() < 5
    assert abs(sparse.history_[-1].objective / dense.history_[-1].objective - 1) < 0.05


# -- scales -----------------------------------------------------------------------------------------


def test_one_scale_for_each_relation_is_learnt():
    _, counts, known, _ = planted()
    tables = {
        "x": tensor(counts[known], known, "user", "item"),
        "y": tensor(counts[known], known, "user", "tag"),
        "z": tensor(counts[:, :15][:15].ravel(), np.ones((15, 15), bool), "item", "tag"),
    }
    shape = CoupledShape.of(sf.Relations({"x": tables["x"]}), 2)
    assert _scaling(shape).tolist() == [True, False]  # users are more
    shape = CoupledShape.of(sf.Relations(tables), 2)
    assert [mode.name for mode, free in zip(shape.modes, _scaling(shape), strict=True) if free] == [
        "user", "item", "tag"
    ]  # fmt: skip


@channels
def test_chains_begin_at_the_right_scale(passed):
    generator = np.random.default_rng(0)
    values = noisy(generator.poisson(2.5, 20_000), passed, generator)
    data = Privatised(tensor(values, np.ones((200, 100), bool), "user", "item"), (passed,))
    assert typical_rate(noisy_counts(data), 20_000) == pytest.approx(2.5, abs=0.15)
    relations = sf.Relations({"x": data})
    shape, site = CoupledShape.of(relations, 3), CoupledSite(relations, 1, np.dtype(float))
    state = SHORT.init(Run(0), shape)
    state, _ = SHORT.update(state, SHORT.ask(state).answer(site))
    for chain in state.chains:
        assert chain.model.total(0) / 20_000 == pytest.approx(2.5, abs=0.15)


def test_given_priors_are_kept():
    _, counts, known, _ = planted()
    relations = sf.Relations({"x": tensor(counts[known], known, "user", "item")})
    solver = sf.Gibbs(samples=2, burn_in=3, thin=1, prior_shape={"user": 3.0}, prior_mean=2.0)
    shape, site = CoupledShape.of(relations, 2), CoupledSite(relations, 1, np.dtype(float))
    state = solver.init(Run(0), shape)
    for _ in range(solver.rounds(shape)):
        state, _ = solver.update(state, solver.ask(state).answer(site))
    for chain in state.chains:
        assert chain.shapes[0] == 3.0 != chain.shapes[1] != 2.0
        assert all((mean == 2.0).all() for mean in chain.means)


# -- moves behind strong noise ----------------------------------------------------------------------


def test_information_that_noise_leaves():
    """Of one rate, against differences of log-likelihoods; all of it where counts are exact."""
    step, rate = 1e-4, 2.5
    clean = exact_counts(np.arange(5.0))
    assert information(clean, rate) == 1.0
    for passed in CHANNELS.values():
        values = (
            np.arange(5) if passed.bounds is not None and passed.bounds[1] < 5 else np.arange(-90, 130)
        )
        data = Privatised(tensor(values, np.ones((1, len(values)), bool), "user", "item"), (passed,))
        laws = noisy_counts(data)
        logs = [
            expected_counts(laws, np.full(len(values), r), 1, with_logs=True)[1]
            for r in (rate - step, rate, rate + step)
        ]
        if laws.kinds[0] != GEOMETRIC:
            keep = np.unique(laws.outputs, return_index=True)[1]
        else:  # beyond the bounds an output says that it is beyond them, and no more
            keep = np.flatnonzero((values >= 0) & (values <= laws.top[0]))
        score = (logs[2] - logs[0])[keep] / (2 * step)
        assert np.exp(logs[1][keep]).sum() == pytest.approx(1.0, abs=1e-6)
        wanted = rate * float(np.exp(logs[1][keep]) @ score**2)
        assert information(laws, rate) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("structure", ["cp", "tucker"])
def test_gains_of_rows_are_differences_of_likelihoods(structure):
    """A noisy relation and one whose absent cells are zeros, which share a mode; one row at a time."""
    _, counts, known, generator = planted((7, 5))
    side = tensor(
        generator.poisson(1.0, 12) + 1,
        generator.permuted(np.arange(28) < 12).reshape(7, 4),
        "user",
        "tag",
    )
    relations = sf.Relations(
        {"x": privatised(counts, known, geometric(0.2), generator), "side": side},
        structure=structure,
        absent={"side": "zero"},
    )
    shape, site = CoupledShape.of(relations, 2), CoupledSite(relations, 1, np.dtype(float))
    model = even_start(shape, 1)
    for block in shape.blocks:
        moved = model.copy()
        values_of(moved, block)[:] *= generator.uniform(0.5, 2.0, values_of(moved, block).shape)
        found = gains(model, moved, site, block)
        one_by_one = []
        for row in range(len(found)):
            single = model.copy()
            here = slice(None) if block.mode is None else row
            values_of(single, block)[here] = values_of(moved, block)[here]
            one_by_one.append(
                sum(divergence(m, site, v) * s for v in (0, 1) for m, s in ((model, 1), (single, -1)))
            )
        np.testing.assert_allclose(found, one_by_one, rtol=1e-9, atol=1e-9)


def test_what_is_proposed_has_the_law_of_the_prior():
    """From a Gamma number another one that resembles it; five standard errors of each moment."""
    solver = sf.Gibbs(samples=1, burn_in=0, thin=1, chains=1, prior_shape=0.7, prior_mean=3.0)
    every = np.ones((20_000, 1), bool)
    relations = sf.Relations({"x": tensor(np.ones(20_000), every, "user", "item")})
    state = solver.init(Run(0), CoupledShape.of(relations, 2))
    chain = state.chains[0]
    chain.model.factor(0)[:] = before = np.random.default_rng(3).gamma(0.7, 3.0 / 0.7, (20_000, 2))
    chain.stays[0][:] = np.log(0.8 / 0.2)
    after = _proposed(state, 0, 1, 0)
    np.testing.assert_array_equal(after, _proposed(state, 0, 1, 0))
    assert stats.kstest(after.ravel(), stats.gamma(0.7, scale=3.0 / 0.7).cdf).pvalue > 1e-4
    assert np.corrcoef(before.ravel(), after.ravel())[0, 1] == pytest.approx(0.8, abs=0.05)
    # Reversible: before and after may change places.
    low, high = before < 1.0, after < 1.0
    there, back = (low & ~high).sum(), (~low & high).sum()
    assert abs(there - back) < 5 * np.sqrt(there + back)


def test_rows_move_where_noise_is_strong_alone():
    _, counts, known, generator = planted()
    for passed, wanted in ((geometric(0.1), True), (geometric(2.0), False)):
        relations = sf.Relations({"x": privatised(counts, known, passed, generator)})
        shape, site = CoupledShape.of(relations, 2), CoupledSite(relations, 1, np.dtype(float))
        state, asked = SHORT.init(Run(0), shape), list[type]()
        for _ in range(SHORT.rounds(shape)):
            query = SHORT.ask(state)
            asked.append(type(query))
            state, _ = SHORT.update(state, query.answer(site))
        assert asked.count(MoveQuery) == (2 * SHORT.sweeps // 2 if wanted else 0)


# -- refusals ---------------------------------------------------------------------------------------


def test_what_is_refused():
    _, counts, known, generator = planted()
    data = privatised(counts, known, geometric(1.0), generator)
    with pytest.raises(sf.SettingError, match="gibbs"):
        sf.Coupled(2, sf.Langevin("poisson")).fit({"x": data})
    for solver in (sf.Gibbs(), sf.Variational()):
        with pytest.raises(sf.SettingError, match="divergence 1"):
            sf.Coupled(2, solver).fit(sf.Relations({"x": data}, divergence=0))
    for settings in ({"divergence": 2.0}, {"dispersion": 3.0}, {"dispersion": None}):
        with pytest.raises(sf.SettingError, match="divergence 1 and dispersion 1"):
            sf.Coupled(2).fit(sf.Relations({"x": data}, **settings))
    with pytest.raises(sf.SettingError, match="privatise zeros"):
        sf.Relations({"x": data}, absent="zero")
    half = tensor(counts[known] + 0.5, known, "user", "item")
    with pytest.raises(sf.DataError, match="whole numbers"):
        sf.Coupled(2, "gibbs").fit({"x": half})
    with pytest.raises(sf.DataError, match="steps of 2"):
        sf.Coupled(2, "gibbs").fit({"x": Privatised(data.tensor, (geometric(1.0, 8, 2.0),))})
    moving = Passed(Response((1.5,), 1.0, ((2.5,),)), (0.0, 4.0), 1.0, (0.0, 1.0))
    with pytest.raises(sf.DataError, match="differ from entry to entry"):
        sf.Coupled(2, "gibbs").fit({"x": Privatised(data.tensor, (moving,))})
    for settings in ({"samples": 0}, {"burn_in": -1}, {"prior_shape": -1.0}, {"mean_prior": (0, 1)}):
        with pytest.raises(sf.SettingError):
            sf.Coupled(2, sf.Gibbs(**settings)).fit({"x": data})
