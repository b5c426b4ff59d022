"""Sums of clipped gradients: against their twin, against JAX' own derivatives, and in whole numbers.

Bounds are counted in Python's integers, in steps of 2^-36 of the clip: nothing is rounded in the tests.
"""

import json
from contextlib import contextmanager
from math import inf, isqrt
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.kernels.grid import INPUT_STEP
from sfumato.kernels.jax import dense as on_jax
from sfumato.kernels.jax import double_precision
from sfumato.kernels.jax.dense import Given
from sfumato.kernels.jax.scattering import scattered
from sfumato.kernels.numba import dense as on_processors
from sfumato.kernels.reference.dense import clipped_sums_reference, norms_reference
from sfumato.models.features import Column, Columns, Pictures
from sfumato.models.network import Architecture
from sfumato.sites.examples import Examples
from sfumato.solvers.network.queries import CentreQuery, GradientQuery

CLIP, CHUNK = 0.5, 16
ONE = 2**36  # the clip, in steps
NETWORKS = [
    Architecture(5, 3),
    Architecture(4, 1, loss="numbers"),
    Architecture(4, 2, (3, 5), "tanh"),
    Architecture(4, 1, (4, 3), "relu", "numbers"),
]
networks = st.sampled_from(NETWORKS)
KERNELS = {"processors": on_processors, "JAX": on_jax}
kernels = st.sampled_from(list(KERNELS))
seeds = st.integers(0, 2**32)
# Few examples: each draws a whole problem, and compiled shapes are the networks' own.
quick = settings(derandomize=True, deadline=None, max_examples=20)
FIXTURE = Path(__file__).parents[1] / "fixtures" / "scattering.json"


def some_examples(network, generator, number, owners=None, reach=1.0):
    inputs = generator.normal(size=(number, network.inputs))
    inputs *= reach * generator.uniform(0.2, 1, (number, 1)) / np.linalg.norm(inputs, axis=1)[:, None]
    inputs[generator.random(inputs.shape) < 0.1] = 0  # times an infinite weight that is NaN
    if network.loss == "classes":
        targets = generator.integers(0, network.outputs, number).astype(np.int32)
    else:
        targets = generator.uniform(-1, 1, (number, network.outputs)).astype(np.float32)
    return Examples((inputs / INPUT_STEP).astype(np.int16), targets, owners)


def some_parameters(network, generator, size=1.0):
    return (generator.normal(size=network.parameters) * size).astype(np.float32)


def layers_of(network, parameters):
    return [tuple(layer) for layer in network.layers(parameters)]


