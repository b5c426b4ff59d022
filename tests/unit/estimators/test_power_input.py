"""Bad input of ``sf.PowerMethod`` is an error that says what to do, before anything is done."""

import numpy as np
import pytest
from power_reference import (
    FORMS,
    entry_privacy,
    orthonormal,
    planted,
    sample_privacy,
    skewed,
    sparse,
)

import sfumato as sf
from sfumato.errors import DataError, SettingError

CUBE = planted([3.0, 2.0], orthonormal(4, 2), 3)
SAMPLES = skewed(100)


def crooked(form):
    tensor = CUBE.copy()
    tensor[0, 1, 2] += 1.0
    return FORMS[form](tensor)


def with_bad(array, bad):
    changed = array.copy()
    changed.flat[-1] = bad
    return changed


BAD_TENSORS = {
    "not symmetric": (
        sf.PowerMethod(2),
        crooked("dense"),
        DataError,
        r"not symmetric: .*symmetric=False",
    ),
    "not symmetric, sparse": (sf.PowerMethod(2), crooked("sparse"), DataError, "not symmetric"),
    "unequal sizes": (sf.PowerMethod(2), np.ones((3, 4, 3)), DataError, "one size, got 3 x 4 x 3"),
    "order 2": (sf.PowerMethod(2), np.eye(4), DataError, "three modes or more, got 2: .*fit_stream"),
    "NaN": (sf.PowerMethod(2), with_bad(CUBE, np.nan), DataError, "the tensor holds NaN or infinity"),
    "infinity": (sf.PowerMethod(2), with_bad(CUBE, np.inf), DataError, "holds NaN or infinity"),
    "NaN, sparse": (sf.PowerMethod(2), sparse(with_bad(CUBE, np.nan)), DataError, "NaN or infinity"),
    "zero": (sf.PowerMethod(2), np.zeros((4, 4, 4)), DataError, "zero everywhere: it has no components"),
    "a path": (sf.PowerMethod(2), "tensor.npy", DataError, "read tensor.npy first, with numpy.load"),
    "text": (sf.PowerMethod(2), np.full((2, 2, 2), "a"), DataError, "a tensor holds numbers, got <U1"),
    "too many components": (sf.PowerMethod(5), CUBE, SettingError, "5 components .* in 4 dimensions"),
    "too many of a mode": (
        sf.PowerMethod(4, symmetric=False),
        np.ones((5, 3, 6)),
        SettingError,
        "look for at most 3",
    ),
    "more than the rank": (
        sf.PowerMethod(3, whiten=True),
        CUBE,
        DataError,
        "the tensor has rank 2, below the 3 components",
    ),
    "no component": (
        sf.PowerMethod(0),
        CUBE,
        SettingError,
        "n_components must be a whole number from 1",
    ),
    "half a restart": (sf.PowerMethod(2, 2.5), CUBE, SettingError, "restarts must be a whole number"),
    "restarts in words": (sf.PowerMethod(2, "ten"), CUBE, SettingError, "restarts must be a whole num"),
    "no iterations": (sf.PowerMethod(2, 3, 0), CUBE, SettingError, "iterations must be a whole number"),
    "whitened blocks": (
        sf.PowerMethod(2, symmetric=False, whiten=True),
        CUBE,
        SettingError,
        "whitening is for symmetric tensors",
    ),
    "wrong second moment": (
        sf.PowerMethod(2, whiten=np.eye(3)),
        CUBE,
        SettingError,
        r"a matrix with 4 rows and columns; got an array of shape \(3, 3\)",
    ),
    "NaN second moment": (
        sf.PowerMethod(2, whiten=np.full((4, 4), np.nan)),
        CUBE,
        SettingError,
        "symmetric and without NaN",
    ),
    "crooked second moment": (
        sf.PowerMethod(2, whiten=np.triu(np.ones((4, 4)))),
        CUBE,
        SettingError,
        "symmetric and without NaN",
    ),
    "unit of a stream": (sf.PowerMethod(2, privacy=sample_privacy()), CUBE, SettingError, "TensorEntry"),
    "private whitening": (
        sf.PowerMethod(2, whiten=True, privacy=entry_privacy()),
        CUBE,
        SettingError,
        "a private decomposition of a tensor has no whitening",
    ),
    "paper without delta": (
        sf.PowerMethod(2, privacy=entry_privacy(delta=0.0, analysis="paper")),
        CUBE,
        SettingError,
        "needs a delta above zero, such as 1e-6",
    ),
    "paper with rho": (
        sf.PowerMethod(2, privacy=sf.Privacy(rho=0.1, unit=sf.TensorEntry(), analysis="paper")),
        CUBE,
        SettingError,
        "a budget of epsilon and delta, not rho",
    ),
    "paper, asymmetric": (
        sf.PowerMethod(2, symmetric=False, privacy=entry_privacy(analysis="paper")),
        CUBE,
        SettingError,
        "is for symmetric tensors",
    ),
    "another method": (
        sf.PowerMethod(2, privacy=entry_privacy(method="input")),
        CUBE,
        SettingError,
        "no other private methods or noise",
    ),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors(case):
    method, tensor, error, message = BAD_TENSORS[case]
    with pytest.raises(error, match=message):
        method.fit(tensor)
    assert not hasattr(method, "weights_")


BAD_STREAMS = {
    "NaN in the second array": (
        sf.PowerMethod(2),
        [SAMPLES, with_bad(SAMPLES, np.nan)],
        {},
        DataError,
        r"sample 199 of the stream \(counted from 0\) holds NaN or infinity, at feature 3",
    ),
    "infinity, read once": (
        sf.PowerMethod(2, 2, 2, samples=40),
        [SAMPLES, with_bad(SAMPLES, -np.inf)],
        {"reuse": False},
        DataError,
        "sample 199 of the stream",
    ),
    "too large": (sf.PowerMethod(2), 1e200 * SAMPLES, {}, DataError, "too large to be multiplied"),
    "too large, float32": (
        sf.PowerMethod(2, order=4),
        (1e30 * SAMPLES).astype(np.float32),
        {},
        DataError,
        "too large to be multiplied",
    ),
    "an iterator to be reused": (
        sf.PowerMethod(2),
        iter([SAMPLES]),
        {},
        SettingError,
        r"an iterator can be read once, and \d+ questions .* \(reuse=False\)",
    ),
    "an iterator without a number": (
        sf.PowerMethod(2),
        iter([SAMPLES]),
        {"reuse": False},
        SettingError,
        r"say how many samples answer each question: samples=...",
    ),
    "ends early": (
        sf.PowerMethod(2, 3, 4, samples=30),
        SAMPLES,
        {"reuse": False},
        DataError,
        "after 3 of 10 questions were answered: each takes 30 samples, and there were 100. Give a",
    ),
    "too few to share out": (
        sf.PowerMethod(4, 3, 40),
        SAMPLES,
        {"reuse": False},
        DataError,
        "100 samples cannot answer 164 questions",
    ),
    "negative counts": (
        sf.PowerMethod(2, moment="documents"),
        with_bad(np.ones((5, 4)), -1.0),
        {},
        DataError,
        "rows of word counts, whole numbers from 0 on; got -1",
    ),
    "parts of words": (
        sf.PowerMethod(2, moment="documents"),
        with_bad(np.ones((5, 4)), 0.5),
        {},
        DataError,
        "rows of word counts, whole numbers from 0 on; got 0.5",
    ),
    "short documents": (
        sf.PowerMethod(2, moment="documents"),
        np.eye(4),
        {},
        DataError,
        "documents need three words or more",
    ),
    "documents of order 4": (
        sf.PowerMethod(2, moment="documents", order=4),
        np.ones((5, 4)),
        {},
        SettingError,
        "moment of order 3 here, got order 4",
    ),
    "fewer dimensions": (
        sf.PowerMethod(3, whiten=True),
        SAMPLES[:, :2] @ np.ones((2, 4)),
        {},
        DataError,
        "the second moment has rank 1, below the 3 components",
    ),
    "unknown moment": (sf.PowerMethod(2, moment="words"), SAMPLES, {}, SettingError, "got 'words'"),
    "order 2": (
        sf.PowerMethod(2, order=2),
        SAMPLES,
        {},
        SettingError,
        "from 3 on, got 2",
    ),
    "order 3.5": (sf.PowerMethod(2, order=3.5), SAMPLES, {}, SettingError, "order must be a whole numb"),
    "no samples a question": (
        sf.PowerMethod(2, samples=0),
        SAMPLES,
        {"reuse": False},
        SettingError,
        "samples must be a whole number from 1 on, got 0",
    ),
    "asymmetric": (sf.PowerMethod(2, symmetric=False), SAMPLES, {}, SettingError, "leave symmetric out"),
    "second moment": (
        sf.PowerMethod(2, whiten=np.eye(4)),
        SAMPLES,
        {},
        SettingError,
        "of a stream, whiten is True or False",
    ),
    "too many components": (
        sf.PowerMethod(5),
        SAMPLES,
        {},
        SettingError,
        "5 components .* 4 dimensions",
    ),
    "a tensor": (
        sf.PowerMethod(2),
        CUBE,
        {},
        DataError,
        "has 3 dimensions .*: give two, samples in rows",
    ),
    "unit of a tensor": (
        sf.PowerMethod(2, privacy=entry_privacy()),
        SAMPLES,
        {},
        SettingError,
        r"unit=sfumato.Sample\(norm=...\)",
    ),
    "no public number": (
        sf.PowerMethod(2, privacy=sample_privacy(entries=None)),
        SAMPLES,
        {},
        SettingError,
        r"which is then public: public=sfumato.Public\(entries=...\)",
    ),
    "no public number in a block": (
        sf.PowerMethod(2, privacy=sample_privacy()),
        [SAMPLES],
        {"reuse": False},
        SettingError,
        "which is then public: samples=..., in a block",
    ),
    "no blocks": (
        sf.PowerMethod(2, samples=10, privacy=sample_privacy()),
        SAMPLES,
        {"reuse": False},
        SettingError,
        "each question needs a block of samples that was cut beforehand",
    ),
    "too few blocks": (
        sf.PowerMethod(2, 3, 2, samples=50, privacy=sample_privacy()),
        [SAMPLES[:50], SAMPLES[50:]],
        {"reuse": False},
        DataError,
        "ended after 2 of 6 questions were answered: each takes a block. Give a longer",
    ),
    "no norm": (
        sf.PowerMethod(2, privacy=sample_privacy(norm=None)),
        SAMPLES,
        {},
        SettingError,
        "say how long a sample may be",
    ),
    "a norm of documents": (
        sf.PowerMethod(2, moment="documents", privacy=sample_privacy()),
        np.ones((5, 4)),
        {},
        SettingError,
        "leave the norm of the sample out",
    ),
    "as printed": (
        sf.PowerMethod(2, privacy=sample_privacy(analysis="paper")),
        SAMPLES,
        {},
        SettingError,
        'the paper has no private stream: analysis="paper" is for tensors',
    ),
}


@pytest.mark.parametrize("case", BAD_STREAMS)
def test_bad_streams(case):
    method, samples, how, error, message = BAD_STREAMS[case]
    with pytest.raises(error, match=message):
        method.fit_stream(samples, **how)
    assert not hasattr(method, "weights_")


def test_parts_of_different_sizes():
    method = sf.PowerMethod(2, samples=10).partial_fit(SAMPLES)
    with pytest.raises(DataError, match="3 features here, but 4 are expected"):
        method.partial_fit(SAMPLES[:, :3])


def test_parts_need_a_number_of_samples():
    with pytest.raises(SettingError, match=r"say how many samples answer each question: samples=..."):
        sf.PowerMethod(2).partial_fit(SAMPLES)


@pytest.mark.parametrize("change", [0, -1.0, np.nan, np.inf])
def test_units_are_numbers_above_zero(change):
    with pytest.raises(SettingError, match="must be a number above zero"):
        sf.TensorEntry(change)
    with pytest.raises(SettingError, match="must be a number above zero"):
        sf.Sample(change)


def test_units_of_the_power_method_are_not_those_of_completion():
    tensor = sf.synthetic.cp((5, 4), 1, entries=15, seed=0).tensor
    with pytest.raises(SettingError, match=r"is a unit of sfumato.PowerMethod, not of a completion"):
        sf.CP(1, privacy=entry_privacy()).fit(tensor)
