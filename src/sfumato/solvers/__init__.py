"""Solvers: how a model is fitted. Each is a frozen record of settings with four functions."""

from typing import Any

from sfumato.solvers.als import ALS
from sfumato.solvers.biases import Backfitting
from sfumato.solvers.langevin import Langevin
from sfumato.solvers.minibatch import MinibatchSGD
from sfumato.solvers.multiplicative import Multiplicative
from sfumato.solvers.paper import PaperGradient, PaperInput, PaperOutput
from sfumato.solvers.private_alternating import PrivateAlternating
from sfumato.solvers.private_biases import PrivateBiases, PrivateConstant
from sfumato.solvers.private_gradient import PrivateSGD
from sfumato.solvers.private_input import InputPerturbation
from sfumato.solvers.private_output import PrivateOutput
from sfumato.solvers.private_passes import PrivatePasses
from sfumato.solvers.sequential import SequentialSGD
from sfumato.solvers.sgd import SGD
from sfumato.solvers.variational import Variational

COUPLED_SOLVERS: dict[str, Any] = {
    "multiplicative": Multiplicative,
    "variational": Variational,
    "langevin": Langevin,
}
SOLVERS: dict[str, Any] = {
    "als": ALS,
    "sgd": SGD,
    "minibatch": MinibatchSGD,
    "sequential": SequentialSGD,
    "multiplicative": Multiplicative,
    "variational": Variational,
}

__all__ = [
    "ALS",
    "COUPLED_SOLVERS",
    "SGD",
    "SOLVERS",
    "Backfitting",
    "InputPerturbation",
    "Langevin",
    "MinibatchSGD",
    "Multiplicative",
    "PaperGradient",
    "PaperInput",
    "PaperOutput",
    "PrivateAlternating",
    "PrivateBiases",
    "PrivateConstant",
    "PrivateOutput",
    "PrivatePasses",
    "PrivateSGD",
    "SequentialSGD",
    "Variational",
]
