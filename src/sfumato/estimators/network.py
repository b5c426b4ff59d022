"""``sf.PrivateClassifier``, ``sf.PrivateRegressor``: networks whose training protects every example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import as_pair
from sfumato.errors import SettingError
from sfumato.estimators.examples_in import categories_of, open_classes, open_targets, targets_of
from sfumato.estimators.learning import PrivateNetwork
from sfumato.fit.loop import Watch
from sfumato.fit.request import Privacy
from sfumato.models.features import as_numbers, places_of
from sfumato.models.network import Activation, Loss
from sfumato.privacy.clipping import check_range
from sfumato.solvers.network.settings import Training
from sfumato.surface import either
from sfumato.types import Array


class PrivateClassifier(PrivateNetwork):
    """A classifier whose training protects every example: dense layers, trained by noisy steps.

    Without hidden layers it is multinomial logistic regression, which is hard to beat at small budgets.
    Pictures are shown to it by their scattering, fixed features that cost no privacy.

    Parameters
    ----------
    hidden : sequence of int
        Sizes of the hidden layers; none by default.
    privacy : Privacy or None
        ``Privacy(epsilon, delta, unit="example", public=Public(entries=60_000))``: the number of
        examples, or of their owners where ``unit`` names these, has to be public. None trains the
        same network without noise.
    classes : sequence or None
        All classes that there can be, which are public; examples of others are left out. Without
        privacy those in the data.
    bounds : pair of float, mapping or None
        Public bounds of the columns: two numbers for all of them, or by name either two numbers or
        the list of a column's categories. Without privacy those of the data.
    pictures : pair of int or None
        Height and width, where a row is a picture; arrays of three dimensions are pictures too.
    activation : str
        "relu" or "tanh".
    dropout : float
        Variance of Gaussian factors on what goes into layers; 0 for none.
    prior_scale : float or None
        Standard deviation of a normal prior on all parameters; None for none.
    steps : int or None
        How many; settings follow from it, from the public numbers and the budget.
    training : Training or None
        A ``Training`` with all settings of your own.
    seed : int
        Of the starting point, which is public.
    progress : callable or None
        Called after every step with how many are done and how many there are; True for a bar, on a
        terminal or in a notebook.

    Attributes
    ----------
    classes_, network_, iterates_
        The classes; the network (a running average of the last steps); some of the last steps
        themselves.
    guarantee_ : Guarantee or None
        What a private fit promises; it covers all of these.
    training_, temperature_, dropout_
        How it was trained, and two readings of its noise.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
    >>> y = (X.sum(1) > 0).astype(int)
    >>> privacy = sf.Privacy(
    ...     epsilon=1, delta=1e-5, unit="example", public=sf.Public(entries=2000)
    ... )
    >>> model = sf.PrivateClassifier(
    ...     privacy=privacy, classes=[0, 1], bounds=(-1, 1), steps=50
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    loss: ClassVar[Loss] = "classes"

    def __init__(
        self,
        hidden: Sequence[int] = (),
        *,
        privacy: Privacy | None = None,
        classes: Sequence[Any] | None = None,
        bounds: tuple[float, float] | Mapping[str, Any] | None = None,
        pictures: tuple[int, int] | None = None,
        activation: Activation = "relu",
        dropout: float = 0.0,
        prior_scale: float | None = None,
        steps: int | None = None,
        training: Training | None = None,
        seed: int = 0,
        progress: Watch = None,
    ) -> None:
        super().__init__(
            hidden,
            privacy,
            bounds,
            pictures,
            activation,
            dropout,
            prior_scale,
            steps,
            training,
            seed,
            progress,
        )
        self.classes = classes

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        told = InputTags(three_d_array=True, string=True, categorical=True, allow_nan=True)
        tags = Tags("classifier", target_tags=TargetTags(required=True), input_tags=told)
        tags.classifier_tags = ClassifierTags()
        return tags

    def _begin(self, y: Any) -> None:
        if self.privacy is not None and self.classes is None:
            raise SettingError(_say_classes())
        self._recall(open_classes(y) if self.classes is None else self.classes)
        if len(self.classes_) < 2:
            raise SettingError(f"there are two classes or more, got {len(self.classes_)} class")

    @property
    def _outputs(self) -> int:
        if self.classes is not None:
            return len(categories_of("classes", self.classes))
        if not hasattr(self, "classes_"):
            raise SettingError(_say_classes())
        return len(self.classes_)

    def _targets(self, y: Any, count: int) -> tuple[Array, NDArray[np.bool_]]:
        targets = places_of(targets_of(y, count), self.classes_.tolist())
        return targets, targets >= 0

    def predict_proba(self, X: Any) -> Array:
        """Probability of every class, in the order of ``classes_``.

        Parameters
        ----------
        X
            A row for each example.

        Returns
        -------
        array
            Examples x classes.
        """
        inputs = self._inputs(X)
        return self.network_.probabilities(inputs)

    def sample_posterior(self, X: Any) -> Array:
        """Probabilities by each of ``iterates_`` (samples x examples x classes).

        Iterates of noisy steps move about as samples of a posterior at ``temperature_`` would. Their
        mean is rarely better than ``predict_proba``; no calibration is promised.

        Parameters
        ----------
        X
            A row for each example.

        Returns
        -------
        array
            Samples x examples x classes.
        """
        inputs = self._inputs(X)
        return np.stack([each.probabilities(inputs) for each in self.iterates_])

    def predict(self, X: Any) -> Array:
        """The most likely class of each example.

        Parameters
        ----------
        X
            A row for each example.

        Returns
        -------
        array
            A class for each.
        """
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def score(self, X: Any, y: Any) -> float:
        """Share of examples whose class is right; no guarantee covers it.

        Parameters
        ----------
        X
            A row for each example.
        y
            The right class of each.

        Returns
        -------
        float
            Between 0 and 1.
        """
        said = self.predict_proba(X).argmax(1)
        return float((said == places_of(targets_of(y, len(said)), self.classes_.tolist())).mean())

    @property
    def _stands_for(self) -> tuple[Any, ...]:
        return tuple(self.classes_.tolist())

    def _recall(self, stands_for: Any) -> None:
        classes = np.array(categories_of("classes", stands_for), object)
        whole = all(isinstance(each, int) for each in classes)
        self.classes_ = classes.astype(np.int64) if whole else classes


class PrivateRegressor(PrivateNetwork):
    """A network for numbers whose training protects every example; see :class:`PrivateClassifier`.

    Parameters
    ----------
    target_bounds : pair of float or None
        Public bounds of the numbers; those beyond are taken for the bound, in predictions too.
    hidden, privacy, bounds, pictures, activation, dropout, prior_scale, steps, training, seed, progress
        As of :class:`PrivateClassifier`.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
    >>> privacy = sf.Privacy(
    ...     epsilon=2, delta=1e-5, unit="example", public=sf.Public(entries=2000)
    ... )
    >>> model = sf.PrivateRegressor(
    ...     privacy=privacy, bounds=(-1, 1), target_bounds=(-2, 2), steps=50
    ... )
    >>> bool(model.fit(X, X.sum(1)).score(X, X.sum(1)) > 0.8)
    True
    """

    loss: ClassVar[Loss] = "numbers"

    def __init__(
        self,
        hidden: Sequence[int] = (),
        *,
        privacy: Privacy | None = None,
        target_bounds: tuple[float, float] | None = None,
        bounds: tuple[float, float] | Mapping[str, Any] | None = None,
        pictures: tuple[int, int] | None = None,
        activation: Activation = "relu",
        dropout: float = 0.0,
        prior_scale: float | None = None,
        steps: int | None = None,
        training: Training | None = None,
        seed: int = 0,
        progress: Watch = None,
    ) -> None:
        super().__init__(
            hidden,
            privacy,
            bounds,
            pictures,
            activation,
            dropout,
            prior_scale,
            steps,
            training,
            seed,
            progress,
        )
        self.target_bounds = target_bounds

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        told = InputTags(three_d_array=True, string=True, categorical=True, allow_nan=True)
        tags = Tags("regressor", target_tags=TargetTags(required=True), input_tags=told)
        tags.regressor_tags = RegressorTags()
        return tags

    def _begin(self, y: Any) -> None:
        if self.privacy is not None and self.target_bounds is None:
            how = either("target_bounds=(low, high)", "--target-bounds LOW HIGH")
            raise SettingError(f"say between which public bounds targets lie: {how}")
        bounds = open_targets(y) if self.target_bounds is None else self.target_bounds
        self.target_bounds_ = as_pair("target_bounds", bounds)
        check_range(*self.target_bounds_)

    @property
    def _outputs(self) -> int:
        return 1

    def _targets(self, y: Any, count: int) -> tuple[Array, NDArray[np.bool_]]:
        numbers = as_numbers(targets_of(y, count))
        low, high = self.target_bounds_
        scaled = (np.clip(numbers.reshape(-1, 1), low, high) - (low + high) / 2) / ((high - low) / 2)
        known = ~np.isnan(scaled[:, 0])
        return np.where(known[:, None], scaled, 0.0).astype(np.float32), known

    def predict(self, X: Any) -> Array:
        """A number for each example, within the bounds.

        Parameters
        ----------
        X
            A row for each example.

        Returns
        -------
        array
            A number for each.
        """
        inputs = self._inputs(X)
        return self._numbers(self.network_, inputs)

    def _numbers(self, network: Any, inputs: Array) -> Array:
        low, high = self.target_bounds_
        said = network.outputs(inputs)[:, 0].astype(np.float64)
        return np.asarray(np.clip(said * (high - low) / 2 + (low + high) / 2, low, high))

    def sample_posterior(self, X: Any) -> Array:
        """Predictions by each of ``iterates_`` (samples x examples); no calibration is promised.

        Parameters
        ----------
        X
            A row for each example.

        Returns
        -------
        array
            Samples x examples.
        """
        inputs = self._inputs(X)
        return np.stack([self._numbers(each, inputs) for each in self.iterates_])

    def score(self, X: Any, y: Any) -> float:
        """R squared; no guarantee covers it.

        Parameters
        ----------
        X
            A row for each example.
        y
            The right number of each.

        Returns
        -------
        float
            One at most.
        """
        said = self.predict(X)
        numbers = as_numbers(targets_of(y, len(said)))
        error, whole = ((numbers - said) ** 2).sum(), ((numbers - numbers.mean()) ** 2).sum()
        return float(1 - error / whole) if whole > 0 else float(error == 0)

    @property
    def _stands_for(self) -> tuple[Any, ...]:
        return self.target_bounds_

    def _recall(self, stands_for: Any) -> None:
        self.target_bounds_ = as_pair("target_bounds", stands_for)


def _say_classes() -> str:
    how = either("classes=[...]", "--classes a b")
    return f"say which classes there can be, which is public: {how}"
