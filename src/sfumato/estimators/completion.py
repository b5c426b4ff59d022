"""Estimators with scikit-learn's conventions: ``sf.CP(rank=8).fit(train).predict(test)``.

A constructor only stores its settings; what ``fit`` learns has a name that ends in an underscore.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.checks import (
    as_list,
    as_numbers,
    as_path,
    as_precision,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_positive,
    check_progress,
    check_seed,
    check_threads,
    is_whole,
    plain,
    shown,
)
from sfumato.data import prepare
from sfumato.data.cells import as_columns, labels_in
from sfumato.data.io.read import read, read_entries, read_table
from sfumato.data.io.tables import table_of
from sfumato.data.tensor import Mode, SparseTensor, find_levels, find_mode, locate
from sfumato.errors import DataError, NotFittedError, ReleaseError, SettingError
from sfumato.estimators.coupled import Coupled
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.power import PowerMethod
from sfumato.fit.admit import admit
from sfumato.fit.methods import (
    OpenRank,
    local_mode,
    make_plan,
    method_named,
    modes_of_fit,
    open_ledger,
)
from sfumato.fit.own import OwnRows, derived_prior, solve_for_owners
from sfumato.fit.plan import Fit, Plan, Progress, carry_out, training_rmse
from sfumato.fit.private import PrivateFit, PrivatePlan, carry_out_private
from sfumato.kernels.numba.threads import available_threads
from sfumato.metrics import rmse
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel, check_ranks
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.settings import Privacy
from sfumato.privacy.units import PrivacyUnit, parse_unit
from sfumato.sites.memory import Site
from sfumato.solvers import COUPLED_SOLVERS, SOLVERS, Backfitting
from sfumato.solvers.least_squares.own_rows import OwnPrior
from sfumato.solvers.private.biases import assumed_scatter
from sfumato.solvers.protocol import Info, PublicShape, Solver, check_solver
from sfumato.store import (
    COMPONENTS,
    COUPLED,
    StoredModel,
    kind_of,
    load_model,
    release_files,
    save_model,
    save_private,
    save_release,
)
from sfumato.store.reading import damage
from sfumato.surface import setting
from sfumato.typed import finite_number, made_of, whole_number
from sfumato.types import Array

_UNSEEN = ("error", "bias")
_NOT_SAVED = (
    "progress",
    "dtype",
    "solver",
    "privacy",
    "threads",
)  # settings that a folder does not hold
_USUAL_RANK, _USUAL_TUCKER_RANK = 8, 4  # where none is given


class TensorEstimator(Parametrised, ABC):
    """What all estimators share: parameters, fitting by a plan, prediction by label."""

    duplicates: prepare.DuplicatePolicy
    unseen: str
    starts: int
    seed: int
    dtype: DTypeLike | None
    threads: int | None
    progress: Progress | None
    privacy: Privacy | None

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
    def _ranks(self, sizes: Sequence[int]) -> Sequence[int]:
        """The model's rank in each mode; where none is given, a usual one that the sizes allow."""

    @abstractmethod
    def _make_model(self, shape: Sequence[int], dtype: DTypeLike) -> Multilinear:
        """An empty model of the given shape."""

    @abstractmethod
    def _solver(self) -> Solver[Any]:
        """The solver to use."""

    def plan(
        self,
        modes: Sequence[Mode],
        dtype: DTypeLike = np.float64,
        *,
        bounds: tuple[float, float] | None = None,
        entries: int | None = None,
    ) -> Plan[PublicShape] | PrivatePlan:
        """What ``fit`` will do to a tensor with these modes; needs no data.

        A private plan needs the values' public bounds, and where positions are public the number of
        entries. A promise that is worth little is a :class:`PrivacyWarning`.
        """
        self._check_settings()
        if self.privacy is not None:
            shape = self._shape(modes_of_fit(modes, self.privacy), dtype)
            plan = self._private_plan(shape, self.privacy, bounds, entries)
            warn_of(plan.caveats)
            return plan
        shape = self._shape(modes, dtype)
        solver = self._solver()
        tolerance = getattr(solver, "tolerance", None)
        return Plan(shape, solver, int(self.seed), int(self.starts), tolerance)

    def _shape(self, modes: Sequence[Mode], dtype: DTypeLike) -> PublicShape:
        chosen = as_precision(dtype if self.dtype is None else self.dtype)
        if self.privacy is not None:
            # Rounding single-precision sums could add more than clipping bounds.
            if self.dtype is not None and chosen != np.float64:
                raise SettingError("a private fit computes in float64: leave the dtype out")
            chosen = np.dtype(np.float64)
        shape = PublicShape(
            tuple(modes),
            self._make_model,
            chosen,
            bool(getattr(self, "mean", True)),
            bool(getattr(self, "biases", True)),
            int(self.threads or available_threads()),
        )
        check_ranks(shape.sizes, self._ranks(shape.sizes), [mode.name for mode in modes])
        return shape

    def _check_settings(self) -> None:
        """Refuse settings that no data could make good: before any is looked at, or paid for."""
        check_choice(prepare.POLICIES, duplicates=self.duplicates)
        check_choice(_UNSEEN, unseen=self.unseen)
        check_count(starts=self.starts)
        check_seed(seed=self.seed)
        check_flag(mean=getattr(self, "mean", True), biases=getattr(self, "biases", True))
        check_threads(self.threads)
        check_progress(self.progress)
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)

    def _private_plan(
        self,
        shape: PublicShape,
        privacy: Privacy,
        bounds: tuple[float, float] | None,
        entries: int | None,
    ) -> PrivatePlan:
        if self.starts != 1:
            raise SettingError("a private fit has one start: to choose among several looks at the data")
        solver = getattr(self, "solver", "als")
        if not isinstance(solver, str) or solver != "als":
            raise SettingError("a private fit is made by its privacy's method: leave the solver out")
        method, rank = self._private_method(privacy), self._open_rank()
        return make_plan(shape, privacy, method, bounds, entries, int(self.seed), rank)

    def _open_rank(self) -> OpenRank | None:
        """The rank as far as a private plan may choose it."""
        return None

    def _private_method(self, privacy: Privacy) -> Any:
        """The private method to use, by name or as a solver."""
        return privacy.method

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to a tensor, or to a table of labels ``X`` (one column per mode) with values ``y``."""
        self._check_settings()
        tensor = as_tensor(X, y)
        begin = time.perf_counter()
        if self.privacy is None:
            self._fit_openly(tensor)
        else:
            self._fit_privately(tensor, self.privacy)
        self.fit_seconds_ = time.perf_counter() - begin
        return self

    def _fit_openly(self, tensor: SparseTensor) -> None:
        prepare.check_modes(tensor)
        plan = self.plan(tensor.modes, tensor.values.dtype)
        assert isinstance(plan, Plan)
        prepare.check_values(tensor)
        merged = prepare.merge_duplicates(tensor, self.duplicates)
        if merged is not tensor:
            prepare.check_values(merged)  # a sum may be out of bounds
        site = Site(_cast(merged, plan.shape.dtype), plan.shape.threads)
        result = carry_out(plan, site, self.progress)
        self._keep(result.model, result.history, site.tensor)
        self.scatter_: float | None = _scatter(result, site)
        self.guarantee_: Guarantee | None = None
        self.local_: int | None = None
        self.own_prior_: OwnPrior | None = None

    def _fit_privately(self, tensor: SparseTensor, privacy: Privacy) -> None:
        tensor, unit, entropy = admitted(tensor, privacy, self.duplicates)
        entries = None if unit.hides_presence else tensor.n_entries
        plan = self.plan(tensor.modes, tensor.values.dtype, bounds=tensor.bounds, entries=entries)
        assert isinstance(plan, PrivatePlan)
        site = Site(_cast(tensor, plan.shape.dtype), plan.shape.threads)
        ledger = open_ledger(privacy, unit)
        result = carry_out_private(plan, site, ledger, entropy, self.progress)
        promised = plan.guarantee(ledger, seeded=not entropy.exact)
        self.adopt(result, site.tensor, promised, plan.shape.local)

    def adopt(
        self, fit: PrivateFit, tensor: SparseTensor, guarantee: Guarantee, local: int | None
    ) -> None:
        """Take over what a private fit or search has found."""
        self._keep(fit.model, fit.history, tensor)
        self.scatter_ = None  # that of the training data is not private
        self.guarantee_, self.local_, self.own_prior_ = guarantee, local, fit.own_prior

    def _keep(self, model: Multilinear, history: tuple[Info, ...], tensor: SparseTensor) -> None:
        self.model_ = model
        self.history_ = history
        self.modes_ = tensor.modes
        self.bounds_ = tensor.bounds
        self.n_entries_: int | None = tensor.n_entries

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
            mode = self._own_mode(own_mode)
            rows = self._own_rows(mode, self._own_entries(own, own_value), fallback)
            values = self._values_with_own(rows, labels_in(cells, self.modes_), fallback)
        elif own_mode is not None or own_value is not None:
            raise SettingError(
                f"{setting('own_mode')} and {setting('own_value')} say how own entries are read: give "
                f"{setting('own')} as well"
            )
        else:
            values = self._values(self.model_, self._locate(cells, fallback))
        if self.bounds_ is not None:
            values = np.clip(values, *self.bounds_)
        return float(values[0]) if single else values

    def _fallback(self, unseen: str | None) -> str:
        fallback = self.unseen if unseen is None else unseen
        check_choice(_UNSEEN, unseen=fallback)
        return fallback

    def _values(self, model: Multilinear, coordinates: NDArray[np.int32]) -> Array:
        """Values of cells; mean and known biases where a level is unknown."""
        known = (coordinates >= 0).all(axis=0)
        if known.all():
            return model.predict(coordinates, threads=self.threads or available_threads())
        values = np.empty(coordinates.shape[1], model.dtype)
        values[known] = model.predict(coordinates[:, known])
        values[~known] = _bias_prediction(model, coordinates[:, ~known])
        return values

    def _locate(self, X: Any, fallback: str) -> NDArray[np.int32]:
        if isinstance(X, SparseTensor) and X.modes == self.modes_:
            return X.coordinates
        return _located(self.modes_, labels_in(X, self.modes_), fallback)

    # -- own rows ---------------------------------------------------------------------------------

    def _own_mode(self, name: str | None) -> int:
        if self.local_ is None:
            return 0 if name is None else find_mode(self.modes_, name)
        local = self.modes_[self.local_].name
        if name not in (None, local):
            raise SettingError(
                f"rows of {local} stay with their owners: own entries solve these, not those of {name}"
            )
        return self.local_

    def _own_entries(self, own: Any, value: str | None) -> SparseTensor:
        tensor = read_entries(own, self.modes_, value)
        prepare.check_values(tensor.with_values(tensor.values))  # without bounds, which clip
        if self.bounds_ is not None:
            tensor = prepare.clip(tensor, self.bounds_)
        if self.guarantee_ is not None:
            return tensor
        return prepare.merge_duplicates(tensor, self.duplicates)

    def _own_rows(self, mode: int, own: SparseTensor, fallback: str) -> OwnRows:
        return solve_for_owners(
            self.model_,
            self.modes_,
            self._prior_of(mode),
            own,
            skip_unknown=fallback == "bias",
            threads=self.threads or available_threads(),
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

    def _values_with_own(self, rows: OwnRows, labels: Mapping[str, Any], fallback: str) -> Array:
        """Values of cells: by the owners' rows where the label is an owner's, else as ever."""
        mine = find_levels(rows.modes, labels)[rows.mode] >= 0
        values = np.empty(mine.shape[0], self.model_.dtype)
        for part, model, modes in ((mine, rows.model, rows.modes), (~mine, self.model_, self.modes_)):
            there = {name: np.asarray(column)[part] for name, column in labels.items()}
            values[part] = self._values(model, _located(modes, there, fallback))
        return values

    def rmse(self, X: Any, y: Any = None) -> float:
        """Root mean squared error at a tensor's entries (or a table's rows with values ``y``)."""
        if y is None and not isinstance(X, SparseTensor):
            raise DataError("give a SparseTensor, or a table of labels and the values y")
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
        cells = np.repeat(self._locate(cell, "error"), self.modes_[m].size, axis=1)
        cells[m] = np.arange(self.modes_[m].size)
        values = self._values(model, cells)
        if self.bounds_ is not None:
            values = np.clip(values, *self.bounds_)
        best = np.argsort(-values, kind="stable")[:k]
        return [(self.modes_[m].label(int(level)), float(values[level])) for level in best]

    # -- keeping ----------------------------------------------------------------------------------

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the fitted model to a folder; see :func:`sfumato.load`.

        Of a private fit that is its release in the folder's ``release``, and in ``owner`` the rows
        that stay with their owners; ``force`` is that of :meth:`release`.
        """
        model = self._fitted()
        if self.guarantee_ is not None:
            self.guarantee_.check_releasable(force)
            return save_private(self._stored(model, {}), folder)
        notes = {
            "solver": _solver_to_json(self._solver()),
            "entries": self.n_entries_,
            "fit_seconds": self.fit_seconds_,
            "history": [asdict(info) for info in self.history_],
            "scatter": self.scatter_,
        }
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
            raise ReleaseError("this model is not private: fit it with privacy=... to release it")
        self.guarantee_.check_releasable(force)
        return self._stored(model, {})

    def _stored(self, model: Multilinear, notes: dict[str, Any]) -> StoredModel:
        settings = {name: value for name, value in self.get_params().items() if name not in _NOT_SAVED}
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


