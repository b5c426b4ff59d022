"""Paper E's Algorithm 3: gradient, clipping and the law of its noise, as printed and as meant."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from sfumato.errors import SettingError
from sfumato.solvers.as_printed import dropout
from sfumato.solvers.as_printed.dropout import PaperDropout, walk

SIZES = (20, 60, 4)
STEP = PaperDropout((60,), 50.0, passes=1, each_pass=1, batch=30, clip=1.0, first_step=0.1)
RANDOM = np.random.default_rng(3)
ROWS = RANDOM.random((30, 20)).astype(np.float32)
LABELS = RANDOM.integers(0, 4, 30)
TARGETS = np.eye(4, dtype=np.float32)[LABELS]


def start():
    return dropout._start(SIZES, np.random.default_rng(0))


def moved(settings):
    """How far all parameters go, by layer, and the weights that they end at."""
    *_, last = walk(ROWS, LABELS, 4, settings, 0)
    return [after - before for after, before in zip(last.weights, start(), strict=True)]


def flat(layers):
    return np.concatenate([np.ravel(layer) for layer in layers])


def gradient(weights, rows, targets):
    return [into.T @ back for into, back in dropout._slopes(weights, rows, targets)]


def test_slopes_are_those_of_the_log_likelihood():
    weights = [w.astype(np.float64) for w in dropout._start((5, 7, 6, 3), np.random.default_rng(1))]
    random = np.random.default_rng(2)
    rows, targets = random.random((8, 5)), np.eye(3)[random.integers(0, 3, 8)]

    def likelihood():
        logits = dropout._logits(weights, rows)
        return float((targets * logits).sum() - np.log(np.exp(logits).sum(1)).sum())

    for layer, slope in zip(weights, gradient(weights, rows, targets), strict=True):
        for place in ((0, 0), (2, 1), (-1, 2)):
            at, width = layer[place], 1e-5
            layer[place] = at + width
            above = likelihood()
            layer[place] = at - width
            below, layer[place] = likelihood(), at
            assert slope[place] == pytest.approx((above - below) / (2 * width), rel=1e-4, abs=1e-7)


def test_as_printed_the_scaled_gradient_of_the_whole_batch_and_the_prior_is_cut_to_g():
    """All examples are in the batch, so that N / B is one."""
    weights = start()
    whole = flat([g - w for g, w in zip(gradient(weights, ROWS, TARGETS), weights, strict=True)])
    assert np.linalg.norm(whole) > 1
    found = flat(moved(replace(STEP, sigma=0.0)))
    np.testing.assert_allclose(found, 0.05 * whole / np.linalg.norm(whole), atol=1e-6)


def test_as_meant_every_example_is_cut_to_g_and_the_mean_is_taken():
    weights, total = start(), 0.0
    for row, target in zip(ROWS, TARGETS, strict=True):
        own = flat(gradient(weights, row[None], target[None]))
        total = total + own / max(1, np.linalg.norm(own))
    expected = 0.05 * (total / 30 - flat(weights) / 30)
    found = flat(moved(replace(STEP, sigma=0.0, clipping="example")))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_layers_are_cut_apart_where_asked():
    """Each layer may then go as far as all did together."""
    first, second = moved(replace(STEP, sigma=0.0, clip=0.01, apart=True))
    assert np.linalg.norm(first) == pytest.approx(0.05 * 0.01, rel=1e-3)
    assert np.linalg.norm(second) == pytest.approx(0.05 * 0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "deviation"),
    [
        (STEP, 0.05 * 2 * 50),
        (replace(STEP, clipping="example"), 0.05 * 2 * 50 / 30),
        (replace(STEP, langevin=True), sqrt((0.05 * 2 * 50) ** 2 + 0.1)),
        (replace(STEP, sigma=1e-3, langevin=True), sqrt(0.1)),
        (replace(STEP, sigma=1e-3, clipping="example", langevin=True), sqrt(0.1 / 30)),
        # Steps of 1 / t: the variances of all of them are added up.
        (replace(STEP, each_pass=8), 0.05 * 2 * 50 * sqrt(sum(t**-2.0 for t in range(1, 9)))),
        (
            replace(STEP, each_pass=8, clipping="example", passes=2),
            0.05 * 2 * 50 / 30 * sqrt(8 + 8 / 4),
        ),
        (replace(STEP, each_pass=16, clipping="example", decay=0.0), 0.05 * 2 * 50 / 30 * 4),
    ],
    ids=str,
)
def test_noise_has_the_law_that_is_printed(settings, deviation):
    """1,504 numbers: a deviation 10% off has a chance of 5e-8, and a third less noise fails."""
    found = flat(moved(settings))
    assert np.std(found) == pytest.approx(deviation, rel=0.1)


def test_without_privacy_it_learns_and_as_printed_it_does_not():
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 400)
    rows = (np.eye(4)[labels] + 0.2 * random.standard_normal((400, 4))).astype(np.float32)
    settings = PaperDropout((30,), None, passes=20, each_pass=4, batch=100, clip=2.0, first_step=1.0)
    *_, learnt = walk(rows, labels, 4, settings, 0)
    assert learnt.passes == 20
    assert learnt.accuracy(rows, labels) > 0.95
    noisy = []
    for seed in range(5):
        *_, last = walk(rows, labels, 4, replace(settings, sigma=5.0), seed)
        noisy.append(last.accuracy(rows, labels))
    assert np.mean(noisy) < 0.6


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(SettingError, match="sigma"):
        replace(STEP, sigma=-1.0)
    with pytest.raises(SettingError, match="clipping"):
        replace(STEP, clipping="layer")
    with pytest.raises(SettingError, match="passes"):
        replace(STEP, passes=0)
