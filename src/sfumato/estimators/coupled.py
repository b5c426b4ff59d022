"""``sf.Coupled``: several tensors that share modes, factorised together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.checks import (
    as_precision,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_progress,
    check_seed,
    check_share,
    check_threads,
    given,
    plain,
    shown,
)
from sfumato.data.cells import as_columns, labels_in
from sfumato.data.relations import Relation, Relations
from sfumato.data.tensor import Mode, SparseTensor, find_mode, locate
from sfumato.engines.local import Local
from sfumato.errors import DataError, ReleaseError, SettingError, not_fitted
from sfumato.estimators.coupled_private import (
    PrivateCoupledFit,
    PrivatePrediction,
    PrivateRelation,
    fit_privately,
    plan_privately,
)
from sfumato.estimators.lists import empty_places
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.predicting import UNSEEN
from sfumato.estimators.reporting import Reporting, part_of, rounds_of, shared_parts, sizes_told
from sfumato.fit.completion import carry_out
from sfumato.fit.loop import Watch
from sfumato.fit.plan import Plan, PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.kernels.numba.threads import available_threads
from sfumato.metrics import auc, poisson_log_likelihood, precision_at, rmse
from sfumato.models.clipped_counts import clipped_mean
from sfumato.models.coupled import CoupledModel
from sfumato.models.doubts import Interval
from sfumato.models.several import Several
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.page.contents import Held, Part, Shown
from sfumato.report.records import Result
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.noisy_counts import measured_bounds
from sfumato.solvers.coupled.shape import CoupledShape, CoupledSolver
from sfumato.solvers.protocol import Info, Run
from sfumato.solvers.registry import find, names, solver_class
from sfumato.store import (
    StoredCoupled,
    StoredModel,
    StoredSeveral,
    coupled_release_files,
    load_coupled,
    load_private_coupled,
    save_coupled,
    save_coupled_release,
    save_private_coupled,
    several_as_released,
)
from sfumato.store.reading import damage
from sfumato.surface import setting
from sfumato.typed import finite_number, made_of
from sfumato.types import Array

_USUAL_RANK = 2  # of an open fit, where none is given
_SAVED = ("rank", "starts", "seed")  # settings that are kept with a model


class RelationShape(NamedTuple):
    """What a fitted model knows of a relation.

    ``evidence`` has for each of its modes the number of observed cells at every level; ``bounds`` is
    what its counts were clipped to before they passed a noisy channel.
    """

    name: str
    modes: tuple[int, ...]
    evidence: tuple[Array, ...]
    bounds: tuple[float, float] | None = None


class Coupled(Parametrised, Reporting):
    """Factors of several tensors, shared where modes have the same name.

    Parameters
    ----------
    rank : int or None
        Number of components, the same in every mode; None for 2, and in a private fit for what the
        plan chooses.
    solver
        "multiplicative" (non-negative factors by multiplicative updates), "variational" (Poisson
        data with Gamma priors, the posterior in closed form), "gibbs" (samples from the posterior of
        counts, also of noisy ones), "langevin" (samples from the posterior, of any numbers), or a
        solver record with settings of your own.
    starts : int
        Fits from different random starts, of which the best is kept.
    seed : int
        Of the random starts.
    dtype : dtype
        float64 or float32.
    threads : int or None
        None for all cores.
    progress : callable or None
        Called with what is done after every step; True for a bar, on a terminal or in a notebook.
    privacy : Privacy or None
        A :class:`Privacy`: budget, unit and method of a private fit; None fits without privacy. Its
        method fits each relation beside the others ("auto"), or is "langevin"; the solver plays no
        part. What is public of each relation is said in ``Public(relations=...)``. Name first what
        you most want to predict: it is fitted last, and takes in what all others say.

    Attributes
    ----------
    model_
        The :class:`~sfumato.models.coupled.CoupledModel`; of a private fit a
        :class:`~sfumato.models.several.Several`, with one model for each protected relation.
    posterior_
        What a Bayesian solver knows beyond it; None else.
    history_
        What every sweep reported.
    guarantee_
        What a private fit promises; None of another.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = {"ratings": ("user", "item"), "features": ("item", "feature")}
    >>> made = sf.synthetic.coupled(
    ...     modes, {"user": 30, "item": 20, "feature": 9}, 1, missing=0.3
    ... )
    >>> tables = {
    ...     name: each.tensor.with_values(each.tensor.values**2)
    ...     for name, each in made.items()
    ... }
    >>> model = sf.Coupled(rank=1).fit(tables)
    >>> model.factor("item").shape
    (20, 1)
    >>> value, reliance = model.predict("ratings", user=3, item=7, reliance=True)
    >>> 0 <= reliance <= 1  # how far it rests on the features
    True
    """

    def __init__(
        self,
        rank: int | None = None,
        solver: Any = "multiplicative",
        *,
        starts: int = 1,
        seed: int = 0,
        dtype: DTypeLike = np.float64,
        threads: int | None = None,
        progress: Watch = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.rank = rank
        self.solver = solver
        self.starts = starts
        self.seed = seed
        self.dtype = dtype
        self.threads = threads
        self.progress = progress
        self.privacy = privacy

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    # -- fitting ----------------------------------------------------------------------------------

    def plan(self, relations: Any) -> Plan[CoupledShape] | PrivatePlan[Any]:
        """What ``fit`` will do to relations of this shape.

        A private plan is made from public numbers, public tables, and the shapes of the others.

        Parameters
        ----------
        relations
            As of :meth:`fit`; of a private fit shapes will do.

        Returns
        -------
        Plan or PrivatePlan
            ``explain()`` says it in words.
        """
        self._check_settings()
        if self.privacy is not None:
            plan = plan_privately(relations, self.privacy, self._rank, self._run)
            warn_of(plan.caveats)
            return plan
        return self._open_plan(relations)

    def _open_plan(self, relations: Relations) -> Plan[CoupledShape]:
        check_kind(Relations, "a sfumato.Relations", relations=relations)
        rank = _USUAL_RANK if self._rank is None else self._rank
        shape = CoupledShape.of(relations, rank, as_precision(self.dtype))
        return Plan(shape, self._solver(), self._run, int(self.starts))

    def _check_settings(self) -> None:
        check_count(starts=self.starts, **given(rank=self.rank))
        check_threads(self.threads)
        check_progress(self.progress)
        check_seed(seed=self.seed)
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)
        self._solver()
        if self.privacy is not None:
            if self.starts != 1:
                raise SettingError("a private fit has one start: to choose among several looks at data")
            if not isinstance(self.solver, str) or self.solver != "multiplicative":
                raise SettingError("a private fit is made by its privacy's method: leave the solver out")
            if as_precision(self.dtype) != np.float64:
                raise SettingError("a private fit computes in float64: leave the dtype out")

    @property
    def _rank(self) -> int | None:
        return None if self.rank is None else int(self.rank)

    @property
    def _run(self) -> Run:
        return Run(int(self.seed), int(self.threads or available_threads()))

    def _solver(self) -> CoupledSolver:
        given = self.solver if isinstance(self.solver, str) else getattr(self.solver, "name", "")
        row = find(given, "coupled")
        if row is None or isinstance(self.solver, type):
            known = ", ".join(names("coupled"))
            raise SettingError(
                f"there is no solver {shown(self.solver)} of coupled models; there are {known}, or a "
                "record such as sfumato.Multiplicative(sweeps=200)"
            )
        made: CoupledSolver = (
            solver_class(given, "coupled")() if isinstance(self.solver, str) else plain(self.solver)
        )
        return made

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: ARG002
        """Fit to :class:`Relations`, or to a mapping from names to tensors.

        Parameters
        ----------
        X
            The relations.
        y : None
            Not used: scikit-learn hands it on.

        Returns
        -------
        Self
            This estimator, fitted.
        """
        begin = time.perf_counter()
        self._check_settings()
        if self.privacy is None:
            self._fit_openly(X if isinstance(X, Relations) else Relations(X))
        else:
            with self._watched() as progress:
                fit = fit_privately(X, self.privacy, self._rank, self._run, progress)
            self._adopt(fit)
        self.fit_seconds_ = time.perf_counter() - begin
        return self

    def _adopt(self, fit: PrivateCoupledFit) -> None:
        """Take over what a private fit has made."""
        self.model_: CoupledModel | Several = fit.model
        self.private_relations_ = fit.relations
        self.guarantee_: Guarantee | None = fit.guarantee
        self.posterior_, self.history_ = fit.posterior, fit.history
        modes = {mode.name: mode for known in fit.relations.values() for mode in known.modes}
        self.modes_ = tuple(modes.values())
        self.relations_ = {
            name: RelationShape(name, tuple(list(modes).index(m.name) for m in known.modes), ())
            for name, known in fit.relations.items()
        }

    def _fit_openly(self, relations: Relations) -> None:
        plan, solver = self._open_plan(relations), self._solver()
        for relation in relations.values():
            solver.check_relation(relation)
        site = Local(CoupledSite(relations, plan.run.threads, np.dtype(plan.shape.dtype)))
        with self._watched() as progress:
            result = carry_out(plan, site, progress)
        self.model_ = result.model
        self.guarantee_ = None
        self.posterior_, self.history_ = result.posterior, result.history
        self.modes_ = relations.modes
        self.relations_ = {relation.name: _known(relation) for relation in relations.values()}

    # -- predicting -------------------------------------------------------------------------------

    def predict(
        self,
        relation: str,
        X: Any = None,
        *,
        own: Any = None,
        own_value: str | Mapping[str, str] | None = None,
        unseen: str = "error",
        reliance: bool = False,
        interval: float | None = None,
        **labels: Any,
    ) -> Any:
        """Predicted values of cells of a relation.

        ``X`` is a tensor, a table with a column of labels per mode, or nothing where labels are given by
        mode name: ``predict("visits", user=3, location=8, activity=1)``.

        ``own`` holds entries of somebody who need not have been in training, for a private fit: a table
        (or file, or tensor) of this relation, or tables by the names of relations. Rows that stay with
        their owners are solved from these entries and the release, used in this prediction and
        forgotten: from entries here, and from those in relations that tell about this one. Each table
        has a column of labels per mode and one of values, which ``own_value`` names where there are
        more, of all tables or by the names of relations. Values are clipped to the bounds, and every
        entry counts. What public tables say of those people is not used.

        A label that was not in training is an error; of a private fit, with ``unseen="bias"``, that row
        falls back to mean and biases of what is known, and own entries with such a label are left out.

        With ``reliance`` a pair: the values, and for each how much of what is known about its levels
        comes from other relations, from 0 to 1. At 1 the relation itself says nothing about one of the
        levels (a cold start), and the prediction rests on side information only; NaN where no relation
        does, and the prediction is the average of the mode (after a Bayesian fit the prior).

        With ``interval``, such as 0.9, a triple after a Bayesian fit: the values, and two bounds between
        which a cell's value lies with that probability. Values are posterior means. Of a private fit
        with ``Privacy(intervals=True)`` also the standard deviations of what makes them wide, as of
        :meth:`CP.predict`: ``noise`` of privacy and ``scatter`` of the data.

        Of a relation whose counts were clipped before they passed a noisy channel, values are those of
        what was measured, E[clip(X)]; ``model_`` and ``posterior_`` know the rates themselves.

        Parameters
        ----------
        relation : str
            Its name.
        X
            A tensor, or a table.
        own
            Entries of who is predicted for.
        own_value : str, mapping or None
            Where their values are.
        unseen : str
            "error" or "bias".
        reliance : bool
            Whether to tell how much comes from other relations.
        interval : float or None
            A probability below 1.
        **labels
            By mode name, instead of ``X``.

        Returns
        -------
        float, array or tuple
            One number for each cell; with ``reliance`` or ``interval`` several, as said above.
        """
        known, modes = self._relation(relation)
        if (X is None) == (not labels):
            raise SettingError("give either a tensor or table, or labels by mode name")
        single = bool(labels) and all(np.ndim(label) == 0 for label in labels.values())
        given = X if X is not None else as_columns(labels)
        part = list(self.relations_).index(relation)
        threads = self.threads or available_threads()
        check_flag(reliance=reliance)
        check_choice(UNSEEN, unseen=unseen)
        if isinstance(self.model_, Several):
            if reliance:
                raise SettingError(
                    "a private fit does not tell reliance, which would count entries: predict without"
                )
            by = PrivatePrediction(self.model_, self.private_relations_, threads, unseen)
            answer = by.answer(relation, given, own, own_value, interval)
            if isinstance(answer, Interval):
                return Interval(*(float(part[0]) for part in answer)) if single else answer
            return float(answer[0]) if single else answer
        if own is not None or own_value is not None or unseen != "error":
            raise SettingError(
                "own entries, and biases of labels that are not known, are for private fits: this model "
                f"has no use for {setting('own')}, {setting('own_value')} and {setting('unseen')}"
            )
        cells = self._locate(modes, given)
        if self.posterior_ is None:
            found = [clipped_mean(self.model_.predict(part, cells, threads=threads), known.bounds)]
        else:
            found = [self.posterior_.predict(part, cells, threads=threads, bounds=known.bounds)]
        if interval is not None:
            check_share(interval=interval)
            if self.posterior_ is None:
                raise SettingError(
                    "intervals come from a Bayesian solver: 'variational', 'gibbs' or 'langevin'"
                )
            ends = self.posterior_.interval(part, cells, interval, threads=threads)
            found += (clipped_mean(end, known.bounds) for end in ends)
        if reliance:
            found.append(self._reliance(known, cells))
        told = tuple(float(each[0]) for each in found) if single else tuple(found)
        return told[0] if len(told) == 1 else told

    def _relation(self, name: str) -> tuple[RelationShape, list[Mode]]:
        if not hasattr(self, "model_"):
            raise not_fitted("Coupled model")
        if not isinstance(name, str) or name not in self.relations_:
            raise SettingError(
                f"there is no relation {shown(name)}; there are {', '.join(self.relations_)}"
            )
        known = self.relations_[name]
        return known, [self.modes_[d] for d in known.modes]

    def _locate(self, modes: Sequence[Mode], X: Any) -> NDArray[np.int32]:
        if isinstance(X, SparseTensor) and X.modes == tuple(modes):
            return X.coordinates
        advice = (
            "no relation had it in training. Leave such cells out, or fit with a relation that knows it"
        )
        return locate(modes, labels_in(X, modes), advice)

    def _reliance(self, known: RelationShape, cells: NDArray[np.int32]) -> Array:
        """The largest share, over the modes of a cell, of other relations' cells at its level."""
        shares = []
        for d, own, levels in zip(known.modes, known.evidence, cells, strict=True):
            total = sum(
                relation.evidence[relation.modes.index(d)]
                for relation in self.relations_.values()
                if d in relation.modes
            )
            with np.errstate(invalid="ignore"):
                shares.append((1 - own / total)[levels])
        largest: Array = np.max(shares, axis=0)  # NaN where one is
        return largest

    def factor(self, mode: str, relation: str | None = None) -> Array:
        """The factor of a mode, a row for every level.

        Of a private fit that of a ``relation``: each has its own, made from what all share.

        Parameters
        ----------
        mode : str
            Its name.
        relation : str or None
            Of a private fit the relation whose factor it is.

        Returns
        -------
        array
            Levels x components.
        """
        if not hasattr(self, "model_"):
            raise not_fitted("Coupled model")
        if not isinstance(self.model_, Several):
            return self.model_.factor(find_mode(self.modes_, mode))
        if relation is None:
            raise SettingError(
                f"of a private fit each relation has a factor of {mode}: name one of "
                f"{', '.join(self.relations_)}"
            )
        _, modes = self._relation(relation)
        part = list(self.relations_).index(relation)
        return self.model_.models[part].factors[find_mode(modes, mode)]

    # -- judging ----------------------------------------------------------------------------------

    def rmse(self, relation: str, X: Any, y: Any = None) -> float:
        """Root mean squared error at a tensor's entries, or a table's rows with values ``y``.

        Parameters
        ----------
        relation : str
            Its name.
        X
            A tensor, or a table.
        y
            Values of a table's rows.

        Returns
        -------
        float
            In the values' units.
        """
        return -self.score(relation, X, y)

    def score(self, relation: str, X: Any, y: Any = None, *, metric: str = "rmse") -> float:
        """How good predictions are, higher is better: minus the RMSE, or another ``metric``.

        The others are "auc" and "precision@10" (or another number) for links, and "log_likelihood" for
        counts; see :mod:`sfumato.metrics`.

        Parameters
        ----------
        relation : str
            Its name.
        X
            A tensor, or a table.
        y
            Values of a table's rows.
        metric : str
            What is measured.

        Returns
        -------
        float
            Higher is better.
        """
        if y is None and not isinstance(X, SparseTensor):
            raise DataError("give a SparseTensor, or a table of labels and the values y")
        actual = X.values if isinstance(X, SparseTensor) else y
        predicted = self.predict(relation, X)
        if metric == "rmse":
            return -rmse(actual, predicted)
        if metric == "auc":
            return auc(actual, predicted)
        if metric == "log_likelihood":
            return poisson_log_likelihood(actual, predicted)
        name, _, k = str(metric).partition("@")
        if name == "precision" and k.isdecimal():
            return precision_at(int(k), actual, predicted)
        raise SettingError(
            f"metric is 'rmse', 'auc', 'log_likelihood' or 'precision@10', got {metric!r}"
        )

    # -- showing ----------------------------------------------------------------------------------

    def _shown(self) -> Shown:
        title = f"{len(self.relations_)} tables that share modes"
        facts = (("tables", ", ".join(self.relations_)), ("modes", sizes_told(self.modes_)))
        if not isinstance(self.model_, Several):
            rank = ("rank", str(self.model_.rank))
            return Shown(title, (*facts, rank), None, shared_parts(self.model_, self.modes_))
        stored = several_as_released(self._stored(force=True)).parts
        owners = sorted(
            {part.modes[part.local].name for part in stored.values() if part.local is not None}
        )
        kept = tuple(("stays with owners", f"rows of {name}") for name in owners)
        parts = tuple(part_of(part, name) for name, part in stored.items())
        return Shown(title, (facts[0], *kept), self.guarantee_, parts)

    def _held(self, held_out: Any) -> Held:
        """``held_out`` are tensors of entries that were not fitted, by relation."""
        found = tuple(
            Result(f"{name}, this model", self.rmse(name, entries), 0.0)
            for name, entries in (held_out or {}).items()
        )
        owners, facts = dict[str, Part](), []
        if isinstance(self.model_, Several):
            for name, part in self._stored(force=True).parts.items():
                if part.local is not None and (mode := part.modes[part.local]).size:
                    owners[name] = replace(part_of(part, name), drawn=mode.name)
                    there = mode.size - int(empty_places(mode).sum())
                    facts.append((f"{mode.name} of {name}, with rows of their own", f"{there:,}"))
        history = rounds_of(self.history_)
        return Held(results=found, history=history, owners=tuple(owners.values()), facts=tuple(facts))

    # -- keeping ----------------------------------------------------------------------------------

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the fitted model to a folder; see :func:`sfumato.load`.

        Of a private fit that is its release in the folder's ``release``, and in ``owner`` the rows that
        stay with their owners; ``force`` is that of :meth:`release`.

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
        if not hasattr(self, "model_"):
            raise not_fitted("Coupled model")
        if isinstance(self.model_, Several):
            return save_private_coupled(self._stored(force), folder)
        solver: Any = self._solver()
        stored = StoredCoupled(
            self.model_,
            self.modes_,
            {name: known.evidence for name, known in self.relations_.items()},
            {name: known.bounds for name, known in self.relations_.items() if known.bounds is not None},
            {name: getattr(self, name) for name in _SAVED},
            {
                "solver": {"name": solver.name, **asdict(solver)},
                "fit_seconds": self.fit_seconds_,
                "history": [asdict(info) for info in self.history_],
            },
            self.posterior_,
        )
        return save_coupled(stored, folder)

    def release(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write what the guarantee covers, and nothing else.

        A model without a guarantee is refused; one whose guarantee is only claimed, or whose noise came
        from a seed, unless ``force`` says that this is meant.

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
        """
        if not hasattr(self, "model_"):
            raise not_fitted("Coupled model")
        return save_coupled_release(self._stored(force), folder)

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
        return coupled_release_files(self._stored(force))

    def _stored(self, force: bool) -> StoredSeveral:
        if not isinstance(self.model_, Several) or self.guarantee_ is None:
            raise ReleaseError("this model is not private: fit it with privacy=... to release it")
        self.guarantee_.check_releasable(force)
        settings = {"rank": self.rank, "seed": self.seed}
        parts = {
            name: StoredModel(
                "relation",
                model,
                known.modes,
                known.bounds,
                {},
                local=known.local,
                own_prior=prior,
                own_means=self.model_.means_of(part),
                guarantee=self.guarantee_,
                errors=self.model_.errors_of(part),
                own_entries=known.own_entries,
            )
            for part, ((name, known), model, prior) in enumerate(
                zip(
                    self.private_relations_.items(),
                    self.model_.models,
                    self.model_.own_priors,
                    strict=True,
                )
            )
        }
        return StoredSeveral(parts, settings, self.guarantee_)

    @classmethod
    def load_private(cls, folder: str | PathLike[str]) -> Coupled:
        """What :meth:`release`, or :meth:`save` of a private fit, wrote.

        Parameters
        ----------
        folder : path
            That was saved or released.

        Returns
        -------
        Coupled
            What the folder says of the model.
        """
        stored = load_private_coupled(folder)
        with damage(Path(folder)):
            method = made_of(cls, stored.settings, "its settings")
        parts = stored.parts
        several = Several(
            tuple(each.model for each in parts.values()),
            tuple(each.own_prior for each in parts.values()),
            tuple(each.own_means for each in parts.values()),
            tuple(each.errors for each in parts.values()),
        )
        known = {
            name: PrivateRelation(name, each.modes, each.bounds, each.local, each.own_entries)
            for name, each in parts.items()
        }
        method._adopt(PrivateCoupledFit(several, known, stored.guarantee, ()))
        method.fit_seconds_ = 0.0
        return method

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Coupled:
        """What :meth:`save` wrote.

        Parameters
        ----------
        folder : path
            That was saved.

        Returns
        -------
        Coupled
            As it was.
        """
        stored = load_coupled(folder)
        with damage(Path(folder)):
            notes = dict(stored.notes)
            kept = dict(notes["solver"])
            settings = {name: stored.settings[name] for name in _SAVED}
            method = made_of(cls, settings, "its settings")
            method.solver = made_of(solver_class(kept.pop("name"), "coupled"), kept, "its solver")
            method.history_ = tuple(made_of(Info, info, "its history") for info in notes["history"])
            method.fit_seconds_ = finite_number(notes["fit_seconds"], "the time of the fit")
        method.model_, method.modes_ = stored.model, stored.modes
        method.posterior_, method.guarantee_ = stored.posterior, None
        method.relations_ = {
            part.name: RelationShape(
                part.name,
                part.modes[: part.order],
                stored.evidence[part.name],
                stored.bounds.get(part.name),
            )
            for part in stored.model.parts
        }
        return method


def _known(relation: Relation) -> RelationShape:
    evidence = tuple(relation.observed_counts(position) for position in range(len(relation.modes)))
    bounds = None if relation.privatised is None else measured_bounds(relation.privatised)
    return RelationShape(relation.name, relation.modes, evidence, bounds)
