"""Private Langevin steps: kernels equal their twins, gradients are right, clipping holds."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.grid import grid
from sfumato.kernels.numba.private_langevin import Owned, Point, entry_sums, unit_sums
from sfumato.kernels.reference.private_langevin import (
    entry_sums_reference,
    gradient_reference,
    unit_sums_reference,
)
from sfumato.models.shape import Shape
from sfumato.privacy.facts import CoupledFacts, Facts
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.sites.several import RelationSites
from sfumato.solvers.private.langevin.joint import Joint
from sfumato.solvers.private.langevin.langevin_steps import SlopeQuery, Slopes
from sfumato.solvers.private.langevin.pace import Lines, Pace

examples = settings(max_examples=25, deadline=None, database=None, derandomize=True)
FAMILY = pytest.mark.parametrize("poisson", [False, True], ids=["normal", "poisson"])
BOUNDS, CLIP = (0.0, 6.0), 0.7


class Problem:
    """Some relations that share modes, parameters and how gradients are measured; few levels."""

    def __init__(self, rng, unit, poisson, local=False, clip=CLIP):
        sizes = {name: int(rng.integers(2, 6)) for name in "uvwxy"}
        rank, relations = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        modes = [_some_modes(rng) for _ in range(relations)]
        self.tensors = [_entries(rng, names, sizes) for names in modes]
        parts = [
            Facts(
                Shape(tensor.modes, (rank,) * tensor.order),
                unit,
                BOUNDS,
                30,
                local=tensor.mode_names.index("u") if local else None,
            )
            for tensor in self.tensors
        ]
        self.joint = Joint(CoupledFacts(tuple(f"r{v}" for v in range(relations)), tuple(parts)))
        self.joint.check()
        self.poisson, self.clip, joint = poisson, clip, self.joint
        self.rows = rng.normal(size=(joint.n_rows, rank))
        self.biases = 0.3 * rng.normal(size=joint.n_biases)
        self.metric = rng.uniform(0.3, 2, (len(joint.names), rank))
        self.bias_metric = rng.uniform(0.3, 1, joint.n_biases)
        if poisson:
            self.rows = np.abs(self.rows) + 0.05
            self.biases, self.bias_metric = 0 * self.biases, 0 * self.bias_metric
        means = np.zeros(relations) if poisson else rng.normal(2, 1, relations)
        self.scale = np.array([[*BOUNDS, mean, rng.uniform(0.5, 2)] for mean in means])
        own = [blocks.index(joint.own or 0) if local else 0 for blocks in joint.blocks]
        self.own = Owned(
            -1 if joint.own is None else joint.own,
            np.array(own),
            0.4,
            1.3,
            rng.uniform(0.5, 2, relations),
            3.0,
        )

    def point(self):
        how = self.scale, self.metric, self.bias_metric, self.poisson, self.clip, grid(self.clip)
        return Point(self.rows.copy(), self.biases.copy(), *how)

    def query(self):
        """The question that a fit asks, whatever the pace beside the metric."""
        none = Lines(*(np.zeros(0) for _ in range(4)))
        homes = np.zeros(len(self.joint.names))
        pace = Pace(self.metric, self.bias_metric, homes, self.biases, none, none, 0.1)
        what = self.joint, self.rows, self.biases, pace, self.scale, self.own
        return SlopeQuery(Slopes(*what, self.poisson, self.clip), self.joint.facts.unit.replaces)

    def asked(self, tensors, threads=1):
        return self.query().clipped(RelationSites(tensors, threads))


def _some_modes(rng):
    """Two to four modes, all with u, in any order."""
    others = rng.permutation(list("vwxy"))[: rng.integers(1, 4)].tolist()
    return rng.permutation(["u", *others]).tolist()


def _entries(rng, names, sizes):
    shape = [sizes[name] for name in names]
    n = int(rng.integers(1, 25))
    cells = np.stack([rng.integers(0, rng.choice([1, size]), n) for size in shape])
    modes = tuple(Mode(name, size) for name, size in zip(names, shape, strict=True))
    return SparseTensor(cells, rng.uniform(-2, 9, n), modes)


def problems(unit, poisson, **others):
    return st.integers(0, 2**32).map(
        lambda seed: Problem(np.random.default_rng(seed), unit, poisson, **others)
    )


def kept(tensor, keep):
    """Some of a tensor's entries, or none at all (which a tensor made from a table must not have)."""
    cells = np.ascontiguousarray(tensor.coordinates[:, keep])
    return SparseTensor(cells, tensor.values[keep], tensor.modes, None, True)


