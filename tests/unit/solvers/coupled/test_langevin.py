"""Langevin dynamics: gradients against the log density, batches, schedules, and what is kept."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from sfumato.data.relations import Relations
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.diagnostics import effective_size, split_rhat
from sfumato.errors import DataError, SettingError
from sfumato.kernels.reference.langevin import slopes_reference
from sfumato.models.posterior import Posterior
from sfumato.models.shape import Shape
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.langevin import Langevin, _spread
from sfumato.solvers.coupled.langevin_queries import Losses, LossQuery, SlopeQuery
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.coupled.slopes import Slopes, slopes
from sfumato.solvers.protocol import DivergedError, Run

SIZES = {"user": 5, "place": 4, "act": 3, "feature": 2}
NAMES = {"visits": ("user", "place", "act"), "trips": ("user", "place"), "places": ("place", "feature")}
RANK = 2


def some_tensor(names, generator, *, counts, unknown=0):
    """Entries at about half of the cells; some cells unknown."""
    shape = [SIZES[name] for name in names]
    cells = np.stack(np.nonzero(generator.random(shape) < 0.6))
    n = cells.shape[1]
    values = generator.poisson(3, n) + 1.0 if counts else generator.standard_normal(n)
    values[:unknown] = np.nan
    return SparseTensor(cells, values, tuple(Mode(name, SIZES[name]) for name in names))


def coupled(model="normal", absent="missing", structure=None, dispersion=1.0, seed=0):
    """Three relations; trips shares all its modes, and so has weights of its own."""
    generator = np.random.default_rng(seed)
    unknown = 1 if absent == "zero" else 0
    counts = model == "poisson"
    tensors = {n: some_tensor(m, generator, counts=counts, unknown=unknown) for n, m in NAMES.items()}
    relations = Relations(
        tensors,
        structure=structure or {"visits": "tucker"},
        divergence=1.0 if counts else 0.0,
        dispersion=dispersion,
        absent=absent,
    )
    shape = CoupledShape.of(relations, RANK)
    return relations, shape, CoupledSite(relations, 1, np.dtype(np.float64))


def run_all(solver, shape, site, seed=0):
    state = solver.init(Run(seed), shape)
    for _ in range(solver.rounds(shape)):
        state, info = solver.update(state, solver.ask(state).answer(site))
    return state, info


def losses(solver, model, site):
    return LossQuery((model,), solver.model).answer(site)


@pytest.mark.parametrize("absent", ["missing", "zero"])
@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_gradients_are_those_of_the_log_density(model, absent):
    _, shape, site = coupled(model, absent, dispersion=1.0)
    if model == "normal":
        shape = replace(shape, dispersions=(0.5, None, 2.0))
    solver = Langevin(model, prior_shape={"user": 2.5, "core of visits": 1.5})
    chain = solver.init(Run(), shape).chains[0]
    if model == "normal":
        for mine in chain.precisions:
            mine[:] = np.random.default_rng(1).uniform(0.5, 2, mine.shape)
        chain.priors = _spread(shape, [(mine, np.zeros(1)) for mine in chain.precisions])

    def density():
        found = losses(solver, chain.model, site)
        return solver.log_density(shape, chain, found.sums[0], found.cells)

    generator = np.random.default_rng(0)
    found = slopes(chain.model, site, chain.noise, None, generator, False).gradients
    whole = solver._whole_gradients(chain, found)
    for values, gradient in zip(chain.parameters, whole, strict=True):
        for index in np.ndindex(values.shape):
            kept, step = values[index], 1e-5
            values[index] = kept + step
            above = density()
            values[index] = kept - step
            below = density()
            values[index] = kept
            assert gradient[index] == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_kernel_equals_its_readable_twin(model):
    relations, shape, site = coupled(model)
    chain = Langevin(model).init(Run(3), shape).chains[0]
    precisions = np.array([0.5, 2.0, 3.0]) if model == "normal" else np.ones(3)
    found = slopes(chain.model, site, precisions, None, np.random.default_rng(0), False)
    rows, p = np.zeros_like(found.gradients[0]), site.parts[0].divergence
    for v, relation in enumerate(relations.values()):
        tensor = relation.tensor
        mine, core = slopes_reference(
            chain.model, v, tensor.coordinates, tensor.values, p, precisions[v]
        )
        rows += mine
        np.testing.assert_allclose(found.gradients[1 + v], core, rtol=1e-10)
    np.testing.assert_allclose(found.gradients[0], rows, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("absent", ["missing", "zero"])
@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_batches_have_the_right_mean(model, absent):
    # At a false-alarm rate of one in ten million for each number.
    _, shape, site = coupled(model, absent)
    chain = Langevin(model).init(Run(), shape).chains[0]
    generator = np.random.default_rng(7)
    whole = slopes(chain.model, site, chain.noise, None, generator, False)
    drawn = [slopes(chain.model, site, chain.noise, 5, generator, False) for _ in range(800)]
    for block, exact in enumerate(whole.gradients):
        found = np.stack([each.gradients[block] for each in drawn])
        error = found.std(axis=0) / np.sqrt(len(drawn))
        assert (np.abs(found.mean(axis=0) - exact) <= 5.3 * error + 1e-9).all()
        assert (error > 0).any() or not exact.size


@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_scales_are_the_sums_that_steps_are_divided_by(model):
    relations, shape, site = coupled(model, structure="cp")
    chain = Langevin(model).init(Run(), shape).chains[0]
    found = slopes(chain.model, site, np.full(3, 2.0), None, np.random.default_rng(0), True)
    expected = np.zeros_like(found.scales[0])
    for v, relation in enumerate(relations.values()):
        part, cells = chain.model.parts[v], chain.model.cells(v, relation.tensor.coordinates)
        taken = [chain.model.factor(m)[i] for m, i in zip(part.modes, cells, strict=True)]
        for position, mode in enumerate(part.modes):
            design = np.prod([t for m, t in enumerate(taken) if m != position], axis=0)
            sums = 2.0 * (design if model == "poisson" else design**2)
            np.add.at(expected, cells[position] + chain.model.offsets[mode], sums)
    np.testing.assert_allclose(found.scales[0], expected, rtol=1e-10)


def test_closed_forms_scale_steps_like_cells_written_out():
    for model in ("normal", "poisson"):
        relations, shape, site = coupled(model, "zero")
        chain = Langevin(model).init(Run(), shape).chains[0]
        precisions = np.array([0.5, 2.0, 3.0])
        found = slopes(chain.model, site, precisions, None, np.random.default_rng(0), True)
        full = Relations(
            {n: written_out(r.tensor) for n, r in relations.items()},
            structure={"visits": "tucker"},
            divergence=site.parts[0].divergence,
        )
        there = CoupledSite(full, 1, np.dtype(np.float64))
        same = slopes(chain.model, there, precisions, None, np.random.default_rng(0), True)
        for mine, expected in zip(found.scales, same.scales, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-10)


@pytest.mark.parametrize("absent", ["missing", "zero"])
@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_batches_scale_steps_down_by_the_variance_that_they_add(model, absent):
    """Sums times 1 + entries / batch; at a false-alarm rate of one in ten million for each number."""
    relations, _, _ = coupled(model, absent)
    visits = Relations(
        {"visits": relations["visits"].tensor},
        structure="tucker",
        divergence=relations["visits"].divergence,
        absent=absent,
    )
    shape = CoupledShape.of(visits, RANK)
    site = CoupledSite(visits, 1, np.dtype(np.float64))
    chain = Langevin(model).init(Run(), shape).chains[0]
    generator = np.random.default_rng(7)
    whole = slopes(chain.model, site, chain.noise, None, generator, True)
    drawn = [slopes(chain.model, site, chain.noise, 5, generator, True) for _ in range(800)]
    ratio = site.parts[0].entries.tensor.n_entries / 5
    for block, exact in enumerate(whole.scales):
        found = np.stack([each.scales[block] for each in drawn])
        error = found.std(axis=0) / np.sqrt(len(drawn))
        assert (np.abs(found.mean(axis=0) - (1 + ratio) * exact) <= 5.3 * error + 1e-9).all()


def written_out(tensor):
    dense = np.zeros(tensor.shape)
    dense[tuple(tensor.coordinates)] = tensor.values
    return SparseTensor(np.stack(np.nonzero(np.ones(tensor.shape))), dense.ravel(), tensor.modes)


# -- hyperparameters --------------------------------------------------------------------------------


def test_hyperparameters_have_the_laws_that_the_log_density_says():
    _, shape, site = coupled(dispersion=None)
    solver = Langevin(by_component=False)
    chain = solver.init(Run(), shape).chains[0]
    found = losses(solver, chain.model, site)

    def density():
        return solver.log_density(shape, chain, found.sums[0], found.cells)

    def check(array, index, law):
        before = array[index]
        array[index] = 0.7
        low = density()
        array[index] = 1.9
        high = density()
        array[index] = before
        assert high - low == pytest.approx(law.logpdf(1.9) - law.logpdf(0.7))

    for v in range(3):
        a, b = solver.noise_prior
        law = stats.gamma(a + found.cells[v] / 2, scale=1 / (b + found.sums[0, v]))
        check(chain.noise, v, law)
    a, b = solver.precision_prior
    for d, factor in enumerate(chain.model.factors):
        law = stats.gamma(a + factor.size / 2, scale=1 / (b + np.square(factor).sum() / 2))
        check(chain.precisions[d], 0, law)


def test_hyperparameters_are_drawn_from_these_laws():
    # Kolmogorov-Smirnov tests, at a false-alarm rate of one in a million each.
    _, shape, _ = coupled(dispersion=None)
    solver = Langevin()
    chain = solver.init(Run(), shape).chains[0]
    sums, cells = np.array([8.0, 3.0, 0.5]), np.array([30, 10, 4])
    noise, precision = [], []
    for _ in range(2000):
        solver._draw_noise(shape, chain, sums, cells)
        solver._draw_precisions(shape, chain)
        noise.append(chain.noise.copy())
        precision.append(chain.precisions[0].copy())
    for v in range(3):
        law = stats.gamma(1 + cells[v] / 2, scale=1 / (0.01 + sums[v]))
        assert stats.kstest(np.array(noise)[:, v], law.cdf).pvalue > 1e-6
    factor = chain.model.factor(0)
    for r in range(RANK):
        law = stats.gamma(1 + len(factor) / 2, scale=1 / (1 + np.square(factor[:, r]).sum() / 2))
        assert stats.kstest(np.array(precision)[:, r], law.cdf).pvalue > 1e-6


def test_what_is_known_is_not_drawn():
    _, shape, site = coupled(dispersion={"visits": None, "trips": 0.25})
    solver = Langevin(samples=2, burn_in=4, thin=2, prior_precision={"user": 7.0})
    state, _ = run_all(solver, shape, site)
    chain = state.chains[0]
    assert chain.noise[1] == 4
    assert chain.noise[0] != 1
    assert (chain.precisions[0] == 7).all()
    assert (chain.precisions[1] != 1).all()


# -- steps ------------------------------------------------------------------------------------------


def test_steps_follow_the_schedule_of_the_paper():
    solver = Langevin(step=0.2, offset=50.0, decay=0.7)
    a = 0.2 * 50**0.7
    for t in (0, 1, 49, 1000):
        assert solver.step_at(t) == pytest.approx(a * (50 + t) ** -0.7)


def test_usual_steps_halve_slowly_from_the_burn_in_on():
    solver = Langevin(burn_in=700)
    assert solver.step_at(0) == pytest.approx(0.3)
    assert solver.step_at(700) == pytest.approx(0.3 * 2**-0.55)
    assert Langevin(burn_in=0).step_at(1) == pytest.approx(0.3 * 2**-0.55)


@pytest.mark.parametrize("preconditioner", ["none", "rmsprop", "curvature"])
@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_a_step_is_drift_and_noise(model, preconditioner):
    """Eq. 3.16 to 3.18 with the same random numbers; cut, preconditioned, mirrored at zero."""
    _, shape, site = coupled(model)
    kappa, a, rate, precision = 0.3, 0.3, 0.3 / 0.8, 3.0
    priors = {"prior_shape": a, "prior_mean": a / rate, "prior_precision": precision}
    solver = Langevin(model, preconditioner=preconditioner, step=kappa, **priors)
    state = solver.init(Run(), shape)
    chain = state.chains[0]
    chain.model.rows[:, 0] *= 0.01  # from here some steps go beyond zero
    chain.model.rows[:, 1] *= 3
    before, random = [each.copy() for each in chain.parameters], copy.deepcopy(chain.generator)
    found = solver.ask(state).answer(site)
    solver.update(state, found)
    mirrored = 0
    for n, (old, new) in enumerate(zip(before, chain.parameters, strict=True)):
        prior = -precision * old if model == "normal" else (a - 1) / old - rate
        slope, bend = found[0].gradients[n] + prior, 0.0
        variance, furthest = 2 * kappa, 10.0
        if preconditioner == "none":
            pace = np.ones_like(old)
        elif preconditioner == "rmsprop":
            pace = 1 / (1e-5 + np.abs(slope))
        elif model == "normal":
            pace = 1 / (precision + found[0].scales[n])
        else:
            bend = 1 / (rate + found[0].scales[n])  # how G changes with theta
            pace, furthest = old * bend, np.inf
        if preconditioner == "curvature":
            variance = 2 * kappa - kappa**2
        spread = np.sqrt(variance * pace)
        drift = np.clip(kappa * (pace * slope + bend), -furthest * spread, furthest * spread)
        moved = old + drift + spread * random.standard_normal(old.shape)
        mirrored += int((moved < 0).sum())
        expected = moved if model == "normal" else np.abs(moved)
        np.testing.assert_allclose(new, expected, rtol=1e-9, atol=1e-12)
    assert mirrored > 0


def test_what_steps_are_scaled_by_is_averaged_over_the_burn_in():
    """Later ones count more: as 1, 2, 3."""
    _, shape, _ = coupled()
    solver = Langevin(burn_in=3, prior_precision=1.0)
    state = solver.init(Run(), shape)
    chain = state.chains[0]
    for steps, value in enumerate((1.0, 2.0, 6.0)):
        news = tuple(np.full(each.shape, value) for each in chain.averages)
        solver._learn(chain, Slopes(news, news), replace(state, steps=steps))
        assert (chain.fixed is None) == (steps < 2)
    mean = (1 * 1.0 + 2 * 2.0 + 3 * 6.0) / 6
    np.testing.assert_allclose(chain.averages[0], mean)
    np.testing.assert_allclose(chain.fixed[0], 1 / (1 + mean))


def test_batches_are_a_quarter_unless_said():
    modes = (Mode("a", 80), Mode("b", 100))
    large = SparseTensor(np.stack(np.nonzero(np.ones((80, 100)))), np.ones(8000), modes)
    few = SparseTensor(np.array([[0, 1], [0, 1]]), np.ones(2), (modes[1], Mode("c", 2)))
    both, one = (Relations(tensors, divergence=0.0) for tensors in ({"x": large, "y": few}, {"y": few}))
    shape, site = CoupledShape.of(both, RANK), CoupledSite(both, 1, np.dtype(np.float64))

    def asked(batch, shape, site):
        solver = Langevin(batch=batch)
        return solver.ask(solver.init(Run(), shape))._entries(site)

    assert asked(None, shape, site) == 2000
    assert asked("all", shape, site) == 8000
    assert asked(7, shape, site) == 7
    small = CoupledSite(one, 1, np.dtype(np.float64))
    assert asked(None, CoupledShape.of(one, RANK), small) == 1000


def test_starts_have_the_scale_that_was_asked_for():
    _, shape, _ = coupled()
    usual, wide = (Langevin(start_scale=scale).init(Run(), shape).chains[0] for scale in (0.3, 1.2))
    np.testing.assert_allclose(wide.model.rows, 4 * usual.model.rows)
    assert 0.15 < usual.model.rows[:, :RANK].std() < 0.45


def test_what_is_reported_is_minus_the_mean_log_density():
    _, shape, site = coupled()
    solver = Langevin(samples=3, burn_in=4, thin=2)
    state, info = run_all(solver, shape, site)
    assert info.objective == pytest.approx(-state.kept.log_density[:, -1].mean())
    last = solver.finish(state).model
    np.testing.assert_array_equal(last.rows[:, :RANK], state.kept.rows[0, -1])
    np.testing.assert_array_equal(last.cores[0], state.kept.cores[0][0, -1])


def test_a_chain_that_leaves_the_range_of_numbers_is_said():
    relations, _, _ = coupled()
    tensor = relations["places"].tensor
    wild = Relations({"x": tensor.with_values(1e200 * tensor.values)}, divergence=0.0)
    shape = CoupledShape.of(wild, RANK)
    with pytest.raises(DivergedError, match="smaller step"), np.errstate(all="ignore"):
        run_all(
            Langevin(samples=2, burn_in=2, thin=1), shape, CoupledSite(wild, 1, np.dtype(np.float64))
        )


@pytest.mark.parametrize("decay", [0.5, 0.3, 1.01, -0.6])
def test_schedules_that_break_the_conditions_are_refused(decay):
    _, shape, _ = coupled()
    with pytest.raises(SettingError, match="decay"):
        Langevin(decay=decay).init(Run(), shape)


@pytest.mark.parametrize("preconditioner", ["none", "rmsprop", "curvature"])
@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_looks_steps_and_samples_are_where_they_should_be(model, preconditioner):
    _, shape, site = coupled(model, "zero")
    solver = Langevin(model, samples=3, burn_in=5, thin=2, chains=2, preconditioner=preconditioner)
    state = solver.init(Run(), shape)
    looks, fixed = [], None
    for _ in range(solver.rounds(shape)):
        query = solver.ask(state)
        if isinstance(query, LossQuery):
            looks.append(state.steps)
        state, info = solver.update(state, query.answer(site))
        if state.steps == 5 and fixed is None and preconditioner != "none":
            fixed = state.chains[0].fixed
            assert fixed is not None
            copies = [each.copy() for each in fixed]
    assert looks == [1, 3, 5, 7, 9, 11]
    assert state.steps == solver.steps == 11
    assert info.completed == 6
    kept = solver.finish(state).posterior
    assert np.isfinite(kept.log_density).all()
    assert (kept.log_density != 0).all()
    assert (kept.rows[0] != kept.rows[1]).any()
    np.testing.assert_array_equal(kept.rows[0, -1], state.chains[0].model.rows[:, :RANK])
    if fixed is not None:  # by what steps are scaled stays as the burn-in left it
        assert state.chains[0].fixed is fixed
        for mine, copy in zip(fixed, copies, strict=True):
            np.testing.assert_array_equal(mine, copy)
    if model == "poisson":
        assert (kept.rows >= 0).all()


def test_a_seed_says_all_and_chains_differ():
    _, shape, site = coupled()
    solver = Langevin(samples=2, burn_in=3, thin=2, batch=4)
    first, second, other = (run_all(solver, shape, site, seed)[0].kept for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.rows, second.rows)
    assert (first.rows != other.rows).any()
    assert (first.rows[0] != first.rows[1]).all()


def test_a_fresh_batch_at_every_step():
    _, shape, site = coupled()
    solver = Langevin(batch=4)
    state = solver.init(Run(), shape)
    query = solver.ask(state)
    assert isinstance(query, SlopeQuery)
    one = query.answer(site)[0].gradients[0]
    later = replace(query, seed=(0, 1)).answer(site)[0].gradients[0]
    again = query.answer(site)[0].gradients[0]
    assert (one != later).any()
    np.testing.assert_array_equal(one, again)
    same = replace(query, models=query.models[:1] * 2, precisions=query.precisions[:1] * 2)
    first, second = same.answer(site)
    assert (first.gradients[0] != second.gradients[0]).any()  # chains draw for themselves


def test_threads_change_nothing():
    relations, shape, site = coupled()
    solver = Langevin(samples=2, burn_in=3, thin=2, batch=20_000)
    two = CoupledSite(relations, 2, np.dtype(np.float64))
    np.testing.assert_array_equal(
        run_all(solver, shape, site)[0].kept.rows, run_all(solver, shape, two)[0].kept.rows
    )


@pytest.mark.parametrize("kind", ["cp", "tucker"])
def test_a_single_tensor_is_one_relation(kind):
    tensor = some_tensor(NAMES["visits"], np.random.default_rng(0), counts=False)
    relations = Relations({"visits": tensor}, divergence=0.0, dispersion=None, structure=kind)
    solver = Langevin(samples=4, burn_in=6, thin=2, batch=10)
    coupled_shape = CoupledShape.of(relations, RANK)
    site = CoupledSite(relations, 1, np.dtype(np.float64))
    alone = Shape(tensor.modes, (RANK,) * 3, kind, fit_mean=False, fit_biases=False)
    several = run_all(solver, coupled_shape, site)[0].kept
    single = run_all(solver, alone, Site(tensor, 1))[0].kept
    np.testing.assert_array_equal(several.rows, single.rows)
    np.testing.assert_array_equal(several.noise, single.noise)
    np.testing.assert_array_equal(several.cores[0], single.cores[0])


def test_single_precision_is_kept():
    tensor = some_tensor(NAMES["places"], np.random.default_rng(0), counts=False).astype(np.float32)
    relations = Relations({"places": tensor}, divergence=0.0)
    shape = CoupledShape.of(relations, RANK, np.float32)
    site = CoupledSite(relations, 1, np.dtype(np.float32))
    kept = run_all(Langevin(samples=2, burn_in=2, thin=1), shape, site)[0].kept
    assert kept.rows.dtype == np.float32
    assert np.isfinite(kept.predict(0, tensor.coordinates)).all()


def test_a_weighted_relation_and_cores_move_too():
    _, shape, site = coupled()
    state = run_all(Langevin(samples=2, burn_in=2, thin=1), shape, site)[0]
    model = state.chains[0].model
    assert model.parts[1].weighted
    assert (model.factor(model.parts[1].modes[-1]) != 0).all()
    assert (state.kept.cores[0][0, 0] != state.kept.cores[0][0, 1]).all()


# -- what is kept -----------------------------------------------------------------------------------


def two_draws(family="normal"):
    _, shape, _ = coupled()
    model = Langevin().init(Run(), shape).chains[0].model
    kept = Posterior.empty(shape.zeros(), family, 1, 2)
    kept.keep(0, 0, model)
    turned = model.copy()
    for mode in (0, 1):  # components change places, and the signs of two modes' factors
        turned.factor(mode)[:] = -model.factor(mode)[:, ::-1]
    turned.factor(3)[:] = -model.factor(3)[:, ::-1]
    turned.factor(4)[:] = model.factor(4)[:, ::-1]
    core = model.core(0)[::-1, ::-1]
    turned.cores[0][:] = core.ravel()
    kept.keep(0, 1, turned)
    return model, kept


def test_cells_are_averaged_and_not_parameters():
    model, kept = two_draws()
    for part, sizes in enumerate(((5, 4, 3), (5, 4), (4, 2))):
        cells = np.stack(np.nonzero(np.ones(sizes)))
        np.testing.assert_allclose(kept.predict(part, cells), model.predict(part, cells), rtol=1e-12)
        mean = model.copy()
        mean.rows[:, :RANK] = kept.rows.mean(axis=(0, 1))
        mean.cores[0][:] = kept.cores[0].mean(axis=(0, 1))
        assert not np.allclose(mean.predict(part, cells), model.predict(part, cells), rtol=0.1)


def test_intervals_hold_the_draws_that_they_should():
    _, shape, site = coupled(dispersion=None)
    solver = Langevin(samples=200, burn_in=20, thin=1)
    kept = run_all(solver, shape, site)[0].kept
    cells = np.stack(np.nonzero(np.ones((5, 4))))
    low, high = kept.interval(1, cells, 0.8)
    draws = kept.draws(1, cells)
    inside = ((draws >= low) & (draws <= high)).mean(axis=(0, 1))
    np.testing.assert_allclose(inside, 0.8, atol=0.01)
    np.testing.assert_allclose(kept.predict(1, cells), draws.mean(axis=(0, 1)))
    below, above = kept.interval(1, cells, 0.8, observation=True)
    assert (above - below > high - low).mean() > 0.9
    found = kept.convergence(1, cells[:, :3])
    assert len(found) == 4
    assert all(each.rhat > 0.9 and each.effective > 0 for each in found)
    assert (kept.standard_error(1, cells[:, :3]) > 0).all()
    with pytest.raises(SettingError, match="between 0 and 1"):
        kept.interval(1, cells, 1.0)


def one_model(family, draws):
    """As many draws of the same model: what differs between observations is noise alone."""
    _, shape, _ = coupled()
    model = Langevin().init(Run(), shape).chains[0].model
    model.rows[:, :RANK] = np.abs(model.rows[:, :RANK]) + 1.0
    kept = Posterior.empty(shape.zeros(), family, 2, draws)
    for chain in range(2):
        for draw in range(draws):
            kept.keep(chain, draw, model)
    return model, kept


def test_new_observations_have_the_noise_of_their_relation():
    # Quantiles of 2000 draws: 0.17 is more than three and a half of their standard errors.
    model, kept = one_model("normal", 1000)
    kept.noise[:] = [0.25, 16.0, 1.0]
    for part, deviation in ((0, 2.0), (1, 0.25)):
        cells = np.zeros((model.parts[part].order, 1), int)
        low, high = kept.interval(part, cells, 0.9, observation=True)
        value = model.predict(part, cells)
        assert (low - value) / deviation == pytest.approx(-stats.norm.ppf(0.95), abs=0.17)
        assert (high - value) / deviation == pytest.approx(stats.norm.ppf(0.95), abs=0.17)


def test_observations_of_the_poisson_model_are_counts():
    model, kept = one_model("poisson", 1000)
    cells = np.zeros((2, 1), int)
    law = stats.poisson(model.predict(2, cells))
    low, high = kept.interval(2, cells, 0.9, observation=True)
    assert (low, high) == (np.floor(low), np.floor(high))
    assert law.ppf(0.03) <= low <= law.ppf(0.07)
    assert law.ppf(0.93) <= high <= law.ppf(0.97)


def test_convergence_is_of_the_log_density_and_then_of_each_cell():
    _, kept = one_model("normal", 50)
    generator = np.random.default_rng(1)
    kept.rows[:] *= generator.uniform(0.5, 2.0, (2, 50, 1, 1))
    kept.log_density[:] = generator.standard_normal((2, 50)) + np.array([[0.0], [9.0]])
    cells = np.array([[0, 1, 4], [0, 3, 2]])
    draws = kept.draws(1, cells)
    first, *others = kept.convergence(1, cells)
    assert first == (split_rhat(kept.log_density), effective_size(kept.log_density))
    assert first.rhat > 1.5
    for n, other in enumerate(others):
        assert other == (split_rhat(draws[..., n]), effective_size(draws[..., n]))
        assert other.rhat < 1.1
    errors = [each.std(ddof=1) / np.sqrt(effective_size(each)) for each in np.moveaxis(draws, 2, 0)]
    np.testing.assert_allclose(kept.standard_error(1, cells), errors)


def test_many_cells_are_taken_piece_by_piece(monkeypatch):
    _, shape, site = coupled()
    kept = run_all(Langevin(samples=5, burn_in=2, thin=1), shape, site)[0].kept
    cells = np.stack(np.nonzero(np.ones((5, 4))))
    whole = kept.interval(1, cells)
    monkeypatch.setattr("sfumato.models.posterior._PIECE", 70)  # seven cells
    np.testing.assert_array_equal(kept.interval(1, cells), whole)


def test_kept_samples_have_a_stated_and_bounded_size():
    _, shape, _ = coupled()
    solver = Langevin(samples=7, chains=3)
    kept = solver.finish(solver.init(Run(), shape)).posterior
    assert kept.nbytes == solver.sample_bytes(shape)
    with pytest.raises(SettingError, match="GiB"):
        Langevin(samples=10**7).init(Run(), shape)


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gamma"}, "normal, poisson"),
        ({"preconditioner": "adam"}, "rmsprop"),
        ({"model": "poisson"}, "divergence=1"),
        ({"samples": 0}, "samples"),
        ({"burn_in": -1}, "burn_in"),
        ({"batch": 0}, "batch"),
        ({"step": 0.0}, "step"),
        ({"step": 1.5}, "at most 1"),
        ({"precision_prior": (0.0, 1.0)}, "precision_prior"),
        ({"prior_precision": {"nobody": 1.0}}, "nobody"),
        ({"prior_precision": -1.0}, "prior_precision"),
        ({"prior_precision": {"user": 1.0, "place": np.nan}}, "prior_precision"),
        ({"prior_shape": {"user": 1.0, "place": np.nan}}, "prior_shape"),
        ({"prior_mean": "1"}, "prior_mean must be a number"),
        ({"noise_prior": 1.0}, "a shape and a rate"),
        ({"noise_prior": (1.0, 2.0, 3.0)}, "a shape and a rate"),
        ({"dispersion": -1.0}, "dispersion"),
        ({"decay": "0.6"}, "decay"),
        ({"step": "0.1"}, "step"),
        ({"thin": 0}, "thin"),
        ({"thin": 2.0}, "thin must be a whole number"),
        ({"burn_in": np.nan}, "burn_in"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    _, shape, _ = coupled()
    with pytest.raises(SettingError, match=message):
        Langevin(**settings).init(Run(), shape)


def test_the_number_of_rounds_is_asked_first_and_checks_too():
    _, shape, _ = coupled()
    with pytest.raises(SettingError, match="thin"):
        Langevin(thin=0).rounds(shape)


def test_a_single_model_cannot_be_samples():
    tensor = some_tensor(NAMES["visits"], np.random.default_rng(0), counts=False)
    for solver in ("langevin", Langevin(samples=2, burn_in=2, thin=1)):
        with pytest.raises(SettingError, match=r"use sfumato\.Coupled"):
            sf.CP(2, solver=solver, mean=False, biases=False).fit(tensor)


def test_poisson_refuses_what_is_no_count():
    relations, shape, site = coupled("poisson")
    solver = Langevin("poisson")
    with pytest.raises(SettingError, match="dispersion 1"):
        solver.init(Run(), replace(shape, dispersions=(1.0, None, 1.0)))
    visits = relations["visits"]
    negative = visits.tensor.with_values(-visits.tensor.values - 1)
    with pytest.raises(DataError, match="negative"):
        solver.check_relation(replace(visits, tensor=negative))
    assert isinstance(losses(solver, solver.init(Run(), shape).chains[0].model, site), Losses)
