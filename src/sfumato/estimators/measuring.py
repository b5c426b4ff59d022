"""Metrics by name, as they are asked for on the command line: of values, or of lists."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato import metrics
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.surface import setting
from sfumato.types import Array

_OF_VALUES: dict[str, Callable[[Any, Any], float]] = {
    "rmse": metrics.rmse,
    "log-loss": metrics.log_loss,
    "deviance": metrics.poisson_deviance,
}
_OF_LISTS = re.compile(r"(recall|ndcg)@([1-9]\d{0,5})")


@dataclass(frozen=True)
class Metric:
    """A metric by name; ``length`` is that of lists, zero for one of values."""

    name: str
    length: int = 0

    @classmethod
    def named(cls, name: str) -> Metric:
        """Such as ``deviance`` or ``ndcg@10``."""
        found = _OF_LISTS.fullmatch(name)
        if found is None and name not in _OF_VALUES:
            raise SettingError(
                f"there is no {setting('metric', name)}: there are {', '.join(_OF_VALUES)}, recall@K "
                "and ndcg@K, K a number such as 10"
            )
        return cls(name, 0 if found is None else int(found[2]))

    @property
    def higher_is_better(self) -> bool:
        return self.length > 0

    def of_values(self, observed: Array, predicted: Array) -> float | None:
        """Of predictions without a model: none where lists are measured."""
        if self.length:
            return None
        return _OF_VALUES[self.name](np.asarray(observed, np.float64), predicted)

    def of(self, fitted: Any, train: SparseTensor, test: SparseTensor) -> float | None:
        """Of a fitted estimator at held-out entries; lists leave out what is in ``train``."""
        if not self.length:
            return self.of_values(test.values, fitted.predict(test))
        if not isinstance(fitted, TensorEstimator):
            return None
        return fitted.list_scores(test, self.length, seen=train)[self.name.partition("@")[0]]
