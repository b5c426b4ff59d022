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
from sfumato.data.tensor import Mode
from sfumato.engines.protocol import Engine
from sfumato.engines.ray import Ray
from sfumato.errors import ReleaseError, SettingError
from sfumato.estimators.answering import Answering
from sfumato.estimators.devices import in_whole_modes, placed
from sfumato.estimators.of_losses import method_of_loss
from sfumato.estimators.predicting import (
    UNSEEN,
)
from sfumato.estimators.reporting import Reporting
from sfumato.estimators.reporting_tables import expected_of, held_of, shown_of
from sfumato.estimators.sources import Described, ReceivedSource, Source, TensorSource, source_of
from sfumato.estimators.updating import asked, update
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
from sfumato.fit.plan import Plan, PrivatePlan
from sfumato.fit.received import behind_channels, promised
from sfumato.fit.request import Privacy
from sfumato.fit.update import Period
from sfumato.models.losses import LOSSES
from sfumato.models.multilinear import CPModel, Multilinear, check_ranks
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Kind, Shape
from sfumato.models.told import Told
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.facts import Facts
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.page.contents import Expected, Held, Shown
from sfumato.sites.device import DEVICES
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
NOT_SAVED = ("progress", "dtype", "solver", "privacy", "threads", "engine", "device")


