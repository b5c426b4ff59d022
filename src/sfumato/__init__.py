"""Complete and factorise sparse multi-way data.

import sfumato as sf

ratings = sf.read("ratings.csv", modes=["user", "item"], value="rating", bounds=(1, 5))
train, test = ratings.split(0.2, seed=0)
model = sf.CP(rank=8).fit(train)
model.rmse(test)
model.predict(user="u17", item="m3")
"""

from __future__ import annotations

from sfumato.data import datasets, prepare, scaling, synthetic
from sfumato.data.read import read
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.data.write import write_completed, write_factors
from sfumato.errors import (
    DataError,
    ModelFileError,
    NotFittedError,
    SettingError,
    SfumatoError,
    UnknownLabelError,
)
from sfumato.estimators import CP, Biases, TensorEstimator, Tucker, cross_validate, load
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.solvers import ALS, SGD, MinibatchSGD, SequentialSGD

__version__ = "0.1.0"

__all__ = [
    "ALS",
    "CP",
    "SGD",
    "Biases",
    "CPModel",
    "DataError",
    "MinibatchSGD",
    "Mode",
    "ModelFileError",
    "NotFittedError",
    "SequentialSGD",
    "SettingError",
    "SfumatoError",
    "SparseTensor",
    "TensorEstimator",
    "Tucker",
    "TuckerModel",
    "UnknownLabelError",
    "cross_validate",
    "datasets",
    "load",
    "prepare",
    "read",
    "scaling",
    "synthetic",
    "write_completed",
    "write_factors",
]
