"""``sf.cross_validate``: how well an estimator predicts what it was not fitted to."""

from __future__ import annotations

from sfumato.checks import check_kind
from sfumato.data.tensor import SparseTensor
from sfumato.estimators.base import TensorEstimator


def cross_validate(
    estimator: TensorEstimator, tensor: SparseTensor, *, folds: int = 5, seed: int = 0
) -> list[float]:
    """Held-out RMSE of each fold of a tensor; every fold keeps the tensor's shape and labels."""
    from sklearn.base import clone

    check_kind(TensorEstimator, "an estimator such as sfumato.CP(rank=4)", estimator=estimator)
    check_kind(SparseTensor, "a SparseTensor", tensor=tensor)
    return [clone(estimator).fit(train).rmse(test) for train, test in tensor.folds(folds, seed=seed)]
