"""``sf.cross_validate``: how well an estimator predicts what it was not fitted to."""

from __future__ import annotations

from sfumato.checks import check_kind
from sfumato.data.tensor import SparseTensor
from sfumato.estimators.base import TensorEstimator


def cross_validate(
    estimator: TensorEstimator, tensor: SparseTensor, *, folds: int = 5, seed: int = 0
) -> list[float]:
    """Held-out RMSE of each fold of a tensor; every fold keeps the tensor's shape and labels.

    Parameters
    ----------
    estimator : TensorEstimator
        Not fitted itself: each fold fits a copy.
    tensor : SparseTensor
        All entries.
    folds : int
        How many.
    seed : int
        Of how entries are dealt out.

    Returns
    -------
    list of float
        One RMSE for each fold.

    Examples
    --------
    >>> import sfumato as sf
    >>> errors = sf.cross_validate(
    ...     sf.Biases(), sf.synthetic.ratings_like(60, 40, 5, 2000), folds=3
    ... )
    >>> len(errors), max(errors) < 1.3
    (3, True)
    """
    from sklearn.base import clone

    check_kind(TensorEstimator, "an estimator such as sfumato.CP(rank=4)", estimator=estimator)
    check_kind(SparseTensor, "a SparseTensor", tensor=tensor)
    return [clone(estimator).fit(train).rmse(test) for train, test in tensor.folds(folds, seed=seed)]
