"""Paper A's study: noise, streams, privacy and topics by the tensor power method.

Y. Wang and A. Anandkumar, "Online and differentially-private tensor decomposition".
``docs/papers/wang.md`` says what came of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sfumato.papers.paper import Paper
from sfumato.papers.wang_noise import NoiseExperiment, Scan
from sfumato.papers.wang_private import PrivateExperiment
from sfumato.papers.wang_stream import StreamExperiment
from sfumato.papers.wang_topics import TopicsExperiment


def _sizes(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(float(f"{size:.3g}") for size in np.geomspace(low, high, count))


_WIDE = _sizes(0.01, 1.6, 18)
_NARROW = (0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25)
_FAR = (25, 100, 400, 1600, 6400)
NOISE = NoiseExperiment(
    (
        Scan("aside", _FAR, (2,), _WIDE),
        Scan("against", _FAR, (2,), _WIDE),
        Scan("gaussian", (50, 100, 200, 300), (2,), _NARROW),
        Scan("spurious", _FAR, (2,), _WIDE),
        Scan("uncorrelated aside", _FAR, (2,), _WIDE),
        Scan("spurious", (400,), (4, 8, 16), _WIDE),
        Scan("uncorrelated aside", (400,), (4, 8, 16), _WIDE),
    ),
    repetitions=24,
)
QUICK_NOISE = replace(
    NOISE,
    scans=tuple(
        scan._replace(
            dimensions=(50, 100, 200) if scan.noise == "gaussian" else scan.dimensions[:4],
            sizes=scan.sizes[::2],
        )
        for scan in NOISE.scans
    ),
    repetitions=8,
)

STREAM = StreamExperiment(
    (25, 50, 100, 200),
    (300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000),
    (3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000),
    repetitions=10,
)
QUICK_STREAM = replace(
    STREAM,
    dimensions=(25, 50, 100),
    samples=STREAM.samples[:6],
    fresh_samples=STREAM.fresh_samples[:6],
    repetitions=4,
)

PRIVATE = PrivateExperiment(
    (25, 50, 100, 200, 300),
    (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0),
    repetitions=6,
)
QUICK_PRIVATE = replace(
    PRIVATE, dimensions=(25, 50, 100), epsilons=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), repetitions=4
)

TOPICS = TopicsExperiment((300, 3_000, 100_000), (0.3, 1.0, 3.0), 100_000, repetitions=10)
QUICK_TOPICS = replace(
    TOPICS,
    documents=(300, 3_000, 30_000),
    epsilons=(1.0, 3.0),
    private_documents=30_000,
    repetitions=2,
)

PAPER = Paper(
    "wang",
    "experiment",
    full={"noise": NOISE, "stream": STREAM, "private": PRIVATE, "topics": TOPICS},
    quick={
        "noise": QUICK_NOISE,
        "stream": QUICK_STREAM,
        "private": QUICK_PRIVATE,
        "topics": QUICK_TOPICS,
    },
)