class CP(TensorEstimator):
    """CP model: ``mean + biases + sum_r prod_m factor_m[i_m, r]``.

    Parameters
    ----------
    rank : number of components; None for 8, or as many as the smallest mode has levels. Where a private
        method is chosen for you (``method="auto"``), it is the most that are fitted, and None leaves the
        number to the plan: noise makes many components worse than few.
    solver : "als" (Bayesian: learns its penalties), "sgd", "minibatch", "sequential", or one of the
        solver records with settings of your own: ``sf.ALS(ridge=10)``.
    mean, biases : whether to fit a global mean, and a bias per level of each mode.
    duplicates : what to do with several entries at one cell: "error", "mean", "last" or "sum".
    unseen : what to predict for labels not in training: "error", or "bias" (mean and known biases).
    starts : random starts; the one with the least training error is kept.
    seed : of the random start.
    dtype : float32 or float64; by default that of the values.
    threads : by default all cores. ALS gives the same result for any number, SGD for a given one.
    progress : called as ``progress(round, rounds, info)`` while fitting.
    privacy : a :class:`Privacy`: budget, unit and method of a private fit; None fits without privacy.

    Attributes
    ----------
    rank_, method_ : what was fitted, also where a private fit has chosen them.
    guarantee_ : what a private fit promises; None of another.
    """

    def __init__(
        self,
        rank: int | None = None,
        *,
        solver: str | Solver[Any] = "als",
        mean: bool = True,
        biases: bool = True,
        duplicates: prepare.DuplicatePolicy = "error",
        unseen: str = "error",
        starts: int = 1,
        seed: int = 0,
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.rank = rank
        self.solver = solver
        self.mean = mean
        self.biases = biases
        self.duplicates = duplicates
        self.unseen = unseen
        self.starts = starts
        self.seed = seed
        self.dtype = dtype
        self.threads = threads
        self.progress = progress
        self.privacy = privacy

    def _ranks(self, sizes: Sequence[int]) -> Sequence[int]:
        if self.rank is None:
            return [min(_USUAL_RANK, *(size for size in sizes if size))] * len(sizes)
        check_count(rank=self.rank)
        return [int(self.rank)] * len(sizes)

    def _make_model(self, shape: Sequence[int], dtype: DTypeLike) -> Multilinear:
        return CPModel.zeros(shape, self._ranks(shape)[0], dtype)

    def _open_rank(self) -> OpenRank:
        most = None if self.rank is None else int(self.rank)
        return OpenRank(most, lambda rank: lambda sizes, dtype: CPModel.zeros(sizes, rank, dtype))

    def _solver(self) -> Solver[Any]:
        return _named_solver(self.solver)


class Tucker(TensorEstimator):
    """Tucker model: a core of shape ``ranks``, multiplied along each mode by a factor.

    Parameters
    ----------
    ranks : one number for all modes, or one per mode; None for 4, less where a mode has fewer levels.
        The core has their product of entries. One number, or None, is what :class:`CP` makes of its rank
        in private fits; several are fitted as they are.

    The others are those of :class:`CP`.
    """

    def __init__(
        self,
        ranks: int | Sequence[int] | None = None,
        *,
        solver: str | Solver[Any] = "als",
        mean: bool = True,
        biases: bool = True,
        duplicates: prepare.DuplicatePolicy = "error",
        unseen: str = "error",
        starts: int = 1,
        seed: int = 0,
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.ranks = ranks
        self.solver = solver
        self.mean = mean
        self.biases = biases
        self.duplicates = duplicates
        self.unseen = unseen
        self.starts = starts
        self.seed = seed
        self.dtype = dtype
        self.threads = threads
        self.progress = progress
        self.privacy = privacy

    def _ranks(self, sizes: Sequence[int]) -> Sequence[int]:
        if self.ranks is None:
            return _at_most(_USUAL_TUCKER_RANK, sizes)
        if is_whole(self.ranks):
            check_count(ranks=self.ranks)
            return [int(self.ranks)] * len(sizes)
        ranks = as_list("ranks", self.ranks, "a whole number, or one for each mode")
        check_count(**{f"ranks[{m}]": rank for m, rank in enumerate(ranks)})
        return [int(rank) for rank in ranks]

    def _make_model(self, shape: Sequence[int], dtype: DTypeLike) -> Multilinear:
        return TuckerModel.zeros(shape, self._ranks(shape), dtype)

    def _open_rank(self) -> OpenRank | None:
        most = self.ranks
        if not (most is None or is_whole(most)):
            return None
        return OpenRank(
            None if most is None else int(most),
            lambda rank: lambda sizes, dtype: TuckerModel.zeros(sizes, _at_most(rank, sizes), dtype),
        )

    def _solver(self) -> Solver[Any]:
        return _named_solver(self.solver)


class Biases(TensorEstimator):
    """Bias predictor, ``mean + sum_m bias_m[i_m]``: what a factor model has to beat.

    ``ridge`` shrinks a level with n entries to n / (n + ridge) of its mean; ``sweeps=0`` gives the
    constant predictor. The other settings are those of :class:`CP`.
    """

    def __init__(
        self,
        *,
        ridge: float = 5.0,
        sweeps: int = 10,
        duplicates: prepare.DuplicatePolicy = "error",
        unseen: str = "error",
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.ridge = ridge
        self.sweeps = sweeps
        self.duplicates = duplicates
        self.unseen = unseen
        self.dtype = dtype
        self.threads = threads
        self.progress = progress
        self.privacy = privacy

    starts = 1
    seed = 0

    def _ranks(self, sizes: Sequence[int]) -> Sequence[int]:
        return [1] * len(sizes)

    def _make_model(self, shape: Sequence[int], dtype: DTypeLike) -> Multilinear:
        return CPModel.zeros(shape, 1, dtype)  # one component that stays zero

    def _solver(self) -> Solver[Any]:
        return plain(Backfitting(sweeps=self.sweeps, ridge=self.ridge))

    def _check_settings(self) -> None:
        super()._check_settings()
        check_count(0, sweeps=self.sweeps)
        check_positive(ridge=self.ridge)

    def _private_method(self, privacy: Privacy) -> Any:
        if not isinstance(privacy.method, str) or privacy.method not in ("auto", "bias", "constant"):
            raise SettingError(f"a bias predictor has no private method {shown(privacy.method)}")
        return "constant" if self.sweeps == 0 else "bias"


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (CP, Tucker, Biases)}


def load(folder: str | PathLike[str]) -> Any:
    """A fitted estimator from a folder that its ``save`` or ``release`` wrote."""
    folder = as_path("folder", folder)
    kind = kind_of(folder)
    if kind == COMPONENTS:
        return PowerMethod.load(folder)
    if kind == COUPLED:
        return Coupled.load(folder)
    stored = load_model(folder)
    with damage(Path(folder)):
        settings = {name: value for name, value in stored.settings.items() if name not in _NOT_SAVED}
        estimator: TensorEstimator = made_of(_KINDS[stored.kind], settings, "its settings")
        estimator._fallback(None)
        estimator.model_ = stored.model
        estimator.modes_ = stored.modes
        estimator.bounds_ = stored.bounds
        estimator.guarantee_, estimator.local_ = stored.guarantee, stored.local
        estimator.own_prior_ = stored.own_prior
        if stored.guarantee is None:
            _recall(estimator, stored.notes)
        else:  # a release says nothing of how it came about
            estimator.n_entries_, estimator.scatter_ = None, None
            estimator.fit_seconds_, estimator.history_ = 0.0, ()
    return estimator


def _recall(estimator: TensorEstimator, notes: dict[str, Any]) -> None:
    """How a fit without privacy came about."""
    if hasattr(estimator, "solver"):
        estimator.solver = _solver_from_json(notes["solver"])
    scatter = notes.get("scatter")  # an earlier version has none
    estimator.scatter_ = None if scatter is None else finite_number(scatter, "the scatter")
    estimator.n_entries_ = whole_number(notes["entries"], "the number of entries")
    estimator.fit_seconds_ = finite_number(notes["fit_seconds"], "the time of the fit")
    estimator.history_ = tuple(made_of(Info, info, "its history") for info in notes["history"])


def cross_validate(
    estimator: TensorEstimator, tensor: SparseTensor, *, folds: int = 5, seed: int = 0
) -> list[float]:
    """Held-out RMSE of each fold of a tensor; every fold keeps the tensor's shape and labels."""
    from sklearn.base import clone

    check_kind(TensorEstimator, "an estimator such as sfumato.CP(rank=4)", estimator=estimator)
    check_kind(SparseTensor, "a SparseTensor", tensor=tensor)
    return [clone(estimator).fit(train).rmse(test) for train, test in tensor.folds(folds, seed=seed)]


def _scatter(fit: Fit, site: Site) -> float:
    """Variance of what a fit leaves of the values: as learnt or reported, or else measured."""
    last = fit.history[-1] if fit.history else Info(0)
    return (last.noise or last.train_rmse or training_rmse(fit.model, site)) ** 2


def _bias_prediction(model: Multilinear, coordinates: NDArray[np.int32]) -> Array:
    biases = [
        np.where(levels >= 0, bias[levels], 0) if bias.size else np.zeros(levels.shape)
        for bias, levels in zip(model.mode_biases, coordinates, strict=True)
    ]
    total: Array = model.mean + np.sum(biases, axis=0)
    return total


def _located(modes: Sequence[Mode], labels: Mapping[str, Any], fallback: str) -> NDArray[np.int32]:
    """Coordinates of labelled cells, -1 where a label is unknown and that is no error."""
    if fallback == "error":
        # Of rows that stay with their owners a release knows nobody: that is no error.
        kept = {mode.name for mode in modes if not mode.size}
        known = [mode for mode in modes if mode.size]
        locate(known, {name: column for name, column in labels.items() if name not in kept})
    return find_levels(modes, labels)


def as_tensor(X: Any, y: Any = None) -> SparseTensor:
    """A tensor as it is, or one made of a table of labels ``X`` with values ``y``."""
    return X if isinstance(X, SparseTensor) else _tensor_from_table(X, y)


def admitted(
    tensor: SparseTensor, privacy: Privacy, duplicates: prepare.DuplicatePolicy
) -> tuple[SparseTensor, PrivacyUnit, Entropy]:
    """The tensor as a private fit may see it, with its unit and the source of its noise."""
    unit = parse_unit(privacy.unit, tensor.mode_names, privacy.max_entries)
    local = local_mode(privacy, unit, tensor.modes)
    if not unit.hides_presence:  # elsewhere entries at one cell are entries of their own
        tensor = prepare.merge_duplicates(tensor, duplicates)
    entropy = Entropy(privacy.seed)
    tensor = admit(tensor, unit, privacy.public, local, entropy)
    return tensor, unit, entropy


def _at_most(rank: int, sizes: Sequence[int]) -> list[int]:
    """A rank in every mode, as far as it has levels."""
    return [min(rank, size) if size else rank for size in sizes]


def _cast(tensor: SparseTensor, dtype: np.dtype[Any]) -> SparseTensor:
    return tensor if tensor.values.dtype == dtype else tensor.astype(dtype)


def _named_solver(solver: str | Solver[Any]) -> Solver[Any]:
    name = solver if isinstance(solver, str) else str(getattr(solver, "name", None))
    if name in COUPLED_SOLVERS and name not in SOLVERS:
        raise SettingError(
            f"{name!r} gives samples, not one model: use sfumato.Coupled, which takes a single tensor "
            'too, as fit({"data": tensor})'
        )
    if not isinstance(solver, str):
        check_solver("solver", solver)
        return plain(solver)
    if solver not in SOLVERS:
        raise SettingError(f"there is no solver {solver!r}; there are {', '.join(SOLVERS)}")
    made: Solver[Any] = SOLVERS[solver]()
    return made


def _solver_to_json(solver: Any) -> dict[str, Any]:
    return {"name": solver.name, **asdict(solver)}


def _solver_from_json(settings: dict[str, Any]) -> Any:
    rest = {key: value for key, value in settings.items() if key != "name"}
    return made_of(SOLVERS[settings["name"]], rest, "its solver")


def _tensor_from_table(X: Any, y: Any) -> SparseTensor:
    """A tensor whose modes are the columns of X."""
    if y is None:
        raise DataError("fit takes a SparseTensor (see sfumato.read), or a table of labels and values")
    if isinstance(X, np.ndarray):
        if X.ndim != 2:
            raise DataError(f"a table of labels has two dimensions, got {X.ndim}")
        table = table_of({f"mode{m + 1}": X[:, m] for m in range(X.shape[1])})
    else:
        table = read_table(X)
    names = table.column_names
    values = as_numbers("y", y)
    if values.shape != (table.num_rows,):
        raise DataError(f"{table.num_rows} rows need as many values y, got shape {values.shape}")
    return read(table.append_column("_value", [values]), names, "_value")
