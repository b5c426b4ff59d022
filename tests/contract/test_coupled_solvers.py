"""What every solver of coupled models keeps to; a new one is tested by being listed."""

import inspect
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.fit.completion import carry_out
from sfumato.fit.plan import Plan
from sfumato.models.coupled import CoupledModel
from sfumato.sites.coupled import CoupledSite
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.protocol import Run
from sfumato.solvers.registry import names, solver_class

SHORT = {
    "multiplicative": {"sweeps": 6},
    "variational": {"sweeps": 6},
    "langevin": {"model": "poisson", "burn_in": 6, "samples": 4, "thin": 2},
    "gibbs": {"burn_in": 6, "samples": 20, "thin": 2},
}
solvers = pytest.mark.parametrize("name", names("coupled"))


def counts(names, shape, generator):
    modes = tuple(sf.Mode(name, size) for name, size in zip(names, shape, strict=True))
    return sf.SparseTensor(
        np.stack(np.nonzero(np.ones(shape))), generator.poisson(2.0, int(np.prod(shape))) + 0.0, modes
    )


GENERATOR = np.random.default_rng(0)
RELATIONS = sf.Relations(
    {
        "visits": counts("ula", (6, 5, 4), GENERATOR),
        "features": counts("lf", (5, 7), GENERATOR),
        "trips": counts("ul", (6, 5), GENERATOR),
    },
    structure={"visits": "tucker"},
)
SHAPE = CoupledShape.of(RELATIONS, 2)


def make(name):
    return replace(solver_class(name, "coupled")(), **SHORT[name])


def site():
    return CoupledSite(RELATIONS, 1, np.dtype(float))


@solvers
def test_settings_are_a_frozen_record_that_only_stores(name):
    solver = make(name)
    assert is_dataclass(solver)
    assert solver.name == name
    assert solver == make(name)
    with pytest.raises(AttributeError):
        setattr(solver, fields(solver)[0].name, 1)


@solvers
def test_the_start_needs_no_data(name):
    assert list(inspect.signature(make(name).init).parameters) == ["run", "shape"]


@solvers
def test_the_loop_asks_as_often_as_it_says_and_ends_with_numbers(name):
    solver, told = make(name), []
    plan = Plan(SHAPE, solver)
    fit = carry_out(plan, Local(site()), lambda number, rounds, _: told.append((number, rounds)))
    assert told == [(number, plan.rounds) for number in range(1, plan.rounds + 1)]
    assert isinstance(fit.model, CoupledModel)
    assert all(np.isfinite(part).all() for part in fit.model.parameters)
    assert fit.history[-1].objective is not None


@solvers
def test_seeds_repeat_and_differ(name):
    first, same, other = (
        carry_out(Plan(SHAPE, make(name), Run(seed)), Local(site())).model for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.rows, same.rows)
    assert not np.array_equal(first.rows, other.rows)


@solvers
def test_data_are_left_alone(name):
    before = {key: relation.tensor.values.copy() for key, relation in RELATIONS.items()}
    carry_out(Plan(SHAPE, make(name)), Local(site()))
    for key, relation in RELATIONS.items():
        np.testing.assert_array_equal(relation.tensor.values, before[key])


@solvers
def test_kept_and_loaded_it_predicts_the_same(name, tmp_path):
    found = sf.Coupled(2, make(name), threads=1).fit(RELATIONS)
    found.save(tmp_path / "model")
    loaded = sf.load(tmp_path / "model")
    cells = RELATIONS["visits"].tensor
    np.testing.assert_array_equal(found.predict("visits", cells), loaded.predict("visits", cells))
    if found.posterior_ is not None:
        for mine, theirs in zip(
            found.predict("visits", cells, interval=0.8),
            loaded.predict("visits", cells, interval=0.8),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, theirs)
        assert_same(found.posterior_, loaded.posterior_)


def assert_same(mine, theirs):
    """Posteriors with the same numbers everywhere."""
    assert type(mine) is type(theirs)
    for part in fields(mine):
        one, other = getattr(mine, part.name), getattr(theirs, part.name)
        if isinstance(one, CoupledModel):
            if part.name == "frame":  # is written over
                continue
            one, other = one.parameters, other.parameters
        if isinstance(one, tuple):
            for left, right in zip(one, other, strict=True):
                np.testing.assert_array_equal(left, right)
        else:
            np.testing.assert_array_equal(one, other)


@solvers
def test_intervals_hold_the_mean(name):
    found = sf.Coupled(2, make(name), threads=1).fit(RELATIONS)
    cells = RELATIONS["features"].tensor
    if found.posterior_ is None:
        with pytest.raises(sf.SettingError, match="Bayesian"):
            found.predict("features", cells, interval=0.9)
        return
    mean, low, high = found.predict("features", cells, interval=0.9)
    assert ((low <= mean) & (mean <= high)).mean() > 0.9
    narrow = found.predict("features", cells, interval=0.5)
    assert (high - low > narrow[2] - narrow[1]).all()
    for level in (0, 1.5, np.nan, "0.9"):
        with pytest.raises(sf.SettingError, match="between 0 and 1"):
            found.predict("features", cells, interval=level)


@solvers
def test_zeros_are_not_visited(name):
    """Of 64 million million cells, 40 have entries."""
    generator = np.random.default_rng(1)
    modes = tuple(sf.Mode(mode, 40_000) for mode in "xyz")
    few = sf.SparseTensor(generator.integers(0, 40_000, (3, 40)), np.ones(40), modes)
    relations = sf.Relations({"few": few}, absent="zero")
    assert relations["few"].cells == 64 * 10**12
    found = sf.Coupled(2, make(name), threads=1).fit(relations)
    assert np.isfinite(found.history_[-1].objective)
    assert np.isfinite(found.predict("few", few)).all()


@solvers
def test_negative_counts_are_refused(name):
    values = RELATIONS["features"].tensor
    negative = values.with_values(-values.values - 1)
    with pytest.raises(sf.DataError, match="negative"):
        sf.Coupled(2, make(name)).fit({"features": negative})
