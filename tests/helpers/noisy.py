"""Counts behind noisy channels, made by NumPy: how privatising draws them is tested elsewhere."""

import numpy as np

import sfumato as sf
from sfumato.data.channels import Geometric, Response
from sfumato.data.privatised import Passed, Privatised


def geometric(epsilon, high=None, step=1.0):
    """Noise for one event, or for counts of a range."""
    bounds = None if high is None else (0.0, float(high))
    return Passed(Geometric(0.0, None if high is None else float(high), step, 1 / epsilon), bounds, step)


def five_ary(epsilon, high=4):
    """Randomised response on which of the counts it is."""
    cuts = tuple(x + 0.5 for x in range(high))
    return Passed(Response(cuts, epsilon), (0.0, float(high)), 1.0, tuple(map(float, range(high + 1))))


def noisy(counts, passed, generator):
    """What a channel releases of counts."""
    if passed.bounds is not None:
        counts = np.clip(counts, *passed.bounds)
    if isinstance(passed.channel, Geometric):
        hit = 1 - passed.channel.ratio
        return (
            counts + generator.geometric(hit, len(counts)) - generator.geometric(hit, len(counts)) + 0.0
        )
    chances = np.cumsum(passed.channel.matrix, axis=1)[np.asarray(counts, int)]
    answers = (generator.random(len(counts))[:, None] > chances).sum(axis=1)
    return passed.written(np.minimum(answers, chances.shape[1] - 1))


def tensor(values, known, *names):
    modes = tuple(sf.Mode(name, size) for name, size in zip(names, known.shape, strict=True))
    return sf.SparseTensor(np.stack(np.nonzero(known)), np.asarray(values, float), modes)


def privatised(counts, known, passed, generator, names=("user", "item")):
    """The known counts of a table behind a channel."""
    return Privatised(tensor(noisy(counts[known], passed, generator), known, *names), (passed,))