class TensorEstimator(Answering, Reporting, ABC):
    """What all estimators share: parameters, fitting by a plan, prediction by label.

    It is :class:`CP`, :class:`Tucker` and :class:`Biases`; call these.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.synthetic.ratings_like(60, 40, 5, 2000).split(0.2)
    >>> models = sf.Biases(), sf.CP(rank=2)
    >>> all(isinstance(model, sf.TensorEstimator) for model in models)
    True
    >>> [round(model.fit(train).rmse(test), 1) for model in models]
    [1.0, 1.0]
    """

    # Settings that not every estimator has in its constructor come with a value.
    solver: str | Solver[Any, Any] = "als"
    kind: ClassVar[Kind] = "cp"
    mean: bool = True
    biases: bool = True
    starts: int = 1
    seed: int = 0
    dtype: DTypeLike | None
    privacy: Privacy | None
    engine: Ray | None = None
    device: str = "cpu"
    periods_: tuple[Period, ...] = ()  # of a private model that can be updated: its fits
    refit_: dict[str, Any] | None = None  # how a site made it of a release and raw data
    plan_: PrivatePlan[Completion] | None = None  # of a private fit that was made here
    expected_: Expected | None = None  # by the plan of a private model that was loaded
    beside_raw_: bool = False  # whether a site fitted raw data of its own beside others' noisy values

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            input_tags=InputTags(string=True, categorical=True),
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

        Parameters
        ----------
        modes : sequence of Mode
            Names and sizes.
        dtype : dtype
            float32 or float64.
        bounds : pair of float or None
            Public, of the values.
        entries : int or None
            How many there are.

        Returns
        -------
        Plan or PrivatePlan
            ``explain()`` says it in words; a private one has ``odds``, and what is charged.
        """
        if self.privacy is None:
            return self._open_plan(modes, dtype, entries)
        check_choice(tuple(LOSSES), loss=self.loss)
        self._loss.check(bounds)
        fitted = self._loss.fitted_bounds(bounds)
        plan = self._private_plan(self.privacy, modes, dtype, bounds=fitted, entries=entries)
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
        before: Told | None = None,
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
        facts = make_facts(shape, protected, bounds, entries, before)
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

    def _check_settings(self) -> None:
        """Refuse settings that no data could make good: before any is looked at, or paid for."""
        check_choice(prepare.POLICIES, duplicates=self.duplicates)
        check_choice(UNSEEN, unseen=self.unseen)
        check_choice(tuple(LOSSES), loss=self.loss)
        check_count(starts=self.starts)
        check_seed(seed=self.seed)
        check_flag(mean=self.mean, biases=self.biases)
        check_threads(self.threads)
        check_progress(self.progress)
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)
        check_kind(Ray | None, "an engine such as sfumato.Ray(), or None", engine=self.engine)
        check_choice(DEVICES, device=self.device)
        if self.engine is not None:
            self.engine.check()

    def _open_rank(self) -> OpenRank | None:
        """The rank as far as a private plan may choose it."""
        return None

    def _private_method(self, privacy: Privacy) -> Any:
        """The private method to use, by name or as a solver."""
        return method_of_loss(self.loss, privacy.method, "seen")

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to a tensor, to a table of labels, or to :class:`Shards` on disk.

        Parameters
        ----------
        X
            A tensor; :class:`Shards`, or the folder that they are in; or a table with a column of labels
            per mode.
        y
            Values of a table's rows.

        Returns
        -------
        Self
            This estimator, fitted.
        """
        self._check_settings()
        source = source_of(X, y).of_loss(self._loss)
        begin = time.perf_counter()
        if self.privacy is None:
            self._fit_openly(source)
        else:
            self._fit_privately(source, self.privacy)
        self.fit_seconds_ = time.perf_counter() - begin
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        period: str | None = None,
        privacy: Privacy | None = None,
        by: str | None = None,
    ) -> Self:
        """Go on with the entries of a new period, and with nothing but these; see ``docs/updates.md``.

        The first call is :meth:`fit`. Later ones charge the budget to the same ledger under the name of
        the ``period``, fit what the last release leaves of the new entries, and add it to the model.

        Parameters
        ----------
        X, y
            As of :meth:`fit`.
        period : str or None
            Public name of the new part of the data.
        privacy : Privacy or None
            What is public of this period, such as labels that are new; by default the estimator's.
        by : str or None
            A mode at whose new levels alone entries are looked at. Where entries are the unit, each has
            to be given in one period alone: this makes sure of it.

        Returns
        -------
        Self
            This estimator, with the new period in its model.
        """
        chosen = asked(self, privacy, period)
        if not self.__sklearn_is_fitted__():
            given, self.privacy = self.privacy, chosen
            try:
                return self.fit(X, y)
            finally:
                self.privacy = given
        self._check_settings()
        begin = time.perf_counter()
        update(self, X, y, chosen, by)
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
        there = placed(self.device, plan.solver, source, plan.shape, engine=self.engine)
        if there is None:
            answering = source.engine(self.engine, source.cut_by, self._threads)
        else:
            plan, answering = in_whole_modes(plan), there(self._threads)
        with answering as engine, self._watched() as progress:
            result = carry_out(plan, engine, progress)
            self.scatter_: float | None = _scatter(result, engine)
        self._keep(result.model, result.history, source)
        self.guarantee_: Guarantee | None = promise
        self.beside_raw_ = received is not None and received.has_clean
        self.refit_ = self.plan_ = self.expected_ = None
        self.local_: int | None = None
        self.own_prior_: OwnPrior | None = None
        self.errors_ = self.own_entries_ = self.told_ = None

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
        there = placed(
            self.device,
            plan.task.solver,
            source,
            facts.shape,
            sites,
            self.engine,
            whole=facts.whole_units,
            entries=facts.expected_entries,
        )
        if there is None:
            answering = source.engine(self.engine, together, self._threads, sites)
        else:
            answering = there(self._threads)
        with answering as engine, self._watched() as progress:
            period = privacy.period or ""
            result = carry_out_private(plan, engine, ledger, entropy, progress, period=period)
        promised = plan.guarantee(ledger, entropy)
        self.adopt(result, source, promised, facts.local)
        self.plan_ = plan
        self.periods_ = () if privacy.period is None else (Period.of(promised),)

    def _plan_for(
        self, source: Source, privacy: Privacy, protected: Protected, before: Told | None = None
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
                before=before,
            )

        plan, several = made(privacy), self.engine is not None or source.several
        adds_up = plan.task.solver.adds_up(plan.task.facts)
        if several and not adds_up and self._private_method(privacy) == "auto":
            return made(replace(privacy, method="bias"))
        return plan

    def adopt(self, fit: PrivateFit, source: Described, guarantee: Guarantee, local: int | None) -> None:
        """Take over what a private fit or search has found.

        Parameters
        ----------
        fit : PrivateFit
            What was found.
        source : Described
            What it was fitted to.
        guarantee : Guarantee
            What it promises.
        local : int or None
            The mode whose rows stay with their owners.
        """
        self._keep(fit.model, fit.history, source)
        self.scatter_ = self.refit_ = None  # the scatter of training data is not private
        self.plan_ = self.expected_ = None
        self.guarantee_, self.local_, self.own_prior_ = guarantee, local, fit.own_prior
        self.errors_, self.own_entries_, self.told_ = fit.errors, fit.own_entries, fit.told

    def _keep(self, model: Multilinear, history: tuple[Info, ...], source: Described) -> None:
        self.model_ = model
        self.history_ = history
        self.modes_ = source.modes
        self.bounds_ = source.bounds
        self.n_entries_: int | None = source.n_entries
        self.seen_ = source.cells if self.loss == "seen" and isinstance(source, TensorSource) else None

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

    # -- showing ----------------------------------------------------------------------------------

    def _shown(self) -> Shown:
        return shown_of(self, self._stored(self._fitted(), {}))

    def _held(self, held_out: Any) -> Held:
        return held_of(self, held_out)

    # -- keeping ----------------------------------------------------------------------------------

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the fitted model to a folder; see :func:`sfumato.load`.

        Of a private fit that is its release in the folder's ``release``, and in ``owner`` the rows
        that stay with their owners; ``force`` is that of :meth:`release`. A model of a site's own raw
        data beside others' noisy values is all in ``owner``.

        Parameters
        ----------
        folder : path
            Where to; an older model in it is replaced at one stroke.
        force : bool
            As of :meth:`release`.

        Returns
        -------
        Path
            The folder.
        """
        model = self._fitted()
        if self.guarantee_ is not None:
            self.guarantee_.check_releasable(force)
            return save_private(self._stored(model, self._history()), folder)
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

        Parameters
        ----------
        folder : path
            Where to.
        force : bool
            Release what is claimed only, or seeded.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        ReleaseError
            Where there is no guarantee, or only with reservations.
        """
        return save_release(self._releasable(force), folder)

    def release_files(self, *, force: bool = False) -> dict[str, bytes]:
        """The files that :meth:`release` writes, by name: all that the world gets to see.

        Parameters
        ----------
        force : bool
            As of :meth:`release`.

        Returns
        -------
        dict of bytes
            By name of file.
        """
        return release_files(self._releasable(force))

    def _releasable(self, force: bool) -> StoredModel:
        model = self._fitted()
        if self.guarantee_ is None:
            why = _BESIDE_RAW if self.beside_raw_ else _NOT_PRIVATE
            raise ReleaseError(_REFITTED if self.refit_ else why)
        self.guarantee_.check_releasable(force)
        return self._stored(model, self._history())

    def _history(self) -> dict[str, Any]:
        """What the plan of a private model expected, and its periods; all of it is public."""
        expected, found = self._expected(), dict[str, Any]()
        if expected is not None:
            found["expected"] = asdict(expected)
        if self.periods_:
            found["periods"] = [asdict(period) for period in self.periods_]
        return found

    def _expected(self) -> Expected | None:
        """What a private fit was expected to reach, from public numbers alone."""
        if self.plan_ is None:
            return self.expected_
        return expected_of(self.plan_, None if self.privacy is None else self.privacy.public.profile)

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
            errors=self.errors_,
            own_entries=self.own_entries_,
            told=self.told_,
        )


def _kept_together(facts: Facts) -> int | None:
    """The mode whose levels have all their entries at one site: of units, or of owners of rows."""
    return facts.local if facts.local is not None else facts.unit_mode


def _scatter(fit: Fit, engine: Engine) -> float:
    """Variance of what a fit leaves of the values: as learnt or reported, or else measured."""
    last = fit.history[-1] if fit.history else Info(0)
    return (last.noise or last.train_rmse or training_rmse(fit.model, engine)) ** 2