def squared_length(one, two):
    """Of the difference, exactly."""
    apart = (one.values - two.values).tolist()
    return Fraction(one.step) ** 2 * sum(each**2 for each in apart)


def steps_apart(fast, slow):
    return max(np.abs(a - b).max(initial=0) for a, b in zip(fast, slow, strict=True))


# -- kernels and twins ------------------------------------------------------------------------------


@FAMILY
@examples
@given(data=st.data())
def test_sums_of_entries_equal_their_twin(poisson, data):
    made = data.draw(problems(Entry(), poisson))
    packed = made.joint.packed(RelationSites(made.tensors, 1))
    slow = entry_sums_reference(made.joint.layout, made.point(), packed)
    for threads in (1, 3):
        fast = entry_sums(made.joint.layout, made.point(), packed, None, threads)
        assert steps_apart(fast, slow) <= packed.values.size  # each is cut to a step
    some = np.flatnonzero(np.arange(packed.values.size) % 3 == 1).astype(np.int32)
    fast = entry_sums(made.joint.layout, made.point(), packed, some)
    slow = entry_sums_reference(made.joint.layout, made.point(), packed, some)
    assert steps_apart(fast, slow) <= packed.values.size


@FAMILY
@pytest.mark.parametrize("local", [True, False])
@examples
@given(data=st.data())
def test_sums_of_units_equal_their_twin(local, poisson, data):
    made = data.draw(problems(Unit("u"), poisson, local=local))
    packed = made.joint.packed(RelationSites(made.tensors, 1))
    # Own rows are solved: both twins round them, and an entry's slope may be steep.
    most = 1e-7 * CLIP / grid(CLIP) + 10 * packed.values.size
    slow = unit_sums_reference(made.joint.layout, made.point(), packed, made.own)
    for threads in (1, 3):
        fast = unit_sums(made.joint.layout, made.point(), packed, made.own, None, threads)
        assert steps_apart(fast, slow) <= most
    some = np.array([1], np.int32)
    fast = unit_sums(made.joint.layout, made.point(), packed, made.own, some)
    slow = unit_sums_reference(made.joint.layout, made.point(), packed, made.own, some)
    assert steps_apart(fast, slow) <= most


@FAMILY
@examples
@given(data=st.data())
def test_gradients_are_those_of_the_log_likelihood(poisson, data):
    made = data.draw(problems(Entry(), poisson))
    packed, layout, at = (
        made.joint.packed(RelationSites(made.tensors, 1)),
        made.joint.layout,
        made.point(),
    )
    v, levels, value = 0, packed.levels[0], packed.values[0]
    order = layout.orders[v]
    rows, biases = gradient_reference(layout, at, v, levels, value)
    inside = np.clip(value, *BOUNDS)

    def likelihood(rows, biases):
        guess = at.scale[v, 2] + biases[layout.first_biases[v, :order] + levels[:order]].sum()
        guess += np.prod(rows[layout.first_rows[v, :order] + levels[:order]], axis=0).sum()
        if poisson:
            return inside * np.log(guess) - guess
        return -((inside - guess) ** 2) * at.scale[v, 3] / 2

    for gradient, k in ((rows, 0), (biases, 1)):
        for place in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = [at.rows.copy(), at.biases.copy()]
                moved[k][place] += sign * 1e-6
                ends.append(likelihood(*moved))
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(gradient[place], rel=1e-4, abs=1e-5)


# -- bounds: brute force on neighbours ---------------------------------------------------------------


@FAMILY
@examples
@given(data=st.data())
def test_an_entry_moves_sums_by_at_most_the_clip(poisson, data):
    made = data.draw(problems(Entry(), poisson, clip=data.draw(st.sampled_from([0.1, 0.7, 5.0]))))
    v = data.draw(st.integers(0, len(made.tensors) - 1))
    gone = data.draw(st.integers(0, made.tensors[v].n_entries - 1))
    here = np.arange(made.tensors[v].n_entries) != gone
    full = made.asked(made.tensors)
    rest = made.asked([kept(t, here) if k == v else t for k, t in enumerate(made.tensors)], threads=2)
    empty = [
        kept(t, ~here if k == v else np.zeros(t.n_entries, bool)) for k, t in enumerate(made.tensors)
    ]
    assert full.l2 == rest.l2 == made.clip
    assert squared_length(full, rest) <= Fraction(full.l2) ** 2
    np.testing.assert_array_equal(full.values, rest.values + made.asked(empty).values)


