"""What a fitted model answers: predictions by label, with what lies about them, and lists."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import check_choice, check_count
from sfumato.data.cells import as_columns
from sfumato.data.io.read import read_entries
from sfumato.data.prepare import DuplicatePolicy
from sfumato.data.shards import Shards
from sfumato.data.tensor import Mode, SparseTensor, find_mode
from sfumato.errors import DataError, SettingError, not_fitted
from sfumato.estimators.lists import Lists, as_table, chosen, empty_places, lists_of, scored, seen_cells
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.predicting import (
    UNSEEN,
    KnownModes,
    check_told,
    coordinates_of,
    interval_at,
    normal_interval,
    owners_mode,
    read_own,
    values_at,
    values_with_own,
)
from sfumato.fit.own import OwnRows, derived_prior, solve_for_owners
from sfumato.kernels.numba.threads import available_threads
from sfumato.metrics import rmse
from sfumato.models.doubts import Errors, Interval, check_level
from sfumato.models.losses import LOSSES, Loss
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import Certainty, OwnPrior
from sfumato.models.told import Told
from sfumato.privacy.facts import assumed_scatter
from sfumato.privacy.guarantee import Guarantee
from sfumato.solvers.least_squares.seen import SeenALS
from sfumato.solvers.protocol import Solver
from sfumato.surface import setting

if TYPE_CHECKING:
    import pyarrow as pa

_CERTAIN = Certainty(0.0, 0.0)  # of fits without privacy
_SQUARED_ALONE = "intervals are for numbers that are fitted as they are"


class Answering(Parametrised):
    """What estimators of completion can be asked once they are fitted."""

    loss: str = "squared"
    duplicates: DuplicatePolicy
    unseen: str
    threads: int | None
    device: str = "cpu"
    model_: Multilinear
    modes_: tuple[Mode, ...]
    bounds_: tuple[float, float] | None
    guarantee_: Guarantee | None
    local_: int | None
    own_prior_: OwnPrior | None
    scatter_: float | None
    seen_: Any = None  # cells that were fitted, of a loss that leaves them out of lists; in memory alone
    errors_: Errors | None = None  # what intervals of a private fit are made of
    own_entries_: Any = None  # how many each owner has, where intervals need it
    told_: Told | None = None  # what an update of a private fit goes on from

    @abstractmethod
    def _solver(self) -> Solver[Any, Any]:
        """What fits without privacy."""

    @property
    def _loss(self) -> Loss:
        """What every fit and plan asks for first: intervals that could not be told are refused here,
        before there is a charge for them.
        """
        if self.loss != "squared" and getattr(getattr(self, "privacy", None), "intervals", False):
            raise SettingError(
                f"{_SQUARED_ALONE}: leave {setting('intervals')} out, or {setting('loss', self.loss)}"
            )
        return LOSSES[self.loss]

    @property
    def _excess(self) -> float:
        """How much more values vary than the loss expects, as far as the fit has learnt it."""
        prior, mean = self.own_prior_, self.model_.mean
        if prior is None:
            return 0.0 if self.scatter_ is None else self._loss.excess(mean, self.scatter_, _CERTAIN)
        return (
            0.0 if prior.certainty is None else self._loss.excess(mean, prior.scatter, prior.certainty)
        )

    @property
    def _threads(self) -> int:
        return int(self.threads or available_threads())

    @property
    def _computed(self) -> tuple[int, str]:
        """On how many threads, and on which device."""
        return self._threads, self.device

    def _fitted(self) -> Multilinear:
        if not hasattr(self, "model_"):
            raise not_fitted(type(self).__name__)
        return self.model_

    @property
    def n_features_in_(self) -> int:
        """How many columns of labels a table has: the number of modes."""
        return self._fitted().order

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The names of the modes."""
        self._fitted()
        return np.array([mode.name for mode in self.modes_], object)

    def predict(
        self,
        X: Any = None,
        *,
        own: Any = None,
        own_mode: str | None = None,
        own_value: str | None = None,
        unseen: str | None = None,
        interval: float | None = None,
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

        With ``interval=0.9`` five arrays: ``prediction``, ``low`` and ``high``, between which a value
        lies with that probability, and the standard deviations of what makes them wide, ``noise`` of
        privacy and ``scatter`` of the data. A private fit needs ``Privacy(intervals=True)``.

        Parameters
        ----------
        X
            A tensor, or a table.
        own
            Entries of who is predicted for.
        own_mode, own_value : str or None
            Whose rows are solved, and where values are.
        unseen : str or None
            "error" or "bias"; by default the estimator's.
        interval : float or None
            A probability below 1.
        **labels
            By mode name, instead of ``X``.

        Returns
        -------
        float, array or Interval
            One number for each cell.
        """
        self._fitted()
        if interval is not None:
            check_level(interval)
            self._check_errors()
        if (X is None) == (not labels):
            raise SettingError("give either a tensor or table, or labels by mode name")
        single = bool(labels) and all(np.ndim(label) == 0 for label in labels.values())
        cells = X if X is not None else as_columns(labels)
        rows: OwnRows | None = None
        fallback = self._fallback(unseen)
        if own is not None:
            rows = self._own_rows(own, own_mode, own_value, fallback)
            values = values_with_own(self.model_, self.modes_, rows, cells, fallback, *self._computed)
        elif own_mode is not None or own_value is not None:
            raise SettingError(
                f"{setting('own_mode')} and {setting('own_value')} say how own entries are read: give "
                f"{setting('own')} as well"
            )
        else:
            coordinates = coordinates_of(cells, self.modes_, fallback)
            values = values_at(self.model_, coordinates, *self._computed)
        values = self._loss.predicted(values, self.bounds_, self._excess)
        if interval is None:
            return float(values[0]) if single else values
        found = self._interval(cells, rows, fallback, values, float(interval))
        return Interval(*(float(part[0]) for part in found)) if single else found

    def _check_errors(self) -> None:
        """Refuse an interval that nothing was released or kept for."""
        if self.loss != "squared":
            raise SettingError(f"{_SQUARED_ALONE}: this is a fit with {setting('loss', self.loss)}")
        if self.guarantee_ is not None:
            check_told(self.errors_)
        if self.guarantee_ is None and self.scatter_ is None:
            raise SettingError("an earlier version saved this model: fit again to have intervals")

    def _interval(
        self, cells: Any, rows: OwnRows | None, fallback: str, values: Any, level: float
    ) -> Interval:
        errors = self.errors_
        if errors is None:
            return normal_interval(self.bounds_, values, self.scatter_ or 0.0, level)
        known = KnownModes(self.modes_, self.bounds_, self.local_, self.own_entries_)
        return interval_at(errors, known, cells, rows, fallback, values, level)

    def _fallback(self, unseen: str | None) -> str:
        fallback = self.unseen if unseen is None else unseen
        check_choice(UNSEEN, unseen=fallback)
        return fallback

    def _own_rows(self, own: Any, name: str | None, value: str | None, fallback: str) -> OwnRows:
        """Rows of those who bring entries, solved from these and the model."""
        mode = owners_mode(self.modes_, self.local_, name)
        merge = self.duplicates if self.guarantee_ is None else None
        entries = read_own(own, value, self.modes_, self.bounds_, merge, self._loss)
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
        solver = self._solver()
        if isinstance(solver, SeenALS):
            return solver.own_prior(self.model_, mode)
        scatter = self.scatter_
        if self.guarantee_ is not None and self.bounds_ is not None:
            scatter = assumed_scatter(self.bounds_)
        if scatter is None:
            raise SettingError("an earlier version saved this model: fit again to use own entries")
        return derived_prior(self.model_, mode, scatter)

    def rmse(self, X: Any, y: Any = None) -> float:
        """Root mean squared error at some entries.

        Parameters
        ----------
        X
            A tensor, :class:`Shards`, or a table.
        y
            Values of a table's rows.

        Returns
        -------
        float
            In the values' units.
        """
        if y is None and isinstance(X, Shards):  # part by part, as they may be larger than memory
            squares = sum(part.n_entries * self.rmse(part) ** 2 for part in X if part.n_entries)
            return float(np.sqrt(squares / X.n_entries))
        if y is None and not isinstance(X, SparseTensor):
            raise DataError("give a SparseTensor, or Shards, or a table of labels and the values y")
        actual = X.values if isinstance(X, SparseTensor) else y
        return rmse(actual, self.predict(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the RMSE: higher is better, as scikit-learn's search expects.

        Parameters
        ----------
        X
            As of :meth:`rmse`.
        y
            As of :meth:`rmse`.

        Returns
        -------
        float
            Zero at most.
        """
        return -self.rmse(X, y)

    def error(self, X: Any, y: Any = None) -> float:
        """The loss's own metric at some entries: the RMSE, log-loss or Poisson deviance.

        Parameters
        ----------
        X
            As of :meth:`rmse`.
        y
            As of :meth:`rmse`.

        Returns
        -------
        float
            Lower is better.
        """
        actual = X.values if y is None and isinstance(X, SparseTensor) else y
        if actual is None:
            raise DataError("give a SparseTensor, or a table of labels and the values y")
        return self._loss.error(np.asarray(actual, np.float64), self.predict(X))

    def top(self, mode: str, k: int = 10, *, seen: Any = None, **labels: Any) -> list[tuple[Any, float]]:
        """The k levels of a mode with the highest predictions, labels of the other modes given.

        Of a fit with ``loss="seen"`` those are left out that have been seen with these labels: in the
        entries that it was fitted to, or in ``seen``, a tensor or a table with a column for each mode.

        Parameters
        ----------
        mode : str
            Whose levels are ranked.
        k : int
            How many come back.
        seen
            What to leave out.
        **labels
            One for each other mode.

        Returns
        -------
        list of pairs
            Labels with predictions, the highest first.
        """
        model, m = self._fitted(), find_mode(self.modes_, mode)
        check_count(k=k)
        if any(np.ndim(label) for label in labels.values()):
            raise SettingError("top takes one label per mode")
        if not self.modes_[m].size:
            raise SettingError(f"rows of {mode} stay with their owners: this release has none of them")
        cell = as_columns({**labels, mode: self.modes_[m].label(0)})
        cells = np.repeat(coordinates_of(cell, self.modes_, "error"), self.modes_[m].size, axis=1)
        cells[m] = np.arange(self.modes_[m].size)
        scores = values_at(model, cells, *self._computed)
        values = self._loss.predicted(scores, self.bounds_, self._excess)
        known = seen_cells(seen, self.modes_, self.seen_, needed=self.loss == "seen")
        same = np.all(np.delete(known, m, 0) == np.delete(cells[:, :1], m, 0), axis=0)
        ranks = np.argsort(-scores, kind="stable")  # before bounds, where many are alike
        left_out = [known[m, same], np.flatnonzero(empty_places(self.modes_[m]))]
        best = ranks[~np.isin(ranks, np.concatenate(left_out))][:k]
        return [(self.modes_[m].label(int(level)), float(values[level])) for level in best]

    def lists(self, k: int = 10, *, seen: Any = None) -> Lists:
        """The k levels with the highest predictions for everybody, without what they have seen.

        They are lists for every level of the first of two modes, or of the one whose rows stay with
        their owners, of levels of the other.

        Parameters
        ----------
        k : int
            Length of a list.
        seen
            As of :meth:`top`; of another loss than "seen" it may be left out.

        Returns
        -------
        Lists
            Labels and scores.
        """
        model, modes = self._fitted(), self.modes_
        if len(modes) != 2:
            raise SettingError(f"lists are of two modes, and this model has {len(modes)}: use top_all")
        choice = chosen(modes, modes[1 - (self.local_ or 0)].name, None, {}, self.local_)
        known = seen_cells(seen, modes, self.seen_, needed=self.loss == "seen")
        return lists_of(model, modes, choice, known, k, *self._computed)

    def top_all(
        self,
        mode: str,
        k: int = 10,
        *,
        of: str | None = None,
        seen: Any = None,
        own: Any = None,
        own_value: str | None = None,
        **labels: Any,
    ) -> pa.Table:
        """For every level of another mode the k levels of ``mode`` with the highest predictions.

        Parameters
        ----------
        mode : str
            Whose levels are ranked.
        k : int
            How many come back for each level of the other mode.
        of : str or None
            The other mode, where labels of several modes are left out.
        seen
            As of :meth:`top`; of another loss than "seen" it may be left out.
        own, own_value
            As of :meth:`predict`: lists are for those who bring entries, without the cells of these.
        **labels
            One for each mode that is neither.

        Returns
        -------
        pyarrow.Table
            A row for each: the other mode's label, ``rank`` from 1 on, the label, and the prediction.
        """
        model, modes, cells = self._fitted(), self.modes_, self.seen_
        if own is not None:
            brought = read_entries(own, modes, own_value)
            rows = self._own_rows(brought, of, None, "bias")
            model, modes, cells = rows.model, rows.modes, None
            of, seen = modes[rows.mode].name, brought if seen is None else seen
        choice = chosen(modes, mode, of, labels, self.local_)
        known = seen_cells(seen, modes, cells, needed=self.loss == "seen")
        found = lists_of(model, modes, choice, known, k, *self._computed)
        return as_table(
            found,
            modes,
            lambda cells: self._loss.predicted(
                values_at(model, cells, *self._computed), self.bounds_, self._excess
            ),
        )

    def list_scores(self, X: Any, k: int = 10, *, seen: Any = None) -> dict[str, float]:
        """Mean ``recall`` and ``ndcg`` of :meth:`lists` at entries that were held out.

        Parameters
        ----------
        X
            These entries; who has none does not count.
        k, seen
            As of :meth:`lists`.

        Returns
        -------
        dict
            Two numbers between 0 and 1.
        """
        wanted = seen_cells(X, self.modes_, None, needed=True)
        return scored(self.lists(k, seen=seen), wanted)
