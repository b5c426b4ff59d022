"""What classifiers and regressors share: plans, fits, readings of their noise, folders."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import (
    as_list,
    check_choice,
    check_count,
    check_kind,
    check_number,
    check_positive,
    check_progress,
    check_seed,
    given,
)
from sfumato.errors import DataError, ReleaseError, SettingError, not_fitted
from sfumato.estimators.examples_in import (
    Table,
    Taken,
    as_table,
    check_picture,
    columns_of,
    number_of,
    open_bounds,
    pictures_of,
    placed,
)
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.reporting import Reporting, network_facts
from sfumato.fit.choose import open_ledger
from sfumato.fit.loop import Watch
from sfumato.fit.network import Learning, Learnt, learn_openly, learn_privately
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.kernels.jax import check_installed
from sfumato.models.features import Columns, Pictures
from sfumato.models.network import Activation, Architecture, Loss
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.units import Sample, Unit
from sfumato.report.page.contents import Shown
from sfumato.sites.examples import mapped
from sfumato.solvers.network.settings import Training, usual_training
from sfumato.solvers.protocol import Run
from sfumato.store.network import StoredNetwork, load_network, save_network, save_network_release
from sfumato.store.reading import damage
from sfumato.surface import either, setting
from sfumato.typed import made_of
from sfumato.types import Array

_OPEN_BUDGET = Budget(1e3, 1e-5)  # settings of a fit without privacy are those of a huge budget
_MOST_STEPS, _MOST_DROPOUT, _MOST_PARAMETERS = 1_000_000, 9.0, 1 << 27
_NOT_SAVED = ("privacy", "progress", "training", "bounds", "classes", "target_bounds")


class PrivateNetwork(Parametrised, Reporting, ABC):
    """A network whose training protects every example; what it predicts is a subclass's."""

    loss: ClassVar[Loss]
    guarantee_: Guarantee | None
    features_: Columns | Pictures

    def __init__(
        self,
        hidden: Sequence[int],
        privacy: Privacy | None,
        bounds: tuple[float, float] | Mapping[str, Any] | None,
        pictures: tuple[int, int] | None,
        activation: Activation,
        dropout: float,
        prior_scale: float | None,
        steps: int | None,
        training: Training | None,
        seed: int,
        progress: Watch,
    ) -> None:
        self.hidden = hidden
        self.privacy = privacy
        self.bounds = bounds
        self.pictures = pictures
        self.activation = activation
        self.dropout = dropout
        self.prior_scale = prior_scale
        self.steps = steps
        self.training = training
        self.seed = seed
        self.progress = progress

    # -- what a subclass says -----------------------------------------------------------------------

    @property
    @abstractmethod
    def _outputs(self) -> int:
        """How many numbers the network gives."""

    @abstractmethod
    def _begin(self, y: Any) -> None:
        """Settle what may be learnt from the data without privacy, and may not with it."""

    @abstractmethod
    def _targets(self, y: Any, count: int) -> tuple[Array, NDArray[np.bool_]]:
        """What is to be predicted, and of which examples it is known."""

    @property
    @abstractmethod
    def _stands_for(self) -> tuple[Any, ...]:
        """What outputs stand for: the classes, or the two bounds of numbers."""

    @abstractmethod
    def _recall(self, stands_for: Any) -> None:
        """The other way round, from a folder."""

    # -- what will be done ------------------------------------------------------------------------

    def plan(self, examples: int, features: int | None = None) -> PrivatePlan[Learning]:
        """What ``fit`` will do to about so many examples (or owners of some); needs no data.

        Parameters
        ----------
        examples : int
            About how many there are, or of their owners.
        features : int or None
            How many columns.

        Returns
        -------
        PrivatePlan
            ``explain()`` says it in words.
        """
        self._check()
        shown: Columns | Pictures
        if self.pictures is not None:
            shown = pictures_of(self.pictures, self.bounds)
        else:
            shown = columns_of(self.bounds, features, None, hidden=bool(self.hidden))
        return self._plan(shown, replace(self._asked(), public=self._said_public(examples)))

    def _said_public(self, examples: int) -> Any:
        check_count(examples=examples)
        return replace(self._asked().public, entries=examples, units=examples)

    def _asked(self) -> Privacy:
        if not isinstance(self.privacy, Privacy):
            raise SettingError("there is no plan without privacy=Privacy(...)")
        return self.privacy

    def _plan(self, features: Columns | Pictures, privacy: Privacy) -> PrivatePlan[Learning]:
        unit = self._unit(privacy)
        count = number_of(privacy.public, unit)
        architecture = self._architecture(features)
        training = self._training(architecture, features, count, privacy.budget)
        what = "examples" if isinstance(unit, Sample) else f"different {unit.mode}s"
        assumed = (
            f"that there are about {count:,} {what} is public",
            "columns, their bounds and what is predicted of are public",
        )
        task = Learning(architecture, training, unit, count, assumptions=assumed)
        plan = PrivatePlan(task, privacy.budget, Run(int(self.seed)))
        warn_of(plan.caveats)
        return plan.calibrated()

    def _unit(self, privacy: Privacy) -> Sample | Unit:
        privacy.check_one_owner("a network")
        privacy.check_no_intervals("a network")
        if privacy.max_entries is not None:
            raise SettingError(f"a network needs no cap on examples: leave {setting('max_entries')} out")
        if privacy.method != "auto" or privacy.noise != "auto" or privacy.analysis != "proven":
            raise SettingError("a network has one private method: leave method, noise and analysis out")
        unit = privacy.unit
        if isinstance(unit, str):
            unit = Sample() if unit in ("example", "sample") else Unit(unit)
        if isinstance(unit, Sample) and unit.norm is None:
            return unit
        if isinstance(unit, Unit):
            return unit
        raise SettingError(
            f"a network protects one example, {setting('unit', 'example')}, or all examples of one "
            "owner: the name of the column that says whose they are, such as patient"
        )

    def _training(
        self, architecture: Architecture, features: Columns | Pictures, count: int, budget: Any
    ) -> Training:
        if self.training is not None:
            check_kind(Training, "a Training", training=self.training)
            self.training.check()
            return self.training
        usual = usual_training(
            architecture,
            count,
            budget,
            steps=self.steps,
            dropout=float(self.dropout),
            prior_scale=self.prior_scale,
            table=isinstance(features, Columns),
            openly=self.privacy is None,
        )
        usual.check()
        return usual

    def _architecture(self, features: Columns | Pictures) -> Architecture:
        hidden = tuple(int(size) for size in self.hidden)
        made = Architecture(features.size, self._outputs, hidden, self.activation, self.loss)
        if made.parameters > _MOST_PARAMETERS:
            raise SettingError(
                f"a network of {made.parameters:,} parameters is larger than the {_MOST_PARAMETERS:,} "
                f"that are trained here: make {setting('hidden')} smaller, or leave columns out"
            )
        return made

    def _check(self) -> None:
        check_installed()
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)
        for size in as_list("hidden", self.hidden, "the sizes of the hidden layers, such as (64,)"):
            check_count(hidden=size)
        check_choice(("relu", "tanh"), activation=self.activation)
        check_number(0, _MOST_DROPOUT, dropout=self.dropout)
        check_positive(**given(prior_scale=self.prior_scale))
        check_seed(seed=self.seed)
        check_count(1, _MOST_STEPS, **given(steps=self.steps))
        check_progress(self.progress)
        if self.pictures is not None:
            check_picture(self.pictures)

    # -- what is shown ----------------------------------------------------------------------------

    def _features(self, table: Table) -> Columns | Pictures:
        """How examples are shown to the network; with privacy, from public numbers alone."""
        bounds = self.bounds
        if bounds is None:
            if self.privacy is not None:
                how = either(
                    "bounds=(low, high) for all, or by name bounds={'age': (0, 120), 'sex': ['f', 'm']}",
                    "--bounds 0:10 for all, or by name --bounds age=0:120 --categories sex=f,m",
                )
                raise SettingError(f"say between which public bounds columns lie: {how}")
            bounds = open_bounds(table)
        if table.picture is not None:
            return pictures_of(table.picture, bounds)
        return columns_of(bounds, table.width, table.names, hidden=bool(self.hidden))

    # -- fitting ----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on examples; ``X`` is an array or a table, or pictures (n x height x width).

        ``groups`` says whose each example is, where all examples of one owner are protected together;
        of a table it may be the name of a column, which is not learnt from.

        Parameters
        ----------
        X
            A row for each example.
        y
            What is to be predicted.
        groups
            An owner for each example.

        Returns
        -------
        Self
            This estimator, fitted.
        """
        begin = time.perf_counter()
        taken = self._take_in(X, y, groups)
        if self.privacy is None:
            self._fit_openly(taken)
        else:
            self._fit_privately(taken, self.privacy)
        self.fit_seconds_ = time.perf_counter() - begin
        return self

    def _take_in(self, X: Any, y: Any, groups: Any) -> Taken:
        """Examples, with how they are shown to the network and what is to be predicted."""
        self._check()
        if y is None:
            raise DataError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        owned = self.privacy is not None and isinstance(self._unit(self.privacy), Unit)
        if self.privacy is not None and groups is None and owned:
            groups = self._unit(self.privacy).mode  # type: ignore[union-attr]
        table = as_table(X, groups, self.pictures)
        self._begin(y)
        if owned and table.owners is None:
            raise DataError(
                f"say whose each example is: groups=..., or a column {groups!r} of the table"
            )
        return Taken(self._features(table), table, *self._targets(y, table.count))

    def _fit_openly(self, taken: Taken) -> None:
        examples, architecture = taken.examples(False), self._architecture(taken.features)
        if not (count := examples.units):
            raise DataError("there is no example to learn from, or none of one of the classes")
        self.training_ = self._training(architecture, taken.features, count, _OPEN_BUDGET)
        self.guarantee_, self._noise, self._units = None, 0.0, count
        with self._watched() as progress:
            learnt = learn_openly(
                architecture, self.training_, taken.features, examples, int(self.seed), progress
            )
        self._keep(taken, learnt)

    def _fit_privately(self, taken: Taken, privacy: Privacy) -> None:
        plan = self._plan(taken.features, privacy)
        unit = plan.task.unit
        ledger, entropy = open_ledger(privacy, unit), privacy.entropy()
        examples = taken.examples(isinstance(unit, Unit))
        with self._watched() as progress:
            learnt = learn_privately(plan, taken.features, examples, ledger, entropy, progress)
        self._adopt(taken, learnt, plan.task, plan.guarantee(ledger, entropy))

    def _adopt(self, taken: Taken, learnt: Learnt, task: Learning, guarantee: Guarantee) -> None:
        """Be what was learnt privately, here or in a search."""
        self.training_, self._noise, self._units = task.training, task.noise, task.count
        self.guarantee_ = guarantee
        self._keep(taken, learnt)

    def _keep(self, taken: Taken, learnt: Learnt) -> None:
        self.features_, self.mean_ = taken.features, learnt.mean
        self.network_, self.iterates_ = learnt.network, learnt.iterates
        self.n_features_in_ = taken.table.width
        if taken.table.names is not None:
            self.feature_names_in_ = np.array(taken.table.names, object)

    # -- predicting -------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def _inputs(self, X: Any) -> NDArray[np.int16]:
        """Examples as the network was shown them."""
        if not hasattr(self, "network_"):
            raise not_fitted(type(self).__name__)
        features = self.features_
        if isinstance(features, Columns):
            table = as_table(X, None, None, [column.name for column in features.columns])
        else:
            table = as_table(X, None, (features.height, features.width))
        if table.width != self.n_features_in_:
            raise DataError(
                f"X has {table.width} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        rows = features.rows(table.columns)
        return mapped(rows, lambda some: features.centred(some, self.mean_))

    @property
    def temperature_(self) -> float:
        """At which training ran, read as Langevin dynamics: one would be that of the posterior.

        The noise is set by privacy and not by the posterior, and that of the batches is not counted:
        a reading, which promises no calibration.
        """
        noise, length = self._noise_per_step
        return length * noise**2 * self._units / (2 * (1 - self.training_.momentum))

    @property
    def dropout_(self) -> list[Array]:
        """Of every layer's weights, the Gaussian dropout that the last steps' noise amounts to.

        The variance of a step's noise over the square of the weight: where it is above one, noise is all
        that is left of a weight. A reading, as :attr:`temperature_` is.
        """
        noise, length = self._noise_per_step
        network = self.network_
        with np.errstate(divide="ignore"):
            return [
                (length * noise / layer.weights) ** 2
                for layer in network.architecture.layers(network.parameters)
            ]

    @property
    def _noise_per_step(self) -> tuple[float, float]:
        """Standard deviation of the noise in the mean gradient, and the length of the last steps."""
        training = self.training_
        return (
            self._noise * training.clip / (training.rate * self._units),
            training.length(training.steps - 1),
        )

    # -- on disk ----------------------------------------------------------------------------------

    def _shown(self) -> Shown:
        return Shown(type(self).__name__, network_facts(self._stored()), self.guarantee_)

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the network; of a private one all that it is may be handed out (``release``).

        Parameters
        ----------
        folder : path
            Where to.
        force : bool
            As of :meth:`release`.

        Returns
        -------
        Path
            The folder.
        """
        stored = self._stored()
        if stored.guarantee is not None:
            stored.guarantee.check_releasable(force)
        return save_network(stored, folder)

    def release(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write what the guarantee covers; ``force`` for a seeded one, which promises nothing.

        Parameters
        ----------
        folder : path
            Where to.
        force : bool
            Release what is seeded, too.

        Returns
        -------
        Path
            The folder.
        """
        stored = self._stored()
        if stored.guarantee is None:
            raise ReleaseError("this is not private: fit it with privacy=... to release it")
        stored.guarantee.check_releasable(force)
        return save_network_release(stored, folder)

    def _stored(self) -> StoredNetwork:
        if not hasattr(self, "network_"):
            raise not_fitted(type(self).__name__)
        settings = {k: v for k, v in self.get_params().items() if k not in _NOT_SAVED}
        settings["hidden"] = list(self.hidden)
        return StoredNetwork(
            type(self).__name__,
            self.network_,
            self.iterates_,
            self.features_,
            self.mean_,
            self._stands_for,
            self.training_,
            self._noise,
            self._units,
            settings,
            self.guarantee_,
        )

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Self:
        """What :meth:`save` or :meth:`release` wrote.

        Parameters
        ----------
        folder : path
            That was saved or released.

        Returns
        -------
        Self
            As it was saved.
        """
        return cls.of(load_network(folder), folder)

    @classmethod
    def of(cls, stored: StoredNetwork, folder: str | PathLike[str]) -> Self:
        """The estimator that was stored in a folder.

        Parameters
        ----------
        stored : StoredNetwork
            What the folder holds.
        folder : path
            Where it lies, for messages.

        Returns
        -------
        Self
            As it was saved.
        """
        with damage(Path(folder)):
            if (cls.__name__, cls.loss) != (stored.estimator, stored.network.architecture.loss):
                raise ValueError(f"it holds no {cls.__name__}")
            settings = {**stored.settings, "hidden": tuple(stored.settings["hidden"])}
            made: Self = made_of(cls, settings, "its settings")
            made._take_over(stored)
        return made

    def _take_over(self, stored: StoredNetwork) -> None:
        self.features_, self.mean_ = stored.features, stored.mean
        self.network_, self.iterates_ = stored.network, stored.iterates
        self.training_, self._noise, self._units = stored.training, stored.noise, stored.units
        self.guarantee_, self.fit_seconds_ = stored.guarantee, 0.0
        if isinstance(stored.features, Columns):
            names = [column.name for column in stored.features.columns]
            self.n_features_in_ = len(names)
            if not placed(names):
                self.feature_names_in_ = np.array(names, object)
        else:
            self.n_features_in_ = stored.features.height * stored.features.width
        self._recall(stored.targets)
