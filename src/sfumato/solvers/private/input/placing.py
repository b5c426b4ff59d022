"""Which channel lets most through, from public numbers and from what a probe has found."""

from __future__ import annotations

from functools import lru_cache
from math import exp, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np

from sfumato.data.channels import LEAST, Additive, Channel, Law, Response, law_of
from sfumato.solvers.behind.evidence import Located
from sfumato.types import Array

_RANGES = tuple(np.geomspace(0.05, 1.0, 13).tolist())  # half-widths, as shares of the bounds'
_REACHES = tuple(np.geomspace(0.3, 10.0, 24).tolist())  # half-widths in spreads, where these are known
_CATEGORIES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
_SPREADS = tuple(np.geomspace(0.04, 0.3, 7).tolist())  # of values, as shares of the width
_CLOSE_SPREADS = tuple(np.geomspace(0.005, 0.3, 9).tolist())  # where values may lie close together
_DOUBTS = (0.75, 1.0, 1.33)  # factors of a spread that is known, more or less
_NEARLY = 0.99  # of the most information: what is given for a wider range
_OFFSETS = np.linspace(-2.5, 2.5, 11)  # of an entry's mean from the centre, in deviations
_MOVES = tuple(((np.arange(8) + 0.5) / 8 - 0.5).tolist())  # of cuts, in bins
_GRID = 1.03  # noise is rounded to its powers where a channel is looked for
_SHARED = 0.05  # weight of the noise level, which all entries share, beside the mean's
_ANYWHERE = (-100.0, 100.0)  # bounds that are far away from values of unit spread


class Setting(NamedTuple):
    """Numbers that a channel is chosen by; ``step`` is the spacing of the values, if any.

    All are public but ``known``, which is what a probe has released. ``categories`` is the number of
    bins where that was planned before.
    """

    bounds: tuple[float, float]
    noise: float
    spread: float | None = None
    step: float | None = None
    values: int = 1
    clamp: tuple[float, float] | None = None
    known: Located | None = None
    categories: int | None = None


def best_channel(setting: Setting, laws: tuple[str, ...]) -> Response | Additive:
    """The channel from which most is learnt, on average over how far values may spread.

    Deterministic, and a function of what is public or released. Ranges and cuts are looked for at a
    noise rounded to a few per cent, so that a calibration does not look for them at each of its steps.
    """
    rounded = float(_GRID ** round(log(setting.noise) / log(_GRID)))
    return _make(setting, _best_places(setting._replace(noise=rounded), laws))


def even_response(setting: Setting) -> Response:
    """Bins of equal width over all of the bounds: the best number of them for values at any place there.

    Cuts about the middle tell nothing of values that lie elsewhere, and no probe can say where they lie.
    """
    most = max(8.0, 2 * exp(min(1 / setting.noise, 10.0)))
    numbers = [k for k in _CATEGORIES if 2 < k <= min(most, _steps(setting) + 1)]
    made = [_make(setting, _Places("response", *setting.bounds, k)) for k in numbers]
    responses = [each for each in made if isinstance(each, Response)]
    return max(responses, key=lambda each: anywhere(each, setting))


def anywhere(channel: Channel, setting: Setting) -> float:
    """As :func:`efficiency`, for values at any place within the bounds, however close together.

    A geometric mean over places and spreads: what tells nothing at some place is worth nothing.
    """
    low, high = setting.bounds
    width, places = high - low, np.linspace(low, high, 41)
    logs = []
    for share in _CLOSE_SPREADS:
        s = max(share * width, (setting.step or 0.0) / 2) / sqrt(2)
        law = law_of(channel, places, s)
        told = (law.by_mean**2 / np.maximum(law.probability, LEAST)).sum(axis=1)
        logs.append(np.log(np.maximum(s * s * told, 1e-12)).mean())
    return exp(float(np.mean(logs)))


def planned_categories(setting: Setting) -> int:
    """How many bins a response will have whose cuts a probe is to place: public numbers decide.

    Those that suit values of any known place and spread, and not more than there are values.
    """
    channel = best_channel(_standard(setting.noise), ("response",))
    categories = channel.categories if isinstance(channel, Response) else 2
    return categories if setting.step is None else min(categories, _steps(setting) + 1)


def planned_efficiency(noise: float, laws: tuple[str, ...]) -> float:
    """How much of the information will pass once a probe has said where values lie."""
    return efficiency(best_channel(_standard(noise), laws), _standard(noise))


def _standard(noise: float) -> Setting:
    return Setting(_ANYWHERE, noise, known=Located(0.0, 1.0, 0.0, 0.0))


@lru_cache(maxsize=1024)
def _best_places(setting: Setting, laws: tuple[str, ...]) -> _Places:
    candidates = [places for law in laws for places in _candidates(setting, law)]
    worth = [efficiency(_make(setting, places), setting) for places in candidates]
    if setting.known is None:
        return candidates[int(np.argmax(worth))]
    # Laws have longer tails than the normal one: as wide a range as can be had for next to nothing.
    enough = _NEARLY * max(worth)
    good = [
        (c.high - c.low, each, c) for c, each in zip(candidates, worth, strict=True) if each >= enough
    ]
    return max(good)[2]


