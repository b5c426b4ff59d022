"""Settings chosen on the data, with the choice paid for: ``sf.PrivateSearch([...], privacy)``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from sfumato.checks import check_count, check_share, given
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError, not_fitted
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.intake import admitted, as_tensor, cast
from sfumato.estimators.learning import PrivateNetwork
from sfumato.estimators.of_losses import check_squared
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.sources import TensorSource
from sfumato.fit.admit import Protected
from sfumato.fit.choose import open_ledger
from sfumato.fit.completion import Completion
from sfumato.fit.loop import Progress
from sfumato.fit.network import Learning
from sfumato.fit.network_search import BestNetwork, search_networks
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.fit.search import BestOf, carry_out_search, guarantee_of, make_search
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import warn_of, without_warnings
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.units import Unit
from sfumato.report.progress import watching
from sfumato.surface import setting

_RUNS_EACH = 2  # expected runs of each candidate: one of them is left out with a chance of e^-2


class PrivateSearch(Parametrised):
    """The best of several estimators by a private error at held-out entries.

    A random number of runs is made, each fitting one of the estimators, chosen at random; of these the
    one with the least noisy error is kept. The budget of ``privacy`` pays for all of it: with Gaussian
    noise a run gets about 0.65 of epsilon for two candidates, 0.6 for three, 0.5 for five, 0.35 for
    ten. So it is worth its price where settings matter more than that; ``method="auto"`` and default
    settings cost nothing. Methods with pure noise (Laplace, randomised response) are dear to choose
    among, with a delta or without: 0.33, 0.25, 0.17, 0.09.

    The model that is kept was fitted to the entries that were not held out; rows that stay with their
    owners are solved from all entries. Progress and the time that a search takes show how many runs
    there were; like all messages of a fit they are for the holder of the data alone.

    Parameters
    ----------
    estimators : sequence
        The candidates, two or more. Their own ``privacy`` is None, or the search's with another
        ``method`` or ``noise``.
    privacy : Privacy
        Budget (epsilon, and delta unless pure), unit and what is public, for the whole search.
    repetitions : int or None
        About how many runs are made: the parameter of the Poisson law they are drawn from. By default
        two for each candidate. More are likelier to include the best candidate, and cost more.
    holdout : float
        Share of the entries that candidates are compared at.

    Attributes
    ----------
    best_estimator_
        The one chosen.
    best_index_
        Its number.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(labels=True, entries=2000)
    >>> privacy = sf.Privacy(3, 1e-6, unit="entry", local=None, public=public)
    >>> search = sf.PrivateSearch([sf.Biases(), sf.Biases(sweeps=0)], privacy)
    >>> found = search.fit(sf.synthetic.ratings_like(60, 40, 5, 2000))
    >>> found.best_index_ in (0, 1), found.guarantee_.epsilon <= 3
    (True, True)
    """

    def __init__(
        self,
        estimators: Sequence[Any],
        privacy: Privacy,
        *,
        repetitions: int | None = None,
        holdout: float = 0.1,
    ) -> None:
        self.estimators = estimators
        self.privacy = privacy
        self.repetitions = repetitions
        self.holdout = holdout

    # -- what will be done ------------------------------------------------------------------------

    def plan(
        self,
        modes: Sequence[Mode],
        *,
        bounds: tuple[float, float] | None = None,
        entries: int | None = None,
    ) -> PrivatePlan[BestOf]:
        """What ``fit`` will do to a tensor with these modes; needs no data.

        Parameters
        ----------
        modes : sequence of Mode
            Names and sizes.
        bounds : pair of float or None
            Public, of the values.
        entries : int or None
            How many there are.

        Returns
        -------
        PrivatePlan
            ``explain()`` says it in words.
        """
        budget = self._checked_budget()

        def plans_within(run: Budget) -> list[PrivatePlan[Completion]]:
            return [
                candidate._private_plan(
                    self._privacy_of_run(candidate, run), modes, bounds=bounds, entries=entries
                )
                for candidate in self.estimators
            ]

        search = make_search(BestOf, plans_within, budget, self.holdout, self._repetitions)
        warn_of(search.caveats)
        return search

    @property
    def _repetitions(self) -> int:
        given = self.repetitions
        return _RUNS_EACH * len(self.estimators) if given is None else int(given)

    def _privacy_of(self, estimator: Any) -> Privacy:
        own = estimator.privacy
        return self.privacy if own is None else replace(self.privacy, method=own.method, noise=own.noise)

    def _privacy_of_run(self, estimator: Any, budget: Budget) -> Privacy:
        """The same with one run's budget, which the search's own charge pays for."""
        epsilon, delta = budget.epsilon, budget.delta
        return replace(
            self._privacy_of(estimator), epsilon=epsilon, delta=delta, ledger=None, limit=None
        )

    def _checked_budget(self) -> Budget:
        if not isinstance(self.privacy, Privacy):
            raise SettingError("a search needs a privacy=Privacy(...): without one, use GridSearchCV")
        several = isinstance(self.estimators, list | tuple)
        kinds = (TensorEstimator, PrivateNetwork)
        if not several or not any(all(isinstance(e, kind) for e in self.estimators) for kind in kinds):
            raise SettingError(
                "the candidates are estimators of one kind: [sf.CP(rank=2), sf.CP(rank=8)], or networks"
            )
        if len(self.estimators) < 2:
            raise SettingError(f"choosing takes two candidates or more, got {len(self.estimators)}")
        check_count(**given(repetitions=self.repetitions))
        check_share(holdout=self.holdout)
        tensors = [each for each in self.estimators if isinstance(each, TensorEstimator)]
        check_squared("a search", *(getattr(each, "loss", "squared") for each in tensors))
        self.privacy.check_one_owner("a search")
        budget = self.privacy.budget
        if not isinstance(budget, Budget):
            raise SettingError("a search gives no zCDP: give epsilon and delta instead of rho")
        if self.privacy.analysis != "proven":
            raise SettingError(
                f"a paper's claims cannot be tuned by: use {setting('analysis', 'proven')}"
            )
        for candidate in self.estimators:
            if isinstance(candidate, PrivateNetwork):
                candidate._check()
            else:
                candidate._check_settings()
            if getattr(candidate, "engine", None) is not None:
                raise SettingError(f"a search fits in this process: leave {setting('engine')} out")
            if candidate.privacy is not None and candidate.privacy != self._privacy_of(candidate):
                raise SettingError(
                    "candidates have the search's budget, unit, seed and ledger, and may differ in "
                    f"method and noise alone: leave the privacy of {candidate!r} out"
                )
        if len({getattr(candidate, "duplicates", None) for candidate in self.estimators}) > 1:
            raise SettingError("candidates must treat duplicates alike, as they see the same entries")
        return budget

    # -- doing it ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Search, and keep the best.

        Parameters
        ----------
        X
            As of the candidates.
        y
            As of the candidates.
        groups
            Of networks, an owner for each example.

        Returns
        -------
        Self
            This estimator, fitted.
        """
        begin = time.perf_counter()
        budget = self._checked_budget()
        if all(isinstance(candidate, PrivateNetwork) for candidate in self.estimators):
            self._fit_networks(budget, X, y, groups)
            self.best_estimator_.fit_seconds_ = time.perf_counter() - begin
            return self
        tensor, first = as_tensor(X, y), self.estimators[0]
        # Whose rows are local may hang on the method; that all candidates agree is checked in the plan.
        privacy, entropy = self._privacy_of(first), self.privacy.entropy()
        protected = Protected.by(privacy, tensor.modes)
        tensor = admitted(tensor, protected, first.duplicates, entropy)
        plan = self.plan(tensor.modes, bounds=tensor.bounds, entries=tensor.n_entries)
        ledger, facts = open_ledger(privacy, protected.unit), plan.task.facts
        tensor = cast(tensor, facts.shape.dtype)
        with _of_each(self.estimators) as progress:
            found = carry_out_search(plan, tensor, first._threads, ledger, entropy, progress)
        best = self._copy(self.estimators[found.best])
        promised = guarantee_of(plan, found.best, ledger, entropy)
        best.adopt(found.fit, TensorSource(tensor), promised, facts.local)
        best.fit_seconds_ = time.perf_counter() - begin
        self.best_estimator_, self.best_index_, self._promised = best, found.best, promised
        return self

    def _fit_networks(self, budget: Budget, X: Any, y: Any, groups: Any) -> None:
        """The same with examples instead of entries."""
        copies = [self._copy(candidate) for candidate in self.estimators]
        taken = [network._take_in(X, y, groups) for network in copies]

        def plans_within(run: Budget) -> list[PrivatePlan[Learning]]:
            return [
                network._plan(each.features, self._privacy_of_run(network, run))
                for network, each in zip(copies, taken, strict=True)
            ]

        with without_warnings():
            plan = make_search(BestNetwork, plans_within, budget, self.holdout, self._repetitions)
        warn_of(plan.caveats)
        unit = plan.task.unit
        ledger, entropy = open_ledger(self.privacy, unit), self.privacy.entropy()
        with _of_each(copies) as progress:
            found = search_networks(
                plan,
                [each.features for each in taken],
                [each.examples(isinstance(unit, Unit)) for each in taken],
                ledger,
                entropy,
                progress,
            )
        promised = guarantee_of(plan, found.best, ledger, entropy)
        best = copies[found.best]
        best._adopt(taken[found.best], found.learnt, plan.task.plans[found.best].task, promised)
        self.best_estimator_, self.best_index_, self._promised = best, found.best, promised

    def _copy(self, candidate: Any) -> Any:
        """A candidate afresh, with the search's privacy."""
        settings = {**candidate.get_params(), "privacy": self._privacy_of(candidate)}
        copy: Any = type(candidate)(**settings)
        return copy

    # -- the best one -----------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "best_estimator_")

    best_estimator_: Any

    def _best(self) -> Any:
        if not hasattr(self, "best_estimator_"):
            raise not_fitted("search")
        return self.best_estimator_

    @property
    def guarantee_(self) -> Guarantee:
        """What the release of the best estimator promises."""
        self._best()
        return self._promised

    @property
    def rank_(self) -> int | tuple[int, ...]:
        """Rank of the best estimator's model; see :attr:`TensorEstimator.rank_`."""
        rank: int | tuple[int, ...] = self._best().rank_
        return rank

    @property
    def method_(self) -> str:
        """The best estimator's private method; see :attr:`TensorEstimator.method_`."""
        method: str = self._best().method_
        return method

    def predict(self, X: Any = None, *, unseen: str | None = None, **labels: Any) -> Any:
        """Predictions of the best estimator; see :meth:`TensorEstimator.predict`.

        Parameters
        ----------
        X
            A tensor, or a table.
        unseen : str or None
            "error" or "bias".
        **labels
            By mode name, instead of ``X``.

        Returns
        -------
        float or array
            One number for each cell.
        """
        best = self._best()
        if isinstance(best, PrivateNetwork):
            return best.predict(X)  # type: ignore[attr-defined]
        return best.predict(X, unseen=unseen, **labels)

    def rmse(self, X: Any, y: Any = None) -> float:
        """Root mean squared error of the best estimator; no guarantee covers it.

        Parameters
        ----------
        X
            A tensor, or a table.
        y
            Values of a table's rows.

        Returns
        -------
        float
            In the values' units.
        """
        error: float = self._best().rmse(X, y)
        return error

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the RMSE; of networks their own score.

        Parameters
        ----------
        X
            As of :meth:`rmse`; of networks the examples.
        y
            Values of a table's rows, or of examples.

        Returns
        -------
        float
            Higher is better.
        """
        best = self._best()
        return best.score(X, y) if isinstance(best, PrivateNetwork) else -self.rmse(X, y)  # type: ignore[attr-defined]

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the best estimator; see :meth:`TensorEstimator.save`.

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
        path: Path = self._best().save(folder, force=force)
        return path

    def report(self, path: str | PathLike[str], **options: Any) -> Path:
        """Write a page about the best estimator; see :meth:`TensorEstimator.report`.

        Parameters
        ----------
        path : path
            Where to.
        **options
            Those of the best estimator's.

        Returns
        -------
        Path
            The file.
        """
        written: Path = self._best().report(path, **options)
        return written

    def release(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write what the guarantee covers; see :meth:`TensorEstimator.release`.

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
        path: Path = self._best().release(folder, force=force)
        return path


@contextmanager
def _of_each(candidates: Sequence[Any]) -> Iterator[list[Progress | None]]:
    """What each candidate tells of progress; those that want a bar share one."""
    wanted = any(candidate.progress is True for candidate in candidates)
    with watching(wanted, "searching") as bar:
        yield [
            bar if candidate.progress is True else candidate.progress or None for candidate in candidates
        ]
