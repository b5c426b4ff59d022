"""Multiplicative updates: sums against brute force, monotone decrease, priors, dispersion, rules."""

import numpy as np
import pytest
from made import tensor
from scipy import integrate, stats

import sfumato as sf
from sfumato.errors import DataError, SettingError
from sfumato.models.coupled import CoupledModel, Part
from sfumato.models.divergence import beta_divergence
from sfumato.sites.coupled import CoupledSite
from sfumato.solvers.coupled.shape import CoupledShape, positive_start, values_of
from sfumato.solvers.coupled.sums import core_sums, divergence, mode_sums
from sfumato.solvers.protocol import Run

RANK = 3
FLOAT = np.dtype(float)


def problem(seed, p, absent="missing", structure="cp", positive=False):
    """Three relations; the last has no mode of its own, so that it has weights."""
    generator = np.random.default_rng(seed)
    dense = {
        "a": generator.gamma(2.0, size=(6, 5, 4)),
        "b": generator.gamma(2.0, size=(5, 7)),
        "c": generator.gamma(2.0, size=(6, 5)),
    }
    known = {name: generator.random(values.shape) < 0.7 for name, values in dense.items()}
    names = {"a": "ula", "b": "lf", "c": "ul"}
    tensors = {}
    for name, values in dense.items():
        if absent == "zero":
            values[generator.random(values.shape) < 0.4] = 0.0
            hidden = generator.random(values.shape) < 0.1
            shown = np.where(hidden, np.nan, values)
            known[name] = ~hidden
            tensors[name] = tensor(names[name], shown, hidden | (values > 0))
        else:
            tensors[name] = tensor(names[name], values, known[name])
    relations = sf.Relations(tensors, divergence=p, absent=absent, structure={"a": structure})
    return relations, dense, known


def started(relations, seed=0):
    shape = CoupledShape.of(relations, RANK, FLOAT)
    return shape, positive_start(shape, seed)


def dense_value(model, part):
    letters = "abcd"[: len(model.parts[part].modes)]
    terms = ",".join(f"{letter}{letter.upper()}" for letter in letters)
    factors = [model.factor(mode) for mode in model.parts[part].modes]
    core = model.core(part)
    value = np.einsum(f"{letters.upper()},{terms}->{letters}", core, *factors)
    return value[..., 0] if model.parts[part].weighted else value


def dense_objective(model, relations, dense, known):
    return sum(
        beta_divergence(dense[name], dense_value(model, v), relations[name].divergence)[
            known[name]
        ].sum()
        for v, name in enumerate(relations)
    )


PROBLEMS = [
    (p, absent, structure)
    for p in (0.0, 0.5, 1.0, 1.5)
    for absent in ("missing", "zero")
    for structure in ("cp", "tucker")
] + [(p, "missing", structure) for p in (2.0, 2.5) for structure in ("cp", "tucker")]


@pytest.mark.parametrize(("p", "absent", "structure"), PROBLEMS)
def test_sums_are_the_two_halves_of_the_gradient(p, absent, structure):
    """Denominator less numerator is the gradient of the divergence, here by finite differences."""
    relations, dense, known = problem(1, p, absent, structure)
    shape, model = started(relations)
    site = CoupledSite(relations, 2, FLOAT)
    scales = np.array([1.0, 1.0, 1.0])
    for mode in range(len(shape.modes)):
        sums = mode_sums(model, site, mode, scales)
        assert (sums.numerator >= 0).all()
        for row, column in ((0, 0), (model.sizes[mode] - 1, RANK - 1)):
            slope = finite_difference(model, model.factor(mode), (row, column), relations, dense, known)
            found = sums.denominator[row, column] - sums.numerator[row, column]
            assert found == pytest.approx(slope, rel=1e-5, abs=1e-6)
    if structure == "tucker":
        sums = core_sums(model, site, 0, 1.0)
        slope = finite_difference(model, model.cores[0], (5,), relations, dense, known)
        assert sums.denominator[5] - sums.numerator[5] == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("p", [0.0, 1.0, 1.5])
