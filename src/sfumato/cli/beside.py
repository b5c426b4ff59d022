"""What a private fit is shown beside, at held-out entries: for the holder's eyes alone.

Nothing here reaches a release, a ledger or JSON, and nothing that goes wrong here ends a command: what
was paid for is on disk by then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.errors import SfumatoError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.completion import Biases
from sfumato.estimators.measuring import Metric
from sfumato.metrics import rmse
from sfumato.privacy.caveats import without_warnings
from sfumato.report.progress import FitProgress
from sfumato.report.records import Result
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.private.constant import PrivateConstant
from sfumato.solvers.private.popularity import PrivatePopularity

if TYPE_CHECKING:
    from sfumato.data.tensor import SparseTensor
    from sfumato.fit.request import Privacy

FOR_YOUR_EYES = (
    "These errors are for you alone: no guarantee covers them. The other private fits are within the "
    "same budget each, and in no file and no ledger: to choose by them would be tuning that nobody has "
    "paid for (--tune-rank pays)."
)


@dataclass(frozen=True)
class Comparison:
    """Errors at held-out entries: of open baselines, of private ones, and of the fit itself."""

    open: list[Result]
    private: list[Result]
    fit: Result
    metric: Metric | None = None

    @property
    def results(self) -> list[Result]:
        return [*self.open, *self.private, self.fit]

    def _better(self, rival: Result) -> bool:
        """By the metric that was asked for, or by the RMSE."""
        if self.metric is None or rival.measured is None or self.fit.measured is None:
            return rival.rmse <= self.fit.rmse
        if self.metric.higher_is_better:
            return rival.measured >= self.fit.measured
        return rival.measured <= self.fit.measured

    @property
    def lines(self) -> list[str]:
        """What there is to say of it."""
        better = [rival.name for rival in self.private if self._better(rival)]
        if not better:
            return [FOR_YOUR_EYES]
        return [
            f"The fit does not beat {' and '.join(better)} here: what it adds to these is lost in its "
            "noise. A larger epsilon or more data could change that.",
            FOR_YOUR_EYES,
        ]


def compare(
    fitted: TensorEstimator,
    name: str,
    privacy: Privacy,
    parts: tuple[SparseTensor, SparseTensor],
    progress: FitProgress,
    *,
    with_private: bool,
    metric: Metric | None = None,
) -> Comparison | None:
    """The fitted model beside what it has to beat, each fitted to the same entries.

    None where there is nothing to compare by.
    """
    train, test = parts[0], _finite(parts[1])
    known = _finite(train)
    if not (known.n_entries and test.n_entries):
        return None
    begin = time.perf_counter()
    mean = float(known.values.mean(dtype=np.float64))
    seconds = time.perf_counter() - begin
    same = np.full(test.n_entries, mean)
    also = None if metric is None else metric.of_values(test.values, same)
    constant = Result("constant, not private", rmse(test.values, same), seconds, also)
    name_of = "popularity" if fitted.loss == "seen" else "biases"
    openly = {
        f"{name_of}, not private": Biases(
            loss=fitted.loss, duplicates="mean", unseen="bias", progress=progress
        )
    }
    privately = _baselines(fitted, privacy, progress) if with_private else {}
    return Comparison(
        [constant, *_measured(openly, known, test, progress, metric)],
        _measured(privately, train, test, progress, metric),
        Result(
            name,
            rmse(test.values, fitted.predict(test)),
            fitted.fit_seconds_,
            None if metric is None else metric.of(fitted, known, test),
        ),
        metric,
    )


def _baselines(
    fitted: TensorEstimator, privacy: Privacy, progress: FitProgress
) -> dict[str, TensorEstimator]:
    """The private constant and private biases within the fit's budget, unless it is the same itself."""
    method = "" if fitted.guarantee_ is None else fitted.guarantee_.method
    local = None if fitted.local_ is None else fitted.modes_[fitted.local_].name
    alone = replace(
        privacy, method="auto", noise="auto", analysis="proven", local=local, ledger=None, limit=None
    )
    shared: dict[str, Any] = {
        "privacy": alone,
        "loss": fitted.loss,
        "duplicates": fitted.duplicates,
        "unseen": "bias",
        "progress": progress,
    }
    if fitted.loss == "seen":
        return {} if method == PrivatePopularity.name else {PrivatePopularity.name: Biases(**shared)}
    made: dict[str, TensorEstimator] = {
        PrivateConstant.name: Biases(sweeps=0, **shared),
        PrivateBiases.name: Biases(**shared),
    }
    return {name: each for name, each in made.items() if name != method}


def _measured(
    baselines: Mapping[str, TensorEstimator],
    train: SparseTensor,
    test: SparseTensor,
    progress: FitProgress,
    metric: Metric | None,
) -> list[Result]:
    """The errors of those that can be fitted."""
    results = []
    for name, baseline in baselines.items():
        progress.begin(name)
        with suppress(SfumatoError), without_warnings():
            error = rmse(test.values, baseline.fit(train).predict(test))
            also = None if metric is None else metric.of(baseline, train, test)
            results.append(Result(name, error, baseline.fit_seconds_, also))
    return results


def _finite(tensor: SparseTensor) -> SparseTensor:
    """Without values that are no numbers, which a private fit clips in silence."""
    finite = np.isfinite(tensor.values)
    return tensor if finite.all() else tensor.take(finite)
