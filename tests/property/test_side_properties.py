"""Questions of one relation beside others: kernels against twins, and neighbours against bounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.estimators.coupled_private import prepared
from sfumato.kernels.numba.cells import Cells, OwnMap, Shortening, cross_cells, own_numbers
from sfumato.kernels.numba.contributions import Entries, Taken
from sfumato.kernels.reference.cells import cross_cells_reference, own_numbers_reference
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Draw
from sfumato.sites.several import RelationSites
from sfumato.solvers.private.pairs.solver import PrivatePairs
from sfumato.solvers.private.sides.queries import CrossQuery, OwnMomentQuery, OwnSideQuery
from sfumato.solvers.protocol import Run

SIDE = (CrossQuery, OwnMomentQuery, OwnSideQuery)


# -- kernels --------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([1, 2]))
@settings(max_examples=25, deadline=None)
def test_cross_sums_are_those_of_the_twin(seed, scaled, threads):
    g = np.random.default_rng(seed)
    owners, levels = 7, 9
    counts = g.integers(0, levels, owners)
    starts = np.concatenate([[0], np.cumsum(counts)])
    at = np.concatenate([np.sort(g.choice(levels, n, replace=False)) for n in counts])
    cells = Cells(starts, at.astype(np.int32), np.arange(at.size, dtype=np.int32))
    numbers, weights = g.standard_normal(at.size), g.uniform(0.5, 2, levels)
    coordinates = g.standard_normal((owners, 3))
    how = Shortening(3.0 if scaled else np.inf, float(g.uniform(0.2, 2)))
    got = cross_cells(cells, numbers, weights, coordinates, how, 2.0**-20, threads)
    assert (
        np.abs(got - cross_cells_reference(cells, numbers, weights, coordinates, how, 2.0**-20)).max()
        <= 1
    )


@given(st.integers(0, 10**6), st.sampled_from([1, 2]), st.sampled_from([1, 2]))
@settings(max_examples=25, deadline=None)
def test_own_numbers_are_those_of_the_twin(seed, others, threads):
    g = np.random.default_rng(seed)
    owners, sizes, columns = 6, (5, 4)[:others], 3
    counts = g.integers(0, 6, owners)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    levels = np.stack([g.integers(0, size, starts[-1]) for size in sizes]).astype(np.int32)
    entries = Entries(levels, g.normal(2, 2, starts[-1]), starts, 0.0, 5.0)
    taken = Taken(2.0, g.standard_normal(sizes[0]), np.array([0, -1][:others]), np.zeros(0))
    rows = g.standard_normal((sum(sizes), columns))
    offsets = np.array([0, sizes[0]][:others])
    turn = g.standard_normal((2, 1 + 2 * columns))
    how = OwnMap(rows, offsets, turn, 1.5, 2.0, 4.0, 0.4)
    got = own_numbers(entries, taken, how, threads)
    assert np.allclose(got, own_numbers_reference(entries, taken, how), atol=1e-12)
    assert np.linalg.norm(got, axis=1).max() <= 0.4


# -- neighbours -----------------------------------------------------------------------------------


def _relations(g, shapes, entries):
    """Random tensors by name; ``shapes`` has the modes of each by name and size."""
    found = {}
    for name, modes in shapes.items():
        sizes = [size for _, size in modes]
        cells = np.unravel_index(g.choice(np.prod(sizes), min(entries, np.prod(sizes)), False), sizes)
        values = np.where(g.random(len(cells[0])) < 0.3, g.choice([-1.0, 1.0], len(cells[0])), 0.2)
        named = tuple(sf.Mode(mode, size) for mode, size in modes)
        found[name] = sf.SparseTensor(np.stack(cells), values, named, (-1.0, 1.0))
    return found


USER, ITEM, TAG, DAY, CLUB = ("user", 8), ("item", 6), ("tag", 5), ("part", 3), ("club", 4)
COUPLINGS = {
    "owners": {"main": (USER, ITEM), "side": (USER, TAG)},
    "three": {"main": (USER, ITEM), "side": (USER, TAG, DAY), "more": (USER, CLUB)},
    "both shared": {"main": (USER, ITEM, DAY), "side": (USER, ITEM)},
    "items": {"main": (USER, ITEM), "side": (ITEM, TAG)},
    "order four": {"main": (USER, ITEM, DAY, CLUB), "side": (USER, TAG)},
}


def _plan(tensors, unit, local, public=(), structure=None, method="bias", rank=3):
    sizes = {mode.name: mode.size for tensor in tensors.values() for mode in tensor.modes}
    said = {n: True if n in public else sf.Public(entries=t.n_entries) for n, t in tensors.items()}
    privacy = sf.Privacy(
        5.0,
        1e-5,
        unit=unit,
        local=local,
        method=method,
        seed=0,
        public=sf.Public(labels={n: range(s) for n, s in sizes.items()}, relations=said),
    )
    structures = {name: (structure or {}).get(name, "cp") for name in tensors}
    return prepared(tensors, structures, privacy, rank, Run(0, 1), Entropy(0))


def _asked(ready, tensors, names):
    """All questions of a fit, with the state that they are asked in: noise is seeded."""
    plan = ready.plan
    solver, facts = plan.task.solver, plan.task.facts
    several = len(names) > 1
    site = RelationSites([tensors[n] for n in names], 1)
    held = site if several else site.parts[0]
    state = solver.init(plan.run, facts)
    for number, charge in enumerate(plan.charges):
        query = solver.ask(state)
        yield number, query, held
        state, _ = solver.update(state, Draw(charge, Entropy(number)).release(query.clipped(held)))
    assert np.isfinite(solver.finish(state).model.parameters[0]).all()


def _neighbour(g, tensors, names, unit):
    """One relation with an entry more or less, or a value changed; or all with a level less."""
    changed = dict(tensors)
    if unit == "user":
        level = int(g.integers(0, USER[1]))
        for name in names:
            tensor = tensors[name]
            kept = tensor.coordinates[tensor.mode_index("user")] != level
            changed[name] = tensor.take(np.flatnonzero(kept))
        return changed, set(names)
    name = str(g.choice(names))
    tensor = tensors[name]
    at = int(g.integers(0, tensor.n_entries))
    if unit == "value":
        values = tensor.values.copy()
        values[at] = -1.0 if values[at] > 0 else 1.0
        changed[name] = tensor.with_values(values, tensor.bounds)
    elif g.random() < 0.7:
        changed[name] = tensor.take(np.flatnonzero(np.arange(tensor.n_entries) != at))
    else:  # one more, perhaps at a cell that has one already
        cell = np.array([[g.integers(0, size)] for size in tensor.shape], np.int32)
        both = np.concatenate([tensor.coordinates, cell], axis=1)
        values = np.append(tensor.values, g.choice([-1.0, 1.0]))
        changed[name] = sf.SparseTensor(both, values, tensor.modes, tensor.bounds)
    return changed, {name}


CASES = [
    (coupling, unit, local, public, structure)
    for coupling in COUPLINGS
    for unit, local in (("entry", "user"), ("entry", None), ("user", "user"), ("value", None))
    for public, structure in (((), None), (("side",), None), ((), {"main": "tucker"}))
    if not (coupling == "items" and unit == "user" and not public)
]


@pytest.mark.parametrize(("coupling", "unit", "local", "public", "structure"), CASES)
def test_neighbours_move_no_answer_by_more_than_it_states(coupling, unit, local, public, structure):
    """Nor at all, where the relation that differs is none that the draw is said to look at."""
    g = np.random.default_rng(sum(map(ord, f"{coupling}{unit}{local}{public}{structure}")))
    tensors = _relations(g, COUPLINGS[coupling], 18)
    asked = _check_neighbours(g, tensors, _plan(tensors, unit, local, public, structure), unit, public)
    beside = unit != "user" or coupling != "items" or public
    if structure is None and beside and (local or public) and coupling != "items":
        assert asked, "nothing was asked beside other relations"


@pytest.mark.parametrize("coupling", ["owners", "three", "both shared", "order four"])
@pytest.mark.parametrize("unit", ["entry", "user"])
@pytest.mark.parametrize("public", [(), ("side",)])
def test_own_rows_are_asked_about_once_and_within_bounds(coupling, unit, public):
    """Also along the columns of a relation's own fit, which then does not ask by itself."""
    g = np.random.default_rng(sum(map(ord, f"{coupling}{unit}{public}")))
    tensors = _relations(g, COUPLINGS[coupling], 18)
    ready = _plan(tensors, unit, "user", public, method="moments", rank=24)
    assert _check_neighbours(g, tensors, ready, unit, public)
    names = [name for name in tensors if name not in public]
    about = [charge.label.rpartition(": ")[2] for charge in ready.plan.charges]
    assert about.count("squares of own rows") == len(names)