def test_sums_over_many_entries_of_a_level(p, dtype, error):
    """More than a kernel adds up at once."""
    values = np.random.default_rng(3).gamma(2.0, size=(2, 1000))
    relations = sf.Relations({"x": tensor("ab", values)}, divergence=p)
    model = positive_start(CoupledShape.of(relations, RANK, dtype), 0)
    sums = mode_sums(model, CoupledSite(relations, 1, np.dtype(dtype)), 0, np.array([0.5]))
    left, right = (factor.astype(float) for factor in model.factors)
    found = left @ right.T
    np.testing.assert_allclose(sums.numerator, 0.5 * (values * found**-p) @ right, rtol=error)
    np.testing.assert_allclose(sums.denominator, 0.5 * found ** (1 - p) @ right, rtol=error)


def finite_difference(model, array, place, relations, dense, known, step=1e-6):
    before, ends = array[place], []
    for sign in (-1, 1):
        array[place] = before + sign * step
        ends.append(dense_objective(model, relations, dense, known))
    array[place] = before
    return (ends[1] - ends[0]) / (2 * step)


@pytest.mark.parametrize(("p", "absent", "structure"), PROBLEMS)
def test_the_divergence_is_that_of_all_observed_cells(p, absent, structure):
    """Where it is summed in closed form as well; for what a cell's is, see the next test."""
    relations, dense, known = problem(2, p, absent, structure)
    _, model = started(relations)
    site = CoupledSite(relations, 1, FLOAT)
    for v, name in enumerate(relations):
        expected = beta_divergence(dense[name], dense_value(model, v), p)[known[name]].sum()
        assert divergence(model, site, v) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_the_divergence_of_a_cell(p):
    """Eq. 2.4 is an integral, of (x - t) / t^p from v to x."""
    for x, v in ((0.3, 2.0), (1.0, 1.0), (4.0, 0.5)):
        expected, _ = integrate.quad(lambda t, x=x: (x - t) / t**p, v, x)
        assert beta_divergence(x, v, p) == pytest.approx(expected, abs=1e-9)


# -- one update, with everything at once ----------------------------------------------------------

# p, absent, structure and dispersion of three relations, and the exponent of all updates.
MIXED = {
    "closed": (
        [(1.0, "zero", "tucker", 0.5), (0.0, "zero", "cp", 3.0), (1.0, "zero", "cp", 0.2)],
        1.0,
    ),
    "closed, the other way round": (
        [(0.0, "zero", "tucker", 0.5), (1.0, "zero", "cp", 3.0), (0.0, "zero", "tucker", 0.2)],
        1.0,
    ),
    "mixed": (
        [(2.0, "missing", "tucker", 0.5), (0.3, "missing", "cp", 3.0), (1.0, "zero", "tucker", 0.2)],
        1 / 2.0,
    ),
    "all two": ([(2.0, "missing", "tucker", 0.5), *[(2.0, "missing", "cp", 3.0)] * 2], 1.0),
    "all above two": ([(2.5, "missing", "tucker", 0.5), *[(2.5, "missing", "cp", 3.0)] * 2], 1 / 2.5),
}
# Shape and mean; those that are not here have none. Without one a core's dispersion cancels.
PRIORS = {"u": (2.5, 1.5), "f": (0.4, 0.7), "core of a": (3.0, 2.0), "core of c": (2.0, 0.8)}


def mixed_problem(kinds):
    """Relations, each with settings of its own, and what is observed of them."""
    generator = np.random.default_rng(12)
    tensors, dense, known = {}, {}, {}
    for (name, modes), (_, absent, *_) in zip(
        {"a": "ula", "b": "lf", "c": "ul"}.items(), kinds, strict=True
    ):
        values = generator.gamma(2.0, size=[{"u": 6, "l": 5, "a": 4, "f": 7}[m] for m in modes])
        hidden = generator.random(values.shape) < 0.2
        stored = ~hidden
        if absent == "zero":
            values[generator.random(values.shape) < 0.4] = 0.0
            stored = hidden | (values > 0)
        tensors[name] = tensor(modes, np.where(hidden, np.nan, values), stored)
        dense[name], known[name] = values, ~hidden
    settings = {
        what: dict(zip(tensors, each, strict=True))
        for what, each in zip(
            ("divergence", "absent", "structure", "dispersion"), zip(*kinds, strict=True), strict=True
        )
    }
    return sf.Relations(tensors, **settings), dense, known


