"""The noise of private Langevin steps has the law that the proof needs.

Fixed seeds, and a false-alarm rate of one in a million for each test; the same tests reject two
thirds and three halves of the noise.
"""

import numpy as np
import pytest
from scipy import stats

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.models.shape import Shape
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import CoupledFacts, Facts
from sfumato.privacy.ledger import Draw, Ledger
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.sites.several import RelationSites
from sfumato.solvers.private.langevin.langevin_steps import RandomStepsQuery, Slopes
from sfumato.solvers.private.langevin.pace import Lines, Pace
from sfumato.solvers.private.langevin.solver import PrivateLangevin
from sfumato.solvers.private.langevin.state import State
from sfumato.solvers.protocol import Run

ALARM = 1e-6
MODES = Mode("a", 300), Mode("b", 200), Mode("c", 100)


def has_deviation(numbers, deviation):
    """Whether normal numbers of mean zero may have this deviation, at the false-alarm rate."""
    power = np.square(numbers / deviation).sum()
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], numbers.size)
    return low < power < high


def only(numbers, deviation):
    """Whether the numbers fit the deviation, and neither two thirds nor three halves of it."""
    return (
        has_deviation(numbers, deviation)
        and not has_deviation(numbers, deviation * 2 / 3)
        and not has_deviation(numbers, deviation * 3 / 2)
    )


def begun(solver, unit):
    """Two relations with one entry each, that share a mode, before the first step."""
    tensors = [
        SparseTensor(np.zeros((2, 1), np.int32), np.array([3.0]), MODES[:2]),
        SparseTensor(np.zeros((2, 1), np.int32), np.array([2.0]), MODES[::2]),
    ]
    parts = tuple(Facts(Shape(t.modes, (4, 4)), unit, (1.0, 5.0), entries=500_000) for t in tensors)
    facts, sites = CoupledFacts(("one", "two"), parts), RelationSites(tensors, 1)
    state = solver.init(Run(1), facts)
    with Ledger(unit).reserve(solver.charges(facts), Entropy(2)) as reservation:
        while not isinstance(state, State):
            query = solver.ask(state)
            answer = reservation.ask(lambda draw, query=query: Local(sites).released(query, draw))
            state, _ = solver.update(state, answer)
    return state, facts, sites


def shaken(state, after):
    """What a step has added to rows and biases, over how far it goes along a sum; not of level zero."""
    pace, joint = state.pace, state.joint
    block_of = joint.layout.block_of
    home = pace.homes[block_of][:, None]
    rows = after.rows - home - pace.rows.keep[:, None] * (state.rows - home)
    rows = rows / (pace.rows.length[:, None] * pace.metric[block_of])
    biases = after.biases - pace.bias_homes - pace.biases.keep * (state.biases - pace.bias_homes)
    biases = biases / (pace.biases.length * pace.bias_metric)
    firsts = [joint.span(block).start for block in range(3)]
    bias_firsts = [span.start for spans in joint.bias_spans for span in spans]
    return np.delete(rows, firsts, axis=0), np.delete(biases, bias_firsts), firsts


