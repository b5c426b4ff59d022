"""What estimators of completion share: settings, a plan, a fit, predictions by label, folders.

Conventions are scikit-learn's: a constructor only stores its settings; what ``fit`` learns has a name
that ends in an underscore.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from sfumato.checks import (
    as_precision,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_progress,
    check_seed,
    check_threads,
)
from sfumato.data import prepare
from sfumato.data.cells import as_columns
from sfumato.data.shards import Shards
from sfumato.data.tensor import Mode, SparseTensor, find_mode
from sfumato.engines.protocol import Engine
from sfumato.engines.ray import Ray
from sfumato.errors import DataError, NotFittedError, ReleaseError, SettingError
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.predicting import (
    UNSEEN,
    coordinates_of,
    owners_mode,
    read_own,
    values_at,
    values_with_own,
    within,
)
from sfumato.estimators.sources import Described, ReceivedSource, Source, source_of
from sfumato.fit.admit import Protected, public_modes
from sfumato.fit.choose import OpenRank, make_facts, make_plan, open_ledger
from sfumato.fit.completion import (
    Completion,
    Fit,
    PrivateFit,
    carry_out,
    carry_out_private,
    training_rmse,
)
from sfumato.fit.loop import Progress
from sfumato.fit.own import OwnRows, derived_prior, solve_for_owners
from sfumato.fit.plan import Plan, PrivatePlan
from sfumato.fit.received import behind_channels, promised
from sfumato.fit.request import Privacy
from sfumato.kernels.numba.threads import available_threads
from sfumato.metrics import rmse
from sfumato.models.multilinear import CPModel, Multilinear, check_ranks
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Kind, Shape
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.facts import Facts, assumed_scatter
from sfumato.privacy.guarantee import Guarantee
from sfumato.solvers.protocol import Info, Run, Solver
from sfumato.solvers.registry import method_named
from sfumato.store import (
    StoredModel,
    release_files,
    save_model,
    save_own,
    save_private,
    save_release,
)
from sfumato.surface import setting

_NOT_PRIVATE = "this model is not private: fit it with privacy=... to release it"
_REFITTED = (
    "this model was refitted with a site's raw data and is as secret as they are: it stays with the "
    "site. What may be handed out is the release that it was made from"
)
_BESIDE_RAW = (
    "this model was fitted to raw data of a site beside others' noisy values, and is as secret as the "
    "raw data: it stays with the site"
)
# settings that a folder does not hold
NOT_SAVED = ("progress", "dtype", "solver", "privacy", "threads", "engine")


class TensorEstimator(Parametrised, ABC):
    """What all estimators share: parameters, fitting by a plan, prediction by label."""

    # Settings that not every estimator has in its constructor come with a value.
    solver: str | Solver[Any, Any] = "als"
    kind: ClassVar[Kind] = "cp"
    mean: bool = True
    biases: bool = True
    duplicates: prepare.DuplicatePolicy
    unseen: str
    starts: int = 1
    seed: int = 0
    dtype: DTypeLike | None
    threads: int | None
    progress: Progress | None
    privacy: Privacy | None
    engine: Ray | None = None
    refit_: dict[str, Any] | None = None  # how a site made it of a release and raw data
    beside_raw_: bool = False  # whether a site fitted raw data of its own beside others' noisy values

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    # -- fitting ----------------------------------------------------------------------------------

    @abstractmethod
    def _ranks(self, sizes: Sequence[int], entries: int | None = None) -> Sequence[int]:
        """The model's rank in each mode; where none is given, a usual one that the data allow."""

    @abstractmethod
    def _solver(self) -> Solver[Any, Any]:
        """The solver to use."""

    def plan(
        self,
        modes: Sequence[Mode],
        dtype: DTypeLike = np.float64,
        *,
        bounds: tuple[float, float] | None = None,
        entries: int | None = None,
    ) -> Plan[Shape] | PrivatePlan[Completion]:
        """What ``fit`` will do to a tensor with these modes; needs no data.

        A private plan needs the values' public bounds, and where positions are public the number of
        entries. A promise that is worth little is a :class:`PrivacyWarning`.
        """
        if self.privacy is None:
            return self._open_plan(modes, dtype, entries)
        plan = self._private_plan(self.privacy, modes, dtype, bounds=bounds, entries=entries)
        warn_of(plan.caveats)
        return plan

    def _open_plan(
        self, modes: Sequence[Mode], dtype: DTypeLike, entries: int | None = None
    ) -> Plan[Shape]:
        self._check_settings()
        shape, solver = self._shape(modes, self._precision(dtype), entries), self._solver()
        return Plan(shape, solver, self._run, int(self.starts))

    def _private_plan(
        self,
        privacy: Privacy,
        modes: Sequence[Mode],
        dtype: DTypeLike = np.float64,
        *,
        bounds: tuple[float, float] | None,
        entries: int | None,
        protected: Protected | None = None,
    ) -> PrivatePlan[Completion]:
        """The plan with this privacy, which need not be the estimator's own, without a warning."""
        self._check_settings()
        protected, precision = protected or Protected.by(privacy, modes), self._precision(dtype)
        # Rounding single-precision sums could add more than clipping bounds.
        if self.dtype is not None and precision != np.float64:
            raise SettingError("a private fit computes in float64: leave the dtype out")
        shape = self._shape(public_modes(modes, protected), np.dtype(np.float64))
        if self.starts != 1:
            raise SettingError("a private fit has one start: to choose among several looks at the data")
        if not isinstance(self.solver, str) or self.solver != "als":
            raise SettingError("a private fit is made by its privacy's method: leave the solver out")
        facts = make_facts(shape, protected, bounds, entries)
        method, rank = self._private_method(privacy), self._open_rank()
        return make_plan(facts, protected, privacy, method, self._run, rank)

    def _precision(self, dtype: DTypeLike) -> np.dtype[Any]:
        """The precision asked for, or else that of the values."""
        return as_precision(dtype if self.dtype is None else self.dtype)

    def _shape(
        self, modes: Sequence[Mode], precision: np.dtype[Any], entries: int | None = None
    ) -> Shape:
        sizes = [mode.size for mode in modes]
        ranks = self._ranks(sizes, entries)
        check_ranks(sizes, ranks, [mode.name for mode in modes])
        means = {"fit_mean": bool(self.mean), "fit_biases": bool(self.biases)}
        return Shape.of(modes, ranks, self.kind, dtype=precision.name, **means)

    @property
    def _run(self) -> Run:
        return Run(int(self.seed), self._threads)

    @property
    def _threads(self) -> int:
        return int(self.threads or available_threads())

    def _check_settings(self) -> None:
        """Refuse settings that no data could make good: before any is looked at, or paid for."""
        check_choice(prepare.POLICIES, duplicates=self.duplicates)
        check_choice(UNSEEN, unseen=self.unseen)
        check_count(starts=self.starts)
        check_seed(seed=self.seed)
        check_flag(mean=self.mean, biases=self.biases)
        check_threads(self.threads)
        check_progress(self.progress)
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)
        check_kind(Ray | None, "an engine such as sfumato.Ray(), or None", engine=self.engine)
        if self.engine is not None:
            self.engine.check()

    def _open_rank(self) -> OpenRank | None:
        """The rank as far as a private plan may choose it."""
        return None

    def _private_method(self, privacy: Privacy) -> Any:
        """The private method to use, by name or as a solver."""
        return privacy.method

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to a tensor, to a table of labels ``X`` (one column per mode) with values ``y``, or to
        :class:`Shards` on disk, or the folder that they are in.
        """
        self._check_settings()
        source = source_of(X, y)
        begin = time.perf_counter()
        if self.privacy is None:
            self._fit_openly(source)
        else:
            self._fit_privately(source, self.privacy)
        self.fit_seconds_ = time.perf_counter() - begin
        return self

    def _fit_openly(self, source: Source) -> None:
        prepare.check_sizes(source.modes)
        plan = self._open_plan(source.modes, source.dtype, source.n_entries)
        if isinstance(source, ReceivedSource):
            plan = behind_channels(plan, source.n_entries)
        if self.engine is not None:
            self.engine.check_solver(plan.solver)
        source = source.checked(self.duplicates, plan.shape.dtype)
        received = source.received if isinstance(source, ReceivedSource) else None
        promise = None if received is None else promised(received, plan.shape)  # before the work
        with source.engine(self.engine, source.cut_by, self._threads) as engine:
            result = carry_out(plan, engine, self.progress)
            self.scatter_: float | None = _scatter(result, engine)
        self._keep(result.model, result.history, source)
        self.guarantee_: Guarantee | None = promise
        self.beside_raw_ = received is not None and received.has_clean
        self.refit_ = None
        self.local_: int | None = None
        self.own_prior_: OwnPrior | None = None

    def _fit_privately(self, source: Source, privacy: Privacy) -> None:
        protected, entropy = Protected.by(privacy, source.modes), privacy.entropy()
        source = source.admitted(protected, self.duplicates, entropy)
        plan = self._plan_for(source, privacy, protected)
        warn_of(plan.caveats)
        facts, ledger = plan.task.facts, open_ledger(privacy, protected.unit)
        source = source.cast(facts.shape.dtype)
        together = _kept_together(facts)
        if together is None:
            together = source.cut_by
        sites = 1 if facts.trust.kind == "one owner" else facts.trust.sites
        with source.engine(self.engine, together, self._threads, sites) as engine:
            result = carry_out_private(plan, engine, ledger, entropy, self.progress)
        promised = plan.guarantee(ledger, entropy)
        self.adopt(result, source, promised, facts.local)

    def _plan_for(
        self, source: Source, privacy: Privacy, protected: Protected
    ) -> PrivatePlan[Completion]:
        """The plan of these entries; what is chosen for them adds up where they lie at several sites."""

        def made(asked: Privacy) -> PrivatePlan[Completion]:
            return self._private_plan(
                asked,
                source.modes,
                source.dtype,
                bounds=source.bounds,
                entries=source.n_entries,
                protected=protected,
            )

        plan, several = made(privacy), self.engine is not None or source.several
        adds_up = plan.task.solver.adds_up(plan.task.facts)
        if several and not adds_up and self._private_method(privacy) == "auto":
            return made(replace(privacy, method="bias"))
        return plan

    def adopt(self, fit: PrivateFit, source: Described, guarantee: Guarantee, local: int | None) -> None:
        """Take over what a private fit or search has found."""
        self._keep(fit.model, fit.history, source)
        self.scatter_ = self.refit_ = None  # that of the training data is not private
        self.guarantee_, self.local_, self.own_prior_ = guarantee, local, fit.own_prior

    def _keep(self, model: Multilinear, history: tuple[Info, ...], source: Described) -> None:
        self.model_ = model
        self.history_ = history
        self.modes_ = source.modes
        self.bounds_ = source.bounds
        self.n_entries_: int | None = source.n_entries

    @property
    def rank_(self) -> int | tuple[int, ...]:
        """Rank of the fitted model, also one that was chosen for you; of Tucker one for each mode.

        Where mean and biases are all that was fitted, there is one component, and it is zero.
        """
        model = self._fitted()
        return model.ranks[0] if isinstance(model, CPModel) else tuple(model.ranks)

    @property
    def method_(self) -> str:
        """What fitted the model: a private method by :class:`Privacy`'s name for it, or a solver."""
        self._fitted()
        if self.guarantee_ is not None:
            return method_named(self.guarantee_.method)
        return self._solver().name

    # -- predicting -------------------------------------------------------------------------------

    def _fitted(self) -> Multilinear:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self.model_

    def predict(
        self,
        X: Any = None,
        *,
        own: Any = None,
        own_mode: str | None = None,
        own_value: str | None = None,
        unseen: str | None = None,
        **labels: Any,
    ) -> Any:
        """Predicted values, within the data's bounds where it has some.

        ``X`` is a tensor, a table with a column of labels per mode, or nothing where the labels are
        given by mode name: ``predict(user="u17", item="m3")``; one label each gives one number.
        A label that was not in training is an error, or with ``unseen="bias"`` that row falls back
        to mean and biases of what is known.

        ``own`` holds entries of somebody who need not have been in training: a tensor, or a table or
        file with a column of labels per mode and one of values (``own_value`` names it where there are
        more). Rows of their mode are solved from these entries and the model, used in this prediction
        and forgotten. That mode is the one whose rows stay with their owners; where there is none,
        ``own_mode``, by default the first. Values are clipped to the bounds. Of a private fit every
        own entry counts; else several at one cell are merged as in ``fit``. Own entries with a label
        that the model does not know are an error, or with ``unseen="bias"`` left out.
        """
        self._fitted()
        if (X is None) == (not labels):
            raise SettingError("give either a tensor or table, or labels by mode name")
        single = bool(labels) and all(np.ndim(label) == 0 for label in labels.values())
        cells = X if X is not None else as_columns(labels)
        fallback = self._fallback(unseen)
        if own is not None:
            rows = self._own_rows(own, own_mode, own_value, fallback)
            values = values_with_own(self.model_, self.modes_, rows, cells, fallback, self._threads)
        elif own_mode is not None or own_value is not None:
            raise SettingError(
                f"{setting('own_mode')} and {setting('own_value')} say how own entries are read: give "
                f"{setting('own')} as well"
            )
        else:
            coordinates = coordinates_of(cells, self.modes_, fallback)
            values = values_at(self.model_, coordinates, self._threads)
        values = within(self.bounds_, values)
        return float(values[0]) if single else values

    def _fallback(self, unseen: str | None) -> str:
        fallback = self.unseen if unseen is None else unseen
        check_choice(UNSEEN, unseen=fallback)
        return fallback

    def _own_rows(self, own: Any, name: str | None, value: str | None, fallback: str) -> OwnRows:
        """Rows of those who bring entries, solved from these and the model."""
        mode = owners_mode(self.modes_, self.local_, name)
        merge = self.duplicates if self.guarantee_ is None else None
        entries = read_own(own, value, self.modes_, self.bounds_, merge)
        return solve_for_owners(
            self.model_,
            self.modes_,
            self._prior_of(mode),
            entries,
            skip_unknown=fallback == "bias",
            threads=self._threads,
        )

    def _prior_of(self, mode: int) -> OwnPrior:
        """That of the fit where it has one, else one made from the mode's rows."""
        if mode == self.local_:
            if self.own_prior_ is None:
                raise SettingError(
                    f"this release does not say how rows of {self.modes_[mode].name} are solved: it "
                    "holds a constant, or an earlier version wrote it. Fit again, with another method "
                    "than 'constant'"
                )
            return self.own_prior_
        scatter = self.scatter_
        if self.guarantee_ is not None and self.bounds_ is not None:
            scatter = assumed_scatter(self.bounds_)
        if scatter is None:
            raise SettingError("an earlier version saved this model: fit again to use own entries")
        return derived_prior(self.model_, mode, scatter)

    def rmse(self, X: Any, y: Any = None) -> float:
        """Root mean squared error at the entries of a tensor or of :class:`Shards` (or a table's rows
        with values ``y``).
        """
        if y is None and isinstance(X, Shards):  # part by part, as they may be larger than memory
            squares = sum(part.n_entries * self.rmse(part) ** 2 for part in X if part.n_entries)
            return float(np.sqrt(squares / X.n_entries))
        if y is None and not isinstance(X, SparseTensor):
            raise DataError("give a SparseTensor, or Shards, or a table of labels and the values y")
        actual = X.values if isinstance(X, SparseTensor) else y
        return rmse(actual, self.predict(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the RMSE: higher is better, as scikit-learn's search expects."""
        return -self.rmse(X, y)

    def top(self, mode: str, k: int = 10, **labels: Any) -> list[tuple[Any, float]]:
        """The k levels of a mode with the highest predictions, labels of the other modes given."""
        model, m = self._fitted(), find_mode(self.modes_, mode)
        check_count(k=k)
        if any(np.ndim(label) for label in labels.values()):
            raise SettingError("top takes one label per mode")
        if not self.modes_[m].size:
            raise SettingError(f"rows of {mode} stay with their owners: this release has none of them")
        cell = as_columns({**labels, mode: self.modes_[m].label(0)})
        cells = np.repeat(coordinates_of(cell, self.modes_, "error"), self.modes_[m].size, axis=1)
        cells[m] = np.arange(self.modes_[m].size)
        values = within(self.bounds_, values_at(model, cells, self._threads))
        best = np.argsort(-values, kind="stable")[:k]
        return [(self.modes_[m].label(int(level)), float(values[level])) for level in best]

    # -- keeping ----------------------------------------------------------------------------------

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the fitted model to a folder; see :func:`sfumato.load`.

        Of a private fit that is its release in the folder's ``release``, and in ``owner`` the rows
        that stay with their owners; ``force`` is that of :meth:`release`. A model of a site's own raw
        data beside others' noisy values is all in ``owner``.
        """
        model = self._fitted()
        if self.guarantee_ is not None:
            self.guarantee_.check_releasable(force)
            return save_private(self._stored(model, {}), folder)
        solver: Any = self._solver()
        notes = {
            "solver": {"name": solver.name, **asdict(solver)},
            "entries": self.n_entries_,
            "fit_seconds": self.fit_seconds_,
            "history": [asdict(info) for info in self.history_],
            "scatter": self.scatter_,
            **({"refit": self.refit_} if self.refit_ else {}),
        }
        if self.beside_raw_:
            return save_own(self._stored(model, {**notes, "beside_raw": True}), folder)
        return save_model(self._stored(model, notes), folder)

    def release(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write what the guarantee covers, and nothing else.

        A model without a guarantee is refused. One whose guarantee is only claimed, or whose noise
        came from a seed, is refused unless ``force`` says that this is meant; it is marked so.
        """
        return save_release(self._releasable(force), folder)

    def release_files(self, *, force: bool = False) -> dict[str, bytes]:
        """The files that :meth:`release` writes, by name: all that the world gets to see."""
        return release_files(self._releasable(force))

    def _releasable(self, force: bool) -> StoredModel:
        model = self._fitted()
        if self.guarantee_ is None:
            why = _BESIDE_RAW if self.beside_raw_ else _NOT_PRIVATE
            raise ReleaseError(_REFITTED if self.refit_ else why)
        self.guarantee_.check_releasable(force)
        return self._stored(model, {})

    def _stored(self, model: Multilinear, notes: dict[str, Any]) -> StoredModel:
        settings = {name: value for name, value in self.get_params().items() if name not in NOT_SAVED}
        return StoredModel(
            type(self).__name__,
            model,
            self.modes_,
            self.bounds_,
            settings,
            notes,
            self.guarantee_,
            self.local_,
            self.own_prior_,
        )


def _kept_together(facts: Facts) -> int | None:
    """The mode whose levels have all their entries at one site: of units, or of owners of rows."""
    return facts.local if facts.local is not None else facts.unit_mode


def _scatter(fit: Fit, engine: Engine) -> float:
    """Variance of what a fit leaves of the values: as learnt or reported, or else measured."""
    last = fit.history[-1] if fit.history else Info(0)
    return (last.noise or last.train_rmse or training_rmse(fit.model, engine)) ** 2