def dense_sums(model, v, block, x, known, p):
    """Numerator and denominator of a relation, for the factor of a mode or its core."""
    part, value = model.parts[v], dense_value(model, v)
    cells = [known * x * value**-p, known * value ** (1 - p)]
    if part.weighted:
        cells = [each[..., None] for each in cells]
    letters = "abcd"[: len(part.modes)]
    terms = [f"{letter}{letter.upper()}" for letter in letters]
    factors = [model.factor(mode) for mode in part.modes]
    if block.mode is None:
        form = f"{letters},{','.join(terms)}->{letters.upper()}"
        return [np.einsum(form, each, *factors).ravel() for each in cells]
    own = part.modes.index(block.mode)
    wanted, _ = terms.pop(own), factors.pop(own)
    form = f"{letters},{letters.upper()},{','.join(terms)}->{wanted}"
    return [np.einsum(form, each, model.core(v), *factors) for each in cells]


@pytest.mark.parametrize("kinds", MIXED)
@pytest.mark.parametrize("priors", [{}, PRIORS], ids=["ML", "MAP"])
def test_an_update_is_the_paper_s(kinds, priors):
    """Eq. 3.2 with dense arrays: dispersions, exponents, priors, cells that are unknown."""
    settings, exponent = MIXED[kinds]
    relations, dense, known = mixed_problem(settings)
    shape, site = CoupledShape.of(relations, RANK, FLOAT), CoupledSite(relations, 2, FLOAT)
    names = [mode.name for mode in shape.modes]
    names += [f"core of {part.name}" for part in shape.parts if part.tucker]
    priors = {name: pair for name, pair in priors.items() if name in names}
    solver = sf.Multiplicative(
        prior_shape={name: a for name, (a, _) in priors.items()},
        prior_mean={name: mean for name, (_, mean) in priors.items()},
    )
    state = solver.init(Run(), shape)
    for name, block in zip(names, shape.blocks, strict=True):
        before, above, below = values_of(state.model, block).copy(), 0.0, 0.0
        for v, (relation, (p, *_, phi)) in enumerate(zip(relations, settings, strict=True)):
            if v == block.part or block.mode in state.model.parts[v].modes:
                sums = dense_sums(state.model, v, block, dense[relation], known[relation], p)
                above, below = above + sums[0] / phi, below + sums[1] / phi
        if name in priors:
            a, mean = priors[name]
            above = above + max(a - 1, 0) / before
            below = below + a / mean + max(1 - a, 0) / before
        state, _ = solver.update(state, solver.ask(state).answer(site))
        expected = before * (above / below) ** exponent
        np.testing.assert_allclose(values_of(state.model, block), expected, rtol=1e-9)