def some_factors(network, generator, number=CHUNK):
    shapes = [(number, size) for size in network.sizes[:-1]]
    return [1 + 0.5 * generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def one_chunk(examples, number=CHUNK):
    return next(examples.chunks(np.arange(len(examples.inputs)), number))


def sums_by(kernels, network, *given_both):
    total = np.zeros(network.parameters, np.int64)
    parts = [part for layer in network.layers(total) for part in layer]
    kernels.add_clipped_sums(parts, *given_both)
    return parts


def kind(network):
    return network.activation, network.loss


@contextmanager
def computed_by(name):
    """By JAX' kernels as well, as if it had found something faster than this machine's processors."""
    with mock.patch("sfumato.kernels.jax.accelerated", return_value=name == "JAX"):
        yield


# -- the twin ---------------------------------------------------------------------------------------


def exact_problem(generator, hidden):
    """Small multiples of powers of two: single precision computes them without any rounding."""
    network = Architecture(3, 2, hidden, "relu", "numbers")
    whole = generator.integers(-3, 4, network.parameters) / 4
    inputs = generator.integers(-3, 4, (CHUNK, 3)) / 4
    targets = (generator.integers(-8, 9, (CHUNK, 2)) / 4).astype(np.float32)
    squares = (1 + (inputs**2).sum(1)).astype(np.float32)
    present = (generator.random(CHUNK) < 0.8).astype(np.float32)
    chunk = Given((inputs / INPUT_STEP).astype(np.int16), squares, targets, present)
    return network, layers_of(network, whole.astype(np.float32)), chunk


@given(seeds, kernels, st.sampled_from([(), (4, 4)]), st.booleans(), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=40)
def test_sums_are_those_of_their_twin_to_the_last_step(seed, name, hidden, dropout, owned):
    generator = np.random.default_rng(seed)
    network, layers, chunk = exact_problem(generator, hidden)
    factors = None
    if dropout:
        factors = [
            generator.choice([0, 0.5, 1, 2], (CHUNK, size)).astype(np.float32)
            for size in network.sizes[:-1]
        ]
    given_both = layers, chunk, factors, np.float32(CLIP), "relu", "numbers"
    if owned:
        lengths = generator.uniform(1, 30, CHUNK).astype(np.float32)
        given_both += lengths, generator.uniform(0, 0.5, CHUNK)
    with double_precision():
        ours = sums_by(KERNELS[name], network, *given_both)
    theirs = clipped_sums_reference(*given_both)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@given(seeds, kernels, networks, st.booleans())
@settings(derandomize=True, deadline=None, max_examples=40)
def test_sums_are_those_of_their_twin_but_for_single_precision(seed, name, network, dropout):
    """A hundred-thousandth of the clip for each example: single precision has seven digits."""
    generator = np.random.default_rng(seed)
    chunk = one_chunk(some_examples(network, generator, 11))
    layers = layers_of(network, some_parameters(network, generator))
    factors = some_factors(network, generator) if dropout else None
    given_both = layers, chunk, factors, np.float32(CLIP), *kind(network)
    with double_precision():
        ours = np.concatenate([part.ravel() for part in sums_by(KERNELS[name], network, *given_both)])
        lengths = np.asarray(KERNELS[name].norms(layers, chunk, factors, *kind(network)))
    theirs = np.concatenate([part.ravel() for part in clipped_sums_reference(*given_both)])
    assert abs(ours - theirs).max() <= 11e-5 * ONE
    assert abs(theirs).max() > 0.01 * ONE
    expected = norms_reference(layers, chunk, factors, *kind(network))
    np.testing.assert_allclose(lengths[:11], expected[:11], rtol=1e-4, atol=1e-6)


# -- derivatives --------------------------------------------------------------------------------------


def loss_of(network, parameters, inputs, target, factors):
    """An example's loss, as JAX would have it written; nothing is rounded."""
    into, layers = inputs, network.layers(parameters)
    for number, (weights, intercepts) in enumerate(layers):
        if factors is not None:
            into = into * factors[number]
        into = into @ weights + intercepts
        if number < len(layers) - 1:
            bent = jax.nn.relu(into) if network.activation == "relu" else jnp.tanh(into)
            into = bent / np.sqrt(bent.size)
    if network.loss == "classes":
        return -jax.nn.log_softmax(into)[target]
    return ((into - target) ** 2).sum() / 2


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_ghost_norms_are_those_of_every_examples_gradient(name, network, dropout):
    generator = np.random.default_rng(3)
    examples = some_examples(network, generator, CHUNK)
    parameters = some_parameters(network, generator)
    factors = some_factors(network, generator) if dropout else None
    chunk = one_chunk(examples)
    with double_precision():
        layers = layers_of(network, parameters)
        ours = np.asarray(KERNELS[name].norms(layers, chunk, factors, *kind(network)))
        each = jax.vmap(
            jax.grad(lambda p, x, t, f: loss_of(network, p, x, t, f)),
            (None, 0, 0, None if factors is None else 0),
        )(parameters.astype(np.float64), chunk.inputs * INPUT_STEP, chunk.targets, factors)
    rounded = bool(network.hidden) or dropout  # what goes into hidden layers, to the grid
    np.testing.assert_allclose(ours, np.linalg.norm(each, axis=1), 2e-3 if rounded else 1e-4, 1e-4)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_unclipped_sums_are_the_gradient_by_finite_differences(network):
    generator = np.random.default_rng(4)
    examples = some_examples(network, generator, 9)
    parameters, clip = some_parameters(network, generator, 0.5), 100.0
    query = GradientQuery(network, parameters, clip, CHUNK)
    found = query.clipped(examples, np.arange(9), generator).numbers * clip
    with double_precision():

        def loss(p):
            pairs = zip(examples.inputs * INPUT_STEP, examples.targets, strict=True)
            return sum(float(loss_of(network, p, x, t, None)) for x, t in pairs)

        for place in generator.choice(network.parameters, 5, replace=False):
            ahead, behind = parameters.astype(np.float64), parameters.astype(np.float64)
            ahead[place] += 1e-5
            behind[place] -= 1e-5
            assert found[place] == pytest.approx((loss(ahead) - loss(behind)) / 2e-5, abs=2e-3)


# -- sensitivity --------------------------------------------------------------------------------------


def sum_over(query, examples, units, seed=0, name="processors"):
    with computed_by(name):
        return query.clipped(examples, np.asarray(units), np.random.default_rng(seed)).values


def length_of(whole):
    """Of a vector of whole numbers, rounded up."""
    return isqrt(sum(int(number) ** 2 for number in whole) - 1) + 1 if whole.any() else 0


SIZES = [1e-3, 1.0, 1e4, 1e18, 1e30, 3e38]


def broken(parameters, how, generator):
    """Parameters of a network that has diverged."""
    with np.errstate(over="ignore"):
        parameters = parameters * np.float32(how if isinstance(how, float) else 1.0)
    if how in ("nan", "inf"):
        parameters[generator.random(parameters.size) < 0.2] = np.nan if how == "nan" else np.inf
    return parameters


@given(
    seeds,
    kernels,
    networks,
    st.sampled_from([*SIZES, "nan", "inf"]),
    st.sampled_from([CLIP, 1e-30, 1e-44, 1e38]),
)
@settings(derandomize=True, deadline=None, max_examples=160)
def test_an_example_moves_the_sum_by_the_clip_at_most(seed, name, network, how, clip):
    """Counted in whole numbers; whatever the network has become, and however small the clip is."""
    generator = np.random.default_rng(seed)
    examples = some_examples(network, generator, 20, reach=generator.choice([0.01, 1.0, 1.9]))
    parameters = broken(some_parameters(network, generator), how, generator)
    query = GradientQuery(network, parameters, clip, CHUNK)
    everyone = generator.permutation(20)
    whole = sum_over(query, examples, everyone, name=name)
    for left_out in everyone[:3]:
        less = sum_over(query, examples, everyone[everyone != left_out], name=name)
        assert length_of(whole - less) <= ONE


@given(
    seeds,
    kernels,
    networks,
    st.sampled_from([*SIZES, "nan", "inf"]),
    st.sampled_from([CLIP, 1e-30, 1e38]),
)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_an_owner_moves_the_sum_by_the_clip_at_most(seed, name, network, how, clip):
    generator = np.random.default_rng(seed)
    owners = np.unique(generator.integers(0, 4, 22), return_inverse=True)[1]
    examples = some_examples(network, generator, 22, owners)
    parameters = broken(some_parameters(network, generator), how, generator)
    query = GradientQuery(network, parameters, clip, CHUNK)
    everyone = np.arange(examples.units)
    whole = sum_over(query, examples, everyone, name=name)
    for owner in everyone:
        less = sum_over(query, examples, everyone[everyone != owner], name=name)
        assert length_of(whole - less) <= ONE


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_no_number_in_one_example_is_in_no_sum(name):
    """An input of zero times a weight that is infinite in single precision."""
    generator, network = np.random.default_rng(0), Architecture(4, 2, (3,), "relu")
    examples = some_examples(network, generator, 20)
    examples.inputs[:, 0] = -5000
    examples.inputs[19, 0] = 0
    parameters = some_parameters(network, generator)
    parameters[0] = np.inf
    query = GradientQuery(network, parameters, 0.05, CHUNK)
    less = sum_over(query, examples, np.arange(19), name=name)
    assert length_of(less) > ONE
    assert length_of(sum_over(query, examples, np.arange(20), name=name) - less) <= ONE


def test_gradients_below_the_range_of_single_precision_are_clipped_all_the_same():
    """Squares of errors of e^-55 are zero, and so are norms; beside a clip of 1e-30 they are not."""
    network = NETWORKS[0]
    examples = some_examples(network, np.random.default_rng(0), 2)
    examples.targets[:] = 0
    parameters = np.zeros(network.parameters, np.float32)
    parameters[-3], parameters[-1] = 55, -55
    query = GradientQuery(network, parameters, 1e-30, CHUNK)
    assert length_of(sum_over(query, examples, [0])) <= ONE


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_the_bound_is_reached(network, owned):
    """So that the tests above can fail, and no noise is wasted."""
    generator = np.random.default_rng(0)
    owners = np.zeros(6, np.int64) if owned else None
    examples = some_examples(network, generator, 6, owners)
    # The same example several times: an owner's gradients all point the same way.
    examples = Examples(
        examples.inputs[[0] * 6].copy(), examples.targets[[0] * 6].copy(), examples.owners
    )
    query = GradientQuery(network, some_parameters(network, generator), 1e-3, CHUNK)
    assert 0.9999 * ONE < length_of(sum_over(query, examples, [0])) <= ONE


@given(seeds, networks, st.booleans())
@quick
def test_dropout_is_clipped_as_well(seed, network, owned):
    """With the same factors, drawn for the same places: the last unit is left out."""
    generator = np.random.default_rng(seed)
    owners = np.repeat(np.arange(5), 3) if owned else None
    examples = some_examples(network, generator, 15, owners)
    query = GradientQuery(network, some_parameters(network, generator), 0.05, CHUNK, dropout=0.5)
    units = np.arange(examples.units)
    difference = sum_over(query, examples, units) - sum_over(query, examples, units[:-1])
    assert 0 < length_of(difference) <= ONE


@pytest.mark.parametrize(
    "network", [NETWORKS[0], NETWORKS[2], Architecture(300, 10, (70, 33), "relu")], ids=str
)
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_where_an_example_lies_in_a_batch_does_not_matter(name, network, owned):
    """The assumption that the guarantee names, for this machine: sums agree to the last step."""
    generator = np.random.default_rng(5)
    number = 300
    owners = np.sort(generator.integers(0, 40, number)) if owned else None
    if owned:
        owners = np.unique(owners, return_inverse=True)[1]
    examples = some_examples(network, generator, number, owners)
    query = GradientQuery(network, some_parameters(network, generator), CLIP, 128)
    units = np.arange(examples.units)
    sums = [sum_over(query, examples, generator.permutation(units), name=name) for _ in range(4)]
    for other in sums[1:]:
        np.testing.assert_array_equal(sums[0], other)
    groups = np.array_split(generator.permutation(units), 7)
    parts = [sum_over(query, examples, part, name=name) for part in groups]
    np.testing.assert_array_equal(sums[0], sum(parts))  # batches with other examples, or none


def test_other_chunks_add_up_to_the_same_but_for_single_precision():
    """How products of matrices round depends on their shape, which is public."""
    generator, network = np.random.default_rng(6), NETWORKS[2]
    examples = some_examples(network, generator, 100)
    parameters = some_parameters(network, generator)
    sums = [
        sum_over(GradientQuery(network, parameters, CLIP, chunk), examples, np.arange(100))
        for chunk in (7, 1024)
    ]
    for other in sums[1:]:
        assert abs(sums[0] - other).max() < 100e-5 * ONE


def test_a_chunk_is_no_larger_than_what_adds_up_exactly():
    with pytest.raises(ValueError, match="chunk"):
        GradientQuery(NETWORKS[0], np.zeros(18, np.float32), 1.0, 2**16 + 1)


def test_no_batch_is_a_sum_of_nothing():
    generator = np.random.default_rng(7)
    for owners in (None, np.arange(4) // 2):
        examples = some_examples(NETWORKS[0], generator, 4, owners)
        query = GradientQuery(NETWORKS[0], np.ones(18, np.float32), CLIP, CHUNK)
        assert not sum_over(query, examples, np.zeros(0, np.int64)).any()


# -- the mean of inputs -------------------------------------------------------------------------------

REACH = 1 + 2.0**-20


@given(seeds, st.booleans())
@quick
def test_a_unit_moves_the_sum_of_inputs_by_their_reach_at_most(seed, owned):
    generator = np.random.default_rng(seed)
    owners = np.sort(np.append(np.arange(5), generator.integers(0, 5, 15))) if owned else None
    # Some rows are longer than they may be: the sum leaves them out.
    examples = some_examples(NETWORKS[0], generator, 20, owners, reach=1.5)
    outputs = NETWORKS[0].outputs
    whole = CentreQuery(REACH, outputs).clipped(examples)
    assert whole.values.size == NETWORKS[0].inputs + outputs
    reach = 2**0.5 * REACH**2
    assert whole.l2 <= reach
    for unit in range(examples.units):
        kept = np.arange(20) != unit if owners is None else owners != unit
        others = None if owners is None else np.unique(owners[kept], return_inverse=True)[1]
        less = Examples(examples.inputs[kept], examples.targets[kept], others)
        moved = length_of(whole.values - CentreQuery(REACH, outputs).clipped(less).values)
        assert moved * INPUT_STEP <= whole.l2 + INPUT_STEP  # moved is rounded up


def test_rows_of_the_longest_length_are_in_the_sum():
    inputs = np.array([[1 << 14, 0], [0, -(1 << 14)]], np.int16)
    one, targets = 1 << 14, np.array([0, 1])
    assert Examples(inputs, targets).summed(2, REACH).tolist() == [one, -one, one, one]
    longer = Examples(inputs + np.int16(200), targets)
    assert longer.summed(2, REACH).tolist() == [200, 200 - one, 0, one]
    numbers = Examples(inputs, np.array([[0.5], [7.0]], np.float32))
    assert numbers.summed(1, REACH).tolist() == [one, -one, one // 2 + one]


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3),
    st.sampled_from([(-1.0, 1.0), (0.0, 255.0), (1e15, 1e15 + 1), (-1e-3, 5e4), (3e7, 3e7 + 1e-8 * 3)]),
    st.lists(st.sampled_from([1, 2, "a", "b", None, 7.5, "1"]), min_size=3, max_size=3),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_rows_of_columns_are_no_longer_than_one(numbers, bounds, words):
    features = Columns((Column("x", bounds), Column("y", bounds), Column("z", None, (1, 2, "a"))))
    rows = features.rows([np.array(numbers), np.array(numbers[::-1]), np.array(words, object)])
    lengths = (rows.astype(object) ** 2).sum(1)
    assert (lengths <= 2**28).all()


@pytest.mark.parametrize("shape", [(28, 28), (9, 11)])
def test_a_row_of_a_picture_is_its_own(shape):
    """No longer than one, and the same to the last step among whatever other pictures."""
    generator = np.random.default_rng(8)
    pictures = generator.uniform(-1, 3, (530, *shape))
    pictures[0], pictures[1, 0, 0], pictures[2] = np.nan, inf, 1e300
    features = Pictures(*shape, 0.0, 2.0, 2 if min(shape) > 16 else 1)
    rows = features.rows(pictures)
    assert (rows.astype(np.int64) ** 2).sum(1).max() <= (REACH / INPUT_STEP) ** 2
    order = generator.permutation(530)
    np.testing.assert_array_equal(rows[order], features.rows(pictures[order]))
    np.testing.assert_array_equal(rows[3:5], features.rows(pictures[3:5]))
    mean = generator.normal(size=features.size) * 0.01
    around = features.centred(rows, mean)
    np.testing.assert_array_equal(around[order], features.centred(rows[order], mean))


# -- scattering ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(4))
def test_scattering_gives_the_numbers_of_kymatio(number):
    case = json.loads(FIXTURE.read_text())["cases"][number]
    picture = np.array(case["picture"], np.float32)[None]
    found = next(iter(scattered(picture, case["scales"], case["angles"])))[0]
    assert list(found.shape) == case["shape"]
    np.testing.assert_allclose(found.ravel()[case["places"]], case["numbers"], atol=2e-5, rtol=1e-4)


def test_the_size_of_scattering_is_what_is_said_of_it():
    for height, width, scales in ((28, 28, 2), (8, 8, 1), (17, 24, 2), (9, 11, 1)):
        features = Pictures(height, width, 0.0, 1.0, scales)
        assert features.rows(np.zeros((1, height, width))).shape == (1, features.size)
