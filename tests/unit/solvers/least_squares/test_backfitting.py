"""The bias predictor: what it learns of its penalty, and that a given one is kept to."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError


def of_biases(sizes, entries, noise, spreads, seed=0):
    """Values that are sums of biases, and noise."""
    rng = np.random.default_rng(seed)
    cells = np.array(np.unravel_index(rng.permutation(np.prod(sizes))[:entries], sizes))
    biases = [spread * rng.normal(size=n) for n, spread in zip(sizes, spreads, strict=True)]
    values = 7 + sum(b[levels] for b, levels in zip(biases, cells, strict=True))
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(sizes))
    return SparseTensor(cells, values + noise * rng.normal(size=entries), modes)


def best_ridge(train, test):
    """Held-out error of least squares on dummies with the best of many ridges: it sees the answers."""
    offsets = np.cumsum((0, *train.shape[:-1]))[:, None]

    def dummies(tensor):
        table = np.zeros((tensor.n_entries, sum(tensor.shape)))
        table[np.arange(tensor.n_entries), tensor.coordinates + offsets] = 1
        return table

    x, y, new = dummies(train), train.values - train.values.mean(), dummies(test)
    gram, right = x.T @ x, x.T @ y
    errors = [
        new @ np.linalg.solve(gram + ridge * np.eye(len(gram)), right)
        + train.values.mean()
        - test.values
        for ridge in np.geomspace(1e-3, 100, 20)
    ]
    return min(np.sqrt(np.mean(each**2)) for each in errors)


@pytest.mark.parametrize(
    ("sizes", "entries", "spreads"),
    [
        ((140, 12), 1400, (1.0, 1.0)),
        ((30, 25), 400, (1.0, 0.1)),
        ((20, 15, 12), 900, (1.0, 0.5, 0.1)),
        ((9, 8, 7, 6), 700, (1.0, 1.0, 0.5, 0.0)),
    ],
)
@pytest.mark.parametrize("noise", [0.03, 0.5, 3.0])
def test_the_learnt_ridge_is_about_as_good_as_the_best(sizes, entries, spreads, noise):
    pairs = [of_biases(sizes, entries, noise, spreads, seed).split(0.2, seed=seed) for seed in range(8)]
    learnt = np.mean([sf.Biases().fit(train).rmse(test) for train, test in pairs])
    best = np.mean([best_ridge(train, test) for train, test in pairs])
    assert learnt < 1.02 * best


def test_without_noise_nothing_is_shrunk_and_nothing_overflows():
    tensor = of_biases((30, 20), 300, 0.0, (1.0, 1.0))
    model = sf.Biases(sweeps=60).fit(tensor)
    assert model.rmse(tensor) < 1e-4
    constant = tensor.with_values(np.full(tensor.n_entries, 2.0))
    np.testing.assert_allclose(sf.Biases().fit(constant).predict(constant), 2.0)


def test_a_given_ridge_is_kept_to():
    tensor = of_biases((6, 5), 20, 1.0, (1.0, 1.0))
    model = sf.Biases(ridge=3.0, sweeps=200).fit(tensor).model_
    rest = tensor.values - model.mean - model.mode_biases[1][tensor.coordinates[1]]
    sums = np.bincount(tensor.coordinates[0], weights=rest, minlength=6)
    expected = sums / (tensor.counts("m0") + 3.0)
    np.testing.assert_allclose(model.mode_biases[0], expected, rtol=1e-8)


def test_values_in_another_unit_give_predictions_in_that_unit():
    tensor = of_biases((30, 20), 300, 1.0, (1.0, 0.5))
    plain, scaled = (
        sf.Biases().fit(tensor.with_values(c * tensor.values)).predict(tensor) for c in (1.0, 1000.0)
    )
    np.testing.assert_allclose(scaled, 1000 * plain, rtol=1e-9)


@pytest.mark.parametrize("ridge", ["lern", 0.0, -1.0, None])
def test_impossible_ridges_are_refused(ridge):
    with pytest.raises(SettingError, match="ridge"):
        sf.Biases(ridge=ridge).fit(of_biases((6, 5), 20, 1.0, (1.0, 1.0)))