@FAMILY
@examples
@given(data=st.data())
def test_a_replaced_value_moves_sums_by_at_most_twice_the_clip(poisson, data):
    made = data.draw(problems(Value(), poisson, clip=0.1))
    v = data.draw(st.integers(0, len(made.tensors) - 1))
    changed = made.tensors[v].values.copy()
    changed[data.draw(st.integers(0, changed.size - 1))] = data.draw(
        st.sampled_from([-1e300, 1e300, 0.0, 6.0, np.nan])
    )
    others = [t.with_values(changed) if k == v else t for k, t in enumerate(made.tensors)]
    full, other = made.asked(made.tensors), made.asked(others)
    assert full.l2 == 2 * made.clip
    assert squared_length(full, other) <= Fraction(full.l2) ** 2


@FAMILY
@pytest.mark.parametrize("local", [True, False])
@examples
@given(data=st.data())
def test_a_unit_moves_sums_of_all_relations_by_at_most_the_clip(local, poisson, data):
    clip = data.draw(st.sampled_from([0.1, 0.7, 5.0]))
    made = data.draw(problems(Unit("u"), poisson, local=local, clip=clip))
    gone = data.draw(st.integers(0, made.joint.sizes[made.joint.names.index("u")] - 1))
    here = [t.coordinates[t.mode_names.index("u")] != gone for t in made.tensors]
    full = made.asked(made.tensors)
    rest, alone = (
        made.asked([kept(t, k == keep) for t, k in zip(made.tensors, here, strict=True)])
        for keep in (True, False)
    )
    assert squared_length(full, rest) <= Fraction(full.l2) ** 2 == Fraction(clip) ** 2
    np.testing.assert_array_equal(full.values, rest.values + alone.values)


def test_clips_are_joint_and_tight():
    # Far out every unit is clipped: what it adds is as long as the bound, over all relations together.
    made = Problem(np.random.default_rng(4), Unit("u"), False)
    made.scale[:, 2] = 1e6
    u = [t.coordinates[t.mode_names.index("u")] for t in made.tensors]
    level = int(u[0][0])
    alone = made.asked([kept(t, levels == level) for t, levels in zip(made.tensors, u, strict=True)])
    nothing = replace(alone, values=0 * alone.values)
    assert 0.9999 < float(squared_length(alone, nothing)) / CLIP**2 <= 1


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e300, 1e160])
@pytest.mark.parametrize("unit", [Entry(), Unit("u")], ids=["entry", "unit"])
def test_broken_parameters_add_no_more_than_the_bound(broken, unit):
    made = Problem(np.random.default_rng(0), unit, False, local=unit.mode is not None)
    made.rows[:] = broken
    asked = made.asked([kept(t, np.arange(t.n_entries) < (k == 0)) for k, t in enumerate(made.tensors)])
    assert squared_length(asked, replace(asked, values=0 * asked.values)) <= Fraction(CLIP) ** 2


def test_squares_below_the_range_of_numbers_do_not_get_through():
    # A steep slope times designs whose squares are lost: it would add more than the clip.
    made = Problem(np.random.default_rng(2), Entry(), False)
    made.metric[:], made.bias_metric[:] = 1e-170, 0.0
    made.scale[:, 2] = 1e200
    asked = made.asked([kept(t, np.arange(t.n_entries) < (k == 0)) for k, t in enumerate(made.tensors)])
    assert squared_length(asked, replace(asked, values=0 * asked.values)) <= Fraction(CLIP) ** 2


def test_own_rows_take_no_gradient_and_stay_out_of_the_answer():
    made = Problem(np.random.default_rng(1), Unit("u"), False, local=True)
    joint = made.joint
    numbers = (joint.n_rows - joint.sizes[joint.own]) * joint.rank
    numbers += joint.n_biases - len(made.tensors) * joint.sizes[joint.own]
    assert made.asked(made.tensors).values.size == numbers
    before = made.rows.copy()
    made.asked(made.tensors)
    np.testing.assert_array_equal(made.rows, before)  # solved in a copy
