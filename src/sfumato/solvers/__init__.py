"""Solvers: how a model is fitted. Each is a frozen record of settings with four functions."""

from typing import Any

from sfumato.solvers.as_printed.wei import PaperGradient, PaperInput, PaperOutput
from sfumato.solvers.coupled.langevin import Langevin
from sfumato.solvers.coupled.multiplicative import Multiplicative
from sfumato.solvers.coupled.variational import Variational
from sfumato.solvers.gradient.minibatch import MinibatchSGD
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.gradient.sgd import SGD
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.least_squares.backfitting import Backfitting
from sfumato.solvers.private.alternating.solver import PrivateAlternating
from sfumato.solvers.private.biases import PrivateBiases, PrivateConstant
from sfumato.solvers.private.gradient.solver import PrivateSGD
from sfumato.solvers.private.input.solver import InputPerturbation
from sfumato.solvers.private.output import PrivateOutput
from sfumato.solvers.private.passes import PrivatePasses

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