@pytest.mark.parametrize("rate", [1.0, 0.99], ids=["all", "sampled"])
@pytest.mark.parametrize("unit", [Value(), Entry(), Unit("a")], ids=["value", "entry", "unit"])
@pytest.mark.parametrize("noise", [30.0, 0.02], ids=["of privacy", "of samples"])
def test_a_step_of_a_fit_has_the_noise_that_it_is_charged_for_or_more(unit, rate, noise):
    # On each coordinate of each row and bias: what privacy asks for, or what samples need; not both.
    solver = PrivateLangevin(noise=noise, passes=3, rate=rate)
    state, facts, sites = begun(solver, unit)
    charge = solver.charges(facts)[-1]
    change = 2 if unit.replaces and rate == 1 else 1  # that a Gaussian's multiplier is relative to
    deviation = change * charge.mechanism.noise_multiplier * solver.settings(facts).clip
    released = Local(sites).released(solver.ask(state), Draw(charge, Entropy(3)))
    if rate == 1:  # as it leaves the data
        assert only(released.values[4:], deviation)
    after = solver.update(state, released)[0]
    rows, biases, firsts = shaken(state, after)
    lines = state.pace.rows, state.pace.biases
    needed = [np.maximum(line.shake / line.length, deviation) for line in lines]
    expected = np.delete(needed[0], firsts)[:, None]
    if noise < 1:
        assert np.mean(expected > deviation) > 0.5
    elif unit.hides_presence:  # else empty levels have next to nothing but a prior
        assert np.mean(expected == deviation) > 0.9
        assert np.mean(state.pace.temperatures(deviation) > 1) > 0.9
    assert only((rows / expected).ravel(), 1.0)
    bias_firsts = [span.start for spans in state.joint.bias_spans for span in spans]
    assert only(biases / np.delete(needed[1], bias_firsts), 1.0)
    assert stats.kstest((rows / expected).ravel(), "norm").pvalue > ALARM


@pytest.mark.parametrize("unit", [Entry(), Unit("a")], ids=["entry", "unit"])
@pytest.mark.parametrize("rate", [0.003, 0.2, 0.95])
def test_units_take_part_by_themselves_with_the_rate(unit, rate):
    # All units share one level of the second mode and push its row equally: it counts them.
    units, fits = 1000, 300
    modes = (Mode("a", units), Mode("b", 2))
    cells = np.stack([np.arange(units), np.zeros(units, np.int64)])
    tensor = SparseTensor(cells, np.full(units, 5.0), modes)
    facts = CoupledFacts(("one",), (Facts(Shape(modes, (1, 1)), unit, (1.0, 5.0), units),))
    state, sites = PrivateLangevin().init(Run(0), facts), RelationSites([tensor], 1)
    assert state.done == 0
    sizes = np.array([_chosen(facts, sites, rate, seed) for seed in range(fits)])
    np.testing.assert_allclose(sizes, np.rint(sizes), atol=1e-3)
    normal = (sizes - units * rate) / np.sqrt(units * rate * (1 - rate))
    assert abs(normal.mean()) * np.sqrt(fits) < stats.norm.isf(ALARM / 2)
    kurtosis = 2 + (1 - 6 * rate * (1 - rate)) / (units * rate * (1 - rate))
    assert abs(np.square(normal).mean() - 1) * np.sqrt(fits / kurtosis) < 7


def _chosen(facts, sites, rate, seed):
    """How many took part in a step without noise, each of which moves a row by the clip."""
    from sfumato.kernels.numba.private_langevin import Owned
    from sfumato.privacy.ledger import Charge
    from sfumato.privacy.mechanisms import PoissonGaussian
    from sfumato.solvers.private.langevin.joint import Joint

    joint = Joint(facts)
    rows, biases = np.ones((joint.n_rows, 1)), np.zeros(joint.n_biases)
    own = Owned(-1, np.zeros(1, np.int64), 0.0, 1.0, np.ones(1), 1.0)
    line = [
        Lines(np.ones(n), np.ones(n), np.zeros(n), np.ones(n)) for n in (joint.n_rows, joint.n_biases)
    ]
    metric = np.array([[1e-6], [1.0]])  # nearly all of a gradient's length is in the shared row
    pace = Pace(metric, 1e-6 * np.ones(joint.n_biases), np.zeros(2), biases, *line, 0.1)
    of = Slopes(joint, rows, biases, pace, np.array([[1.0, 5.0, 0.0, 1.0]]), own, False, 1.0)
    draw = Draw(Charge("steps", PoissonGaussian(1e-9, rate, 1, False)), Entropy(seed))
    return RandomStepsQuery(of, rate).noisy(sites, draw).rows[-2, 0] - 1