@pytest.mark.parametrize("coupling", ["both shared", "order four"])
@pytest.mark.parametrize("unit", ["entry", "user"])
def test_a_relation_with_effects_of_its_owners_stays_within_bounds(coupling, unit):
    g = np.random.default_rng(sum(map(ord, f"{coupling}{unit}pairs")))
    tensors = _relations(g, COUPLINGS[coupling], 18)
    ready = _plan(tensors, unit, "user", ("side",), method="pairs", rank=None)
    assert isinstance(ready.plan.task.solver.inner, PrivatePairs)
    assert _check_neighbours(g, tensors, ready, unit, ("side",)) >= 2


def _check_neighbours(g, tensors, ready, unit, public):
    """Ask everything of neighbours too; how many questions were about other relations."""
    names = [name for name in tensors if name not in public]
    others = [_neighbour(g, tensors, names, unit) for _ in range(4)]
    solver, facts = ready.plan.task.solver, ready.plan.task.facts
    looks = [{names[0]}] * len(ready.plan.charges)
    if len(names) > 1:
        looks = [{names[v] for v in drawn.concerns} for drawn in solver.draws(facts)]
    asked = 0
    for number, query, held in _asked(ready, ready.tensors, names):
        answer = query.clipped(held)
        asked += isinstance(query, SIDE)
        for changed, differing in others:
            site = RelationSites([changed[n] for n in names], 1)
            other = query.clipped(site if len(names) > 1 else site.parts[0])
            apart = np.linalg.norm((answer.values - other.values) * answer.step)
            if differing & looks[number]:
                assert apart <= answer.l2 * (1 + 1e-9), (number, type(query).__name__, apart / answer.l2)
            else:
                assert apart == 0, (number, type(query).__name__)
    return asked


def test_the_bounds_are_not_idle():
    """Bounds that nothing comes near would be noise for nothing: an entry of its own gets close."""
    g = np.random.default_rng(5)
    tensors = _relations(g, COUPLINGS["owners"], 18)
    ready = _plan(tensors, "entry", "user", ("side",))
    closest = 0.0
    for _, query, held in _asked(ready, ready.tensors, ["main"]):
        if isinstance(query, CrossQuery):
            columns = query.columns / np.linalg.norm(query.columns, axis=1, keepdims=True) * query.reach
            longest = replace(query, columns=columns)
            answer = longest.clipped(held)
            for at in range(held.tensor.n_entries):
                fewer = held.tensor.take(np.flatnonzero(np.arange(held.tensor.n_entries) != at))
                other = longest.clipped(type(held)(fewer, 1))
                apart = np.linalg.norm((answer.values - other.values) * answer.step)
                closest = max(closest, apart / answer.l2)
    assert 0.95 < closest <= 1