# -- whole fits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.3, 0.7, 1.0, 1.4, 1.8, 2.0, 2.5, 3.0])
@pytest.mark.parametrize("structure", ["cp", "tucker"])
@pytest.mark.parametrize("alone", [True, False])
def test_the_divergence_never_grows(p, structure, alone):
    relations, _, _ = problem(3, p, structure=structure)
    if alone:
        relations = sf.Relations({"a": relations["a"].tensor}, divergence=p, structure=structure)
    found = sf.Coupled(RANK, sf.Multiplicative(40, tolerance=None), threads=1).fit(relations)
    history = np.array([info.objective for info in found.history_])
    assert (np.diff(history) <= 1e-9 * history[:-1]).all()
    assert history[-1] < 0.95 * history[0]


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_it_never_grows_with_zeros_either(p):
    relations, _, _ = problem(4, p, "zero")
    found = sf.Coupled(RANK, sf.Multiplicative(40, tolerance=None), threads=1).fit(relations)
    history = np.array([info.objective for info in found.history_])
    assert (np.diff(history) <= 1e-9 * history[:-1]).all()


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_closed_forms_fit_like_zeros_written_out(p):
    relations, dense, known = problem(5, p, "zero")
    explicit = {
        name: tensor(relations[name].tensor.mode_names, dense[name], known[name]) for name in relations
    }
    written = sf.Relations(explicit, divergence=p)
    fits = [sf.Coupled(RANK, sf.Multiplicative(20, tolerance=None)).fit(r) for r in (relations, written)]
    for one, other in zip(fits[0].model_.factors, fits[1].model_.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


@pytest.mark.parametrize("structure", ["cp", "tucker"])
def test_one_relation_equals_the_single_tensor(structure):
    relations, _, _ = problem(6, 1.0, structure=structure)
    data = relations["a"].tensor
    alone = (sf.CP if structure == "cp" else sf.Tucker)(
        RANK, solver=sf.Multiplicative(30), mean=False, biases=False, seed=3
    ).fit(data)
    coupled = sf.Coupled(RANK, sf.Multiplicative(30), seed=3).fit(
        sf.Relations({"a": data}, structure=structure)
    )
    np.testing.assert_allclose(alone.predict(data), coupled.predict("a", data), rtol=1e-12)


def test_planted_factors_are_found():
    generator = np.random.default_rng(7)
    model = CoupledModel.zeros((30, 20, 10, 15), 2, [Part("x", (0, 1, 2)), Part("y", (1, 3))])
    for factor in model.factors:
        factor[:] = generator.gamma(0.5, size=factor.shape)
    values = dense_value(model, 0)
    known = generator.random(values.shape) < 0.5
    relations = sf.Relations(
        {"x": tensor("abc", values, known), "y": tensor("bd", dense_value(model, 1))}
    )
    found = sf.Coupled(2, sf.Multiplicative(400, tolerance=None), starts=2, threads=1).fit(relations)
    test = tensor("abc", values, ~known)
    assert found.rmse("x", test) < 0.02 * values.std()


def test_a_prior_pulls_towards_its_mean():
    relations, _, _ = problem(8, 1.0)
    loose = sf.Coupled(RANK, sf.Multiplicative(100)).fit(relations)
    tight = sf.Coupled(RANK, sf.Multiplicative(100, prior_shape={"u": 1e6}, prior_mean={"u": 2.0})).fit(
        relations
    )
    assert np.abs(tight.factor("u") - 2.0).max() < 0.05
    assert np.abs(loose.factor("u") - 2.0).max() > 0.5


def test_the_posterior_mode_has_no_slope():
    relations, _, _ = problem(9, 1.0)
    settings = {"prior_shape": 2.0, "prior_mean": 1.5}
    found = sf.Coupled(RANK, sf.Multiplicative(1000, **settings, tolerance=None), threads=1).fit(
        relations
    )
    site, model = CoupledSite(relations, 1, FLOAT), found.model_
    for mode in range(4):
        sums = mode_sums(model, site, mode, np.ones(3))
        factor = model.factor(mode)
        slope = sums.denominator - sums.numerator - (2.0 - 1) / factor + 2.0 / 1.5
        assert np.abs(slope * factor).max() < 1e-2


def test_a_dispersion_is_estimated():
    generator = np.random.default_rng(10)
    truth = np.outer(generator.gamma(5.0, size=60), generator.gamma(5.0, size=50))
    noisy = np.maximum(truth + 3.0 * generator.standard_normal(truth.shape), 0.0)
    relations = sf.Relations({"x": tensor("ab", noisy)}, divergence=0.0, dispersion=None)
    found = sf.Coupled(1, sf.Multiplicative(200)).fit(relations)
    # The objective is minus the log likelihood of normal laws, up to a constant.
    half, squares = (
        noisy.size / 2,
        (noisy - found.predict("x", relations["x"].tensor).reshape(60, 50)) ** 2,
    )
    assert squares.mean() == pytest.approx(9.0, rel=0.1)
    assert found.history_[-1].objective == pytest.approx(half * (1 + np.log(squares.mean())), rel=1e-9)


def two_tables(seed):
    """Counts and ten times larger ones, of two components with a mode in common; many of either."""
    generator = np.random.default_rng(seed)
    users, items, features = (generator.gamma(0.5, size=(n, 2)) for n in (40, 30, 20))
    few, many = generator.poisson(3 * users @ items.T), generator.poisson(30 * users @ features.T)
    return {"few": tensor("ui", few.astype(float)), "many": tensor("uf", many.astype(float))}


def test_estimated_dispersions_weigh_their_relations():
    """The fit has no slope where each divergence is divided by twice its mean."""
    tensors = two_tables(13)
    relations = sf.Relations(tensors, divergence=0, dispersion=None)
    found = sf.Coupled(2, sf.Multiplicative(500, tolerance=None), threads=1).fit(relations)
    phi = np.array(
        [np.mean((data.values - found.predict(name, data)) ** 2) for name, data in tensors.items()]
    )
    assert phi[1] > 5 * phi[0]
    site, factor = CoupledSite(relations, 1, FLOAT), found.factor("u")
    slopes = []
    for scales in (1 / phi, np.full(2, 1 / phi.mean())):
        sums = mode_sums(found.model_, site, 0, scales)
        slopes.append(np.abs((sums.denominator - sums.numerator) * factor).max())
    assert slopes[0] < 0.02 * slopes[1]


def test_what_is_reported_is_minus_the_log_posterior():
    tensors, (a, rate) = two_tables(14), (3.0, 3.0 / 0.5)
    relations = sf.Relations(tensors, structure={"few": "tucker"}, dispersion={"many": 2.0})
    solver = sf.Multiplicative(5, prior_shape=a, prior_mean=a / rate)
    found = sf.Coupled(2, solver, threads=1).fit(relations)
    parts = [
        beta_divergence(data.values, found.predict(name, data), 1.0).sum()
        for name, data in tensors.items()
    ]
    values = np.concatenate([each.ravel() for each in (*found.model_.factors, found.model_.cores[0])])
    constant = values.size * stats.gamma.logpdf(1.0, a, scale=1 / rate) + values.size * rate
    prior = constant - stats.gamma.logpdf(values, a, scale=1 / rate).sum()
    assert found.history_[-1].objective == pytest.approx(parts[0] + parts[1] / 2 + prior)


@pytest.mark.parametrize("settings", [{"prior_shape": 3.0, "prior_mean": 0.5}, {}], ids=["MAP", "phi"])
def test_what_is_reported_never_grows_and_ends_the_fit(settings):
    """Of priors and estimated dispersions too: else a fit would stop where they pull the other way."""
    relations = sf.Relations(two_tables(14), dispersion=1.0 if settings else None)
    whole, ended = (
        sf.Coupled(2, sf.Multiplicative(300, **settings, tolerance=tolerance), threads=1).fit(relations)
        for tolerance in (None, 1e-6)
    )
    history = np.array([info.objective for info in whole.history_])
    assert (np.diff(history) <= 1e-9 * np.abs(history[:-1])).all()
    assert 10 < len(ended.history_) < 300
    assert ended.history_[-1].objective - history[-1] < 0.01 * (history[0] - history[-1])


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_rows_of_zeros_stay_zero_and_rows_without_cells_are_the_average(p):
    """Also where zeros have a closed form, in which the sums of either row come near to nothing."""
    random = np.random.default_rng(8)
    values = random.gamma(0.5, 1.0, (9, 8, 7))
    values[:, 2] = 0.0
    unknown = random.random(values.shape) < 0.2
    unknown[4] = True
    values[unknown] = np.nan
    cells = np.nonzero(values != 0)
    modes = tuple(sf.Mode(name, size) for name, size in zip("abc", values.shape, strict=True))
    tensor = sf.SparseTensor(np.stack(cells), values[cells], modes)
    relations = sf.Relations({"x": tensor}, divergence=p, absent="zero")
    method = sf.Coupled(2, sf.Multiplicative(100, tolerance=None), threads=1).fit(relations)
    assert method.factor("b")[2] == pytest.approx(0.0, abs=1e-12)
    assert all((factor > 0).all() for factor in method.model_.factors)  # from zero nothing comes back
    others = np.delete(method.factor("a"), 4, axis=0)
    assert method.factor("a")[4] == pytest.approx(others.mean(axis=0))


def test_rows_that_nothing_speaks_of_are_the_average():
    relations, _, _ = problem(11, 1.0)
    wide = tuple(sf.Mode(mode.name, mode.size + 1) for mode in relations["a"].tensor.modes)
    data = relations["a"].tensor
    grown = sf.SparseTensor(data.coordinates, data.values, wide)
    found = sf.Coupled(RANK, sf.Multiplicative(50)).fit({"a": grown})
    for name in "ula":
        factor = found.factor(name)
        np.testing.assert_allclose(factor[-1], factor[:-1].mean(axis=0), rtol=1e-12)
    solver = sf.Multiplicative(50, prior_shape={"u": 3.0}, prior_mean={"u": 1.5})
    found = sf.Coupled(RANK, solver).fit({"a": grown})
    np.testing.assert_allclose(found.factor("u")[-1], (3.0 - 1) * 1.5 / 3.0)  # the mode of the prior
    for name in "la":  # these have none
        factor = found.factor(name)
        np.testing.assert_allclose(factor[-1], factor[:-1].mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("data", "settings", "error", "says"),
    [
        (-np.ones((3, 3)), {}, DataError, "negative values"),
        (np.full((3, 3), np.inf), {}, DataError, "infinite"),
        (np.eye(3), {"divergence": 2.0}, DataError, "holds zeros"),
    ],
)
def test_values_that_cannot_be_fitted(data, settings, error, says):
    with pytest.raises(error, match=says):
        sf.Coupled(2).fit(sf.Relations({"x": tensor("ab", data)}, **settings))


def test_zeros_that_are_not_stored_count_too():
    relations = sf.Relations({"x": tensor("ab", np.ones((3, 3)))}, divergence=2.0, absent="zero")
    with pytest.raises(DataError, match="holds zeros"):
        sf.Coupled(2).fit(relations)


@pytest.mark.parametrize(
    ("solver", "says"),
    [
        (sf.Multiplicative(0), "sweeps"),
        (sf.Multiplicative(prior_shape=1.0), "a shape and a mean"),
        (sf.Multiplicative(prior_shape=-1.0, prior_mean=1.0), "above zero"),
        (sf.Multiplicative(prior_shape={"zz": 1.0}, prior_mean={"zz": 1.0}), "zz"),
        (sf.Multiplicative(prior_shape="2", prior_mean=1.0), "prior_shape must be a number"),
        (sf.Multiplicative(tolerance="1e-6"), "tolerance"),
        ("alternating", "no solver 'alternating'"),
    ],
)
def test_bad_settings_are_said(solver, says):
    with pytest.raises(SettingError, match=says):
        sf.Coupled(2, solver).fit({"x": tensor("ab", np.ones((3, 3)))})


@pytest.mark.parametrize("p", [-1.0, 3.5, "kl"])
def test_a_single_tensor_has_the_same_divergences(p):
    solver = sf.Multiplicative(divergence=p)
    with pytest.raises(SettingError, match="between 0 and 3"):
        sf.CP(2, solver=solver, mean=False, biases=False).fit(tensor("ab", np.ones((3, 3))))


@pytest.mark.parametrize("solver", ["multiplicative", "variational"])
def test_a_single_tensor_has_one_rank(solver):
    method = sf.Tucker((2, 3), solver=solver, mean=False, biases=False)
    with pytest.raises(SettingError, match="the same in every mode"):
        method.fit(tensor("ab", np.ones((3, 3))))


def test_a_single_tensor_has_no_biases():
    with pytest.raises(SettingError, match="mean=False"):
        sf.CP(2, solver="multiplicative").fit(tensor("ab", np.ones((3, 3))))
    with pytest.raises(DataError, match="negative"):
        sf.CP(2, solver="multiplicative", mean=False, biases=False).fit(tensor("ab", -np.ones((3, 3))))
