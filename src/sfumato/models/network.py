"""Dense networks: what they look like, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from sfumato.checks import check_choice, check_count
from sfumato.kernels.grid import INPUT_STEP
from sfumato.records import record
from sfumato.types import Array

Activation = Literal["relu", "tanh"]
Loss = Literal["classes", "numbers"]
_ROWS = 4096  # that are looked at at once


class Layer(NamedTuple):
    """Weights of one layer, and its intercepts."""

    weights: Array
    intercepts: Array


@record
@dataclass(frozen=True)
class Architecture:
    """Dense layers between inputs and outputs: logits of classes, or numbers.

    What goes into a layer has a length of about one: what comes out of hidden units is divided by the
    root of their number. So all layers' gradients have about the same size, and clipping them together
    leaves something of each. All parameters lie in one vector: of each layer its weights, by input and
    then by output, and its intercepts.
    """

    inputs: int
    outputs: int
    hidden: tuple[int, ...] = ()
    activation: Activation = "tanh"
    loss: Loss = "classes"

    def __post_init__(self) -> None:
        check_count(inputs=self.inputs, outputs=self.outputs)
        for size in self.hidden:
            check_count(hidden=size)
        check_choice(("relu", "tanh"), activation=self.activation)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.inputs, *self.hidden, self.outputs

    @property
    def parameters(self) -> int:
        return sum((into + 1) * out for into, out in pairwise(self.sizes))

    def layers(self, parameters: Array) -> list[Layer]:
        """Parameters by layer: parts of the same memory."""
        return list(self._layers(parameters))

    def _layers(self, parameters: Array) -> Iterator[Layer]:
        begin = 0
        for into, out in pairwise(self.sizes):
            end = begin + into * out
            yield Layer(parameters[begin:end].reshape(into, out), parameters[end : end + out])
            begin = end + out

    def start(self, seed: int) -> Array:
        """Where training begins: random hidden layers, and outputs of zero; public."""
        generator, parameters = np.random.default_rng(seed), np.zeros(self.parameters)
        for layer in self.layers(parameters)[:-1]:
            layer.weights[:] = generator.standard_normal(layer.weights.shape)
        return parameters

    def __str__(self) -> str:
        between = "".join(f" - {size:,}" for size in self.hidden)
        bent = f", {self.activation}" if self.hidden else ""
        return f"{self.inputs:,}{between} - {self.outputs:,}{bent}: {self.parameters:,} parameters"


@record
@dataclass(frozen=True, eq=False)
class Network:
    """A network with its parameters."""

    architecture: Architecture
    parameters: Array

    def outputs(self, inputs: Array) -> Array:
        """Logits or numbers, of inputs in whole steps; a row for each example."""
        single = self.parameters.astype(np.float32, copy=False)
        layers = self.architecture.layers(single)
        said = np.empty((len(inputs), self.architecture.outputs), np.float32)
        for begin in range(0, len(inputs), _ROWS):
            rows = slice(begin, begin + _ROWS)
            said[rows] = self._said(layers, inputs[rows] * np.float32(INPUT_STEP))
        return said

    def _said(self, layers: list[Layer], into: Array) -> Array:
        for number, layer in enumerate(layers):
            into = into @ layer.weights + layer.intercepts
            if number < len(layers) - 1:
                tanh = self.architecture.activation == "tanh"
                into = (np.tanh(into) if tanh else np.maximum(into, 0)) / np.float32(sqrt(into.shape[1]))
        return into

    def probabilities(self, inputs: Array) -> Array:
        """Of every class (columns) for every example (rows)."""
        chances: Array = softmax(self.outputs(inputs).astype(np.float64), axis=1)
        return chances