class _Places(NamedTuple):
    """A range, and the number of bins that it is cut into by a response."""

    law: str
    low: float
    high: float
    categories: int = 0


def _candidates(setting: Setting, law: str) -> list[_Places]:
    ranges = _ranges(setting)
    if law != "response":
        return [_Places(law, *ends) for ends in ranges]
    # With more bins than e^epsilon most answers are lies.
    most = max(8.0, 2 * exp(min(1 / setting.noise, 10.0)))
    numbers = [k for k in _CATEGORIES if k <= most]
    if setting.known is None and (setting.step is None or _steps(setting) > 1):
        numbers.remove(2)  # two bins say nothing of the noise level
    if setting.categories is not None:
        numbers = [setting.categories]
    return [_Places(law, *ends, number) for ends in ranges for number in numbers]


def _ranges(setting: Setting) -> list[tuple[float, float]]:
    """Ranges about where values lie, or about the middle of the bounds where that is not known."""
    low, high = setting.bounds
    if setting.known is None:
        centre, half = (low + high) / 2, (high - low) / 2
        return [(centre - share * half, centre + share * half) for share in _RANGES]
    mean, spread = min(max(setting.known.mean, low), high), setting.known.spread
    least = 1e-6 * (high - low)
    return [
        (max(low, mean - reach * spread - least), min(high, mean + reach * spread + least))
        for reach in _REACHES
    ]


def _make(setting: Setting, places: _Places) -> Response | Additive:
    law, low, high, categories = places
    if law == "response":
        cuts = np.linspace(low, high, categories + 1)[1:-1]
        if categories == 2 and setting.known is not None:  # bounds are not as far on either side
            cuts = np.array([setting.known.mean])
        first, *others = [_snapped(cuts + move, setting) for move in _moves(cuts, setting)]
        same = all(other == first for other in others)
        return Response(first, 1 / setting.noise, () if same else tuple(others))
    values = sqrt(setting.values) if law == "gaussian" else setting.values
    kind: Law = "gaussian" if law == "gaussian" else "laplace"
    return Additive(low, high, kind, setting.noise * values * (high - low), setting.clamp)


def _moves(cuts: Array, setting: Setting) -> list[float]:
    """By how much cuts are moved at some entries: by up to half a bin, of two bins half a spread."""
    if setting.known is None or setting.categories is None:
        return [0.0]
    bin_width = float(cuts[1] - cuts[0]) if cuts.size > 1 else setting.known.spread
    return [bin_width * share for share in _MOVES]


def _steps(setting: Setting) -> int:
    low, high = setting.bounds
    return round((high - low) / (setting.step or high - low))


def _snapped(cuts: Array, setting: Setting) -> tuple[float, ...]:
    """Cuts half-way between the values that occur, where these have a spacing."""
    if setting.step is None:
        return tuple(cuts.tolist())
    last = _steps(setting) - 1
    halfway = np.clip(np.round((cuts - setting.bounds[0]) / setting.step - 0.5), 0, last)
    if setting.categories is None:
        halfway = np.unique(halfway)
    else:  # each cut in a place of its own
        places = np.arange(halfway.shape[0])
        halfway = np.maximum.accumulate(halfway - places) + places
        halfway = np.minimum(halfway, last - places[::-1])
    return tuple((setting.bounds[0] + setting.step * (halfway + 0.5)).tolist())


def efficiency(channel: Channel, setting: Setting) -> float:
    """How much of the clean values' information passes, averaged over a public prior.

    Values spread by tau (log-uniform, or the public spread): half of its square is noise, half lies
    in the entries' means, and the centre may be off by as much again. An entry's mean counts with
    its information s^2 I, and the noise level with what is left of its own when the mean is unknown;
    both are needed, so they are combined as errors add up. After a probe centre and spread are known,
    and so is the noise level when the means are.
    """
    low, high = setting.bounds
    width, known = high - low, setting.known
    spreads = [max(share * width, (setting.step or 0.0) / 2) for share in _SPREADS]
    if setting.spread is not None and isfinite(setting.spread):
        spreads = [setting.spread * factor for factor in _DOUBTS]
    if known is not None:
        spreads = [known.spread * factor for factor in _DOUBTS]
    weights = np.exp(-0.5 * _OFFSETS**2)
    weights /= weights.sum()
    logs, shared = 0.0, _SHARED if known is None else 0.0
    for tau in spreads:
        s = tau / sqrt(2)
        means = (low + high) / 2 + tau * _OFFSETS if known is None else known.mean + s * _OFFSETS
        of_mean = of_level = 0.0
        for which in range(len(channel.edges)):
            p, m, v = law_of(channel, means, s, which)
            p = np.maximum(p, LEAST)
            mean, cross, level = (m * m / p).sum(1), (m * v / p).sum(1), (v * v / p).sum(1)
            left = np.maximum(level - cross**2 / np.maximum(mean, LEAST), 0.0)
            of_mean += s * s * float(weights @ mean) / len(channel.edges)
            of_level += float(weights @ left) / len(channel.edges)
        logs -= log(1 / max(of_mean, 1e-12) + shared / max(of_level, 1e-12))
    return exp(logs / len(spreads))
