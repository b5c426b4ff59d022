"""Predictors beside each other: each is fitted, and measured at held-out entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from sfumato.data.tensor import SparseTensor
from sfumato.errors import SfumatoError
from sfumato.estimators.measuring import Metric
from sfumato.metrics import rmse
from sfumato.report.records import Result


class Predictor(Protocol):
    """What can be fitted to one tensor and asked for the values of another."""

    def fit(self, X: SparseTensor) -> Any: ...

    def predict(self, X: SparseTensor) -> Any: ...


def compare(
    predictors: Mapping[str, Predictor],
    train: SparseTensor,
    test: SparseTensor,
    announce: Callable[[str], None] = lambda _: None,
    metric: Metric | None = None,
) -> list[Result]:
    """Fit each predictor, and measure it beside the mean of the training values.

    ``announce`` is told the name of each before it is fitted; ``metric`` is measured beside the RMSE.
    """
    begin = time.perf_counter()
    mean = float(train.values.mean(dtype=np.float64))
    same = np.full(test.n_entries, mean)
    also = None if metric is None else metric.of_values(test.values, same)
    results = [Result("constant", rmse(test.values, same), time.perf_counter() - begin, also)]
    for name, predictor in predictors.items():
        announce(name)
        begin = time.perf_counter()
        predictor.fit(train)
        seconds = time.perf_counter() - begin
        also = None if metric is None else metric.of(predictor, train, test)
        results.append(Result(name, rmse(test.values, predictor.predict(test)), seconds, also))
    return results


def warm_up(predictors: Iterable[Predictor], tensor: SparseTensor) -> None:
    """Have kernels compiled or loaded by fits to a few entries: no later fit looks as slow as that."""
    few = tensor.take(np.unique(np.linspace(0, tensor.n_entries - 1, 1000).astype(np.int64)))
    for predictor in predictors:
        # A fit to so few entries may diverge; what else is wrong, the fit to all will say.
        with suppress(SfumatoError):
            predictor.fit(few)
            predictor.predict(few)
