"""Settings chosen on the data, with the choice paid for: ``sf.PrivateSearch([...], privacy)``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from sfumato.checks import check_count, check_share, given
from sfumato.data.tensor import Mode
from sfumato.errors import NotFittedError, SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.intake import admitted, as_tensor, cast
from sfumato.estimators.learning import PrivateNetwork
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.sources import TensorSource
from sfumato.fit.admit import Protected
from sfumato.fit.choose import open_ledger
from sfumato.fit.completion import Completion
from sfumato.fit.network import Learning
from sfumato.fit.network_search import BestNetwork, search_networks
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.fit.search import BestOf, carry_out_search, guarantee_of, make_search
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import warn_of, without_warnings
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.units import Unit
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
    owners are solved from all entries.

    Parameters
    ----------
    estimators : the candidates, two or more. Their own ``privacy`` is None, or the search's with another
        ``method`` or ``noise``.
    privacy : budget (epsilon, and delta unless pure), unit and what is public, for the whole search.
    repetitions : about how many runs are made: the parameter of the Poisson law they are drawn from. By
        default two for each candidate. More are likelier to include the best candidate, and cost more.
    holdout : share of the entries that candidates are compared at.

    After ``fit``, ``best_estimator_`` is the one chosen, ``best_index_`` its number, and ``guarantee_``
    what its release promises. Progress and the time that a search takes show how many runs there were;
    like all messages of a fit they are for the holder of the data alone.
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
        """What ``fit`` will do to a tensor with these modes; needs no data."""
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
        """Search, and keep the best; arguments are those of the candidates' own ``fit``."""
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
        progress = [candidate.progress for candidate in self.estimators]
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
        found = search_networks(
            plan,
            [each.features for each in taken],
            [each.examples(isinstance(unit, Unit)) for each in taken],
            ledger,
            entropy,
            [network.progress for network in copies],
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
            raise NotFittedError("this search has not been made yet; call fit first")
        return self.best_estimator_

    @property
    def guarantee_(self) -> Guarantee:
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
        """Predictions of the best estimator; see :meth:`TensorEstimator.predict`."""
        best = self._best()
        if isinstance(best, PrivateNetwork):
            return best.predict(X)  # type: ignore[attr-defined]
        return best.predict(X, unseen=unseen, **labels)

    def rmse(self, X: Any, y: Any = None) -> float:
        """Root mean squared error of the best estimator; no guarantee covers it."""
        error: float = self._best().rmse(X, y)
        return error

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the RMSE; of networks their own score."""
        best = self._best()
        return best.score(X, y) if isinstance(best, PrivateNetwork) else -self.rmse(X, y)  # type: ignore[attr-defined]

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the best estimator; see :meth:`TensorEstimator.save`."""
        path: Path = self._best().save(folder, force=force)
        return path

    def release(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write what the guarantee covers; see :meth:`TensorEstimator.release`."""
        path: Path = self._best().release(folder, force=force)
        return path
