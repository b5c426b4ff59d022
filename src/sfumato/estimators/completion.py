"""Estimators with scikit-learn's conventions: ``sf.CP(rank=8).fit(train).predict(test)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from numpy.typing import DTypeLike

from sfumato.checks import as_list, check_count, check_positive, is_whole, plain, shown
from sfumato.data import prepare
from sfumato.engines.ray import Ray
from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.of_losses import method_of_loss, solver_of_loss
from sfumato.fit.choose import OpenRank
from sfumato.fit.loop import Watch
from sfumato.fit.request import Privacy
from sfumato.models.shape import Kind, usual_rank
from sfumato.solvers.least_squares.backfitting import Backfitting
from sfumato.solvers.least_squares.seen import Popularity
from sfumato.solvers.protocol import Solver, check_solver
from sfumato.solvers.registry import find, has_factors, solver_class

_USUAL_TUCKER_RANK = 4  # where none is given


class CP(TensorEstimator):
    """CP model: ``mean + biases + sum_r prod_m factor_m[i_m, r]``.

    Parameters
    ----------
    rank : int or None
        Number of components; None for 8, or as many as the smallest mode has levels, and without
        privacy for up to 20 where there are four entries for each parameter. Where a private method
        is chosen for you (``method="auto"``), it is the most that are fitted, and None leaves the
        number to the plan: noise makes many components worse than few.
    solver : str or solver
        "als" (Bayesian: learns its penalties), "sgd", "minibatch", "sequential", or one of the
        solver records with settings of your own: ``sf.ALS(ridge=10)``.
    loss : str
        What values are: "squared" (numbers), "poisson" (counts; predictions are their means),
        "logistic" (yes or no, 1 or 0; probabilities), or "seen": entries say what was seen, whatever
        their values, and cells without one count as zeros; predictions are scores.
    mean, biases : bool
        Whether to fit a global mean, and a bias per level of each mode.
    duplicates : str
        What to do with several entries at one cell: "error", "mean", "last" or "sum".
    unseen : str
        What to predict for labels not in training: "error", or "bias" (mean and known biases).
    starts : int
        Random starts; the one with the least training error is kept.
    seed : int
        Of the random start.
    dtype : dtype or None
        float32 or float64; by default that of the values.
    threads : int or None
        By default all cores. ALS gives the same result for any number, SGD for a given one.
    progress : callable or None
        Called as ``progress(round, rounds, info)`` while fitting; True for a bar, on a terminal or in
        a notebook.
    privacy : Privacy or None
        A :class:`Privacy`: budget, unit and method of a private fit; None fits without privacy.
    engine : Ray or None
        A :class:`Ray`, to fit on a cluster; None fits in this process.
    device : str
        "cpu", "gpu", or "auto", which takes a GPU where there is one and a kernel for the fit
        (``docs/gpu.md``).

    Attributes
    ----------
    rank_, method_
        What was fitted, also where a private fit has chosen them.
    guarantee_ : Guarantee or None
        What a private fit promises; None of another.

    Examples
    --------
    >>> import sfumato as sf
    >>> ratings = sf.synthetic.ratings_like(60, 40, 5, 2000)
    >>> model = sf.CP(rank=3).fit(ratings)
    >>> 1 <= model.predict(user="u007", item="i003", day="1998-04-02") <= 5
    True
    >>> [item for item, _ in model.top("item", 3, user="u007", day="1998-04-02")]
    ['i011', 'i039', 'i033']

    With differential privacy for everything that one user has rated:

    >>> public = sf.Public(labels=True, units=60, entries=2000)
    >>> private = sf.CP(
    ...     privacy=sf.Privacy(3, 1e-6, unit="user", public=public)
    ... ).fit(ratings)
    >>> private.method_, private.guarantee_.epsilon <= 3
    ('moments', True)
    """

    def __init__(
        self,
        rank: int | None = None,
        *,
        solver: str | Solver[Any, Any] = "als",
        loss: str = "squared",
        mean: bool = True,
        biases: bool = True,
        duplicates: prepare.DuplicatePolicy = "error",
        unseen: str = "error",
        starts: int = 1,
        seed: int = 0,
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        progress: Watch = None,
        privacy: Privacy | None = None,
        engine: Ray | None = None,
        device: str = "cpu",
    ) -> None:
        self.rank = rank
        self.solver = solver
        self.loss = loss
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
        self.engine = engine
        self.device = device

    def _ranks(self, sizes: Sequence[int], entries: int | None = None) -> Sequence[int]:
        if self.rank is None:
            return [usual_rank(sizes, entries)] * len(sizes)
        check_count(rank=self.rank)
        return [int(self.rank)] * len(sizes)

    def _open_rank(self) -> OpenRank:
        most = None if self.rank is None else int(self.rank)
        return OpenRank(most)

    def _solver(self) -> Solver[Any, Any]:
        return _named_solver(self.solver, self.loss)


class Tucker(TensorEstimator):
    """Tucker model: a core of shape ``ranks``, multiplied along each mode by a factor.

    Parameters
    ----------
    ranks : int, sequence of int or None
        One number for all modes, or one per mode; None for 4, less where a mode has fewer levels. The
        core has their product of entries. One number, or None, is what :class:`CP` makes of its rank in
        private fits; several are fitted as they are.
    solver, loss, mean, biases, duplicates, unseen, starts, seed, dtype, threads, progress
        As of :class:`CP`.
    privacy, engine, device
        As of :class:`CP`.

    Examples
    --------
    >>> import sfumato as sf
    >>> model = sf.Tucker(ranks=(3, 3, 2)).fit(
    ...     sf.synthetic.ratings_like(60, 40, 5, 2000)
    ... )
    >>> model.rank_, model.model_.core.shape
    ((3, 3, 2), (3, 3, 2))
    """

    kind: ClassVar[Kind] = "tucker"

    def __init__(
        self,
        ranks: int | Sequence[int] | None = None,
        *,
        solver: str | Solver[Any, Any] = "als",
        loss: str = "squared",
        mean: bool = True,
        biases: bool = True,
        duplicates: prepare.DuplicatePolicy = "error",
        unseen: str = "error",
        starts: int = 1,
        seed: int = 0,
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        progress: Watch = None,
        privacy: Privacy | None = None,
        engine: Ray | None = None,
        device: str = "cpu",
    ) -> None:
        self.ranks = ranks
        self.solver = solver
        self.loss = loss
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
        self.engine = engine
        self.device = device

    def _ranks(self, sizes: Sequence[int], entries: int | None = None) -> Sequence[int]:  # noqa: ARG002
        if self.ranks is None:
            return _at_most(_USUAL_TUCKER_RANK, sizes)
        if is_whole(self.ranks):
            check_count(ranks=self.ranks)
            return [int(self.ranks)] * len(sizes)
        ranks = as_list("ranks", self.ranks, "a whole number, or one for each mode")
        check_count(**{f"ranks[{m}]": rank for m, rank in enumerate(ranks)})
        return [int(rank) for rank in ranks]

    def _open_rank(self) -> OpenRank | None:
        most = self.ranks
        if not (most is None or is_whole(most)):
            return None
        return OpenRank(None if most is None else int(most))

    def _solver(self) -> Solver[Any, Any]:
        return _named_solver(self.solver, self.loss)


class Biases(TensorEstimator):
    """Bias predictor, ``mean + sum_m bias_m[i_m]``: what a factor model has to beat.

    With ``loss="seen"`` it is the popularity of levels.

    Parameters
    ----------
    ridge : float or {'learn'}
        Shrinks a level with n entries to n / (n + ridge) of its mean; "learn" finds one for each mode
        from the data.
    sweeps : int
        Over all modes; 0 gives the constant predictor.
    loss, duplicates, unseen, dtype, threads, progress, privacy, engine
        As of :class:`CP`.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.synthetic.ratings_like(60, 40, 5, 2000).split(0.2)
    >>> constant, biases = sf.Biases(sweeps=0).fit(train), sf.Biases().fit(train)
    >>> biases.rmse(test) < constant.rmse(test)
    True
    """

    def __init__(
        self,
        *,
        ridge: float | Literal["learn"] = "learn",
        sweeps: int = 10,
        loss: str = "squared",
        duplicates: prepare.DuplicatePolicy = "error",
        unseen: str = "error",
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        progress: Watch = None,
        privacy: Privacy | None = None,
        engine: Ray | None = None,
    ) -> None:
        self.ridge = ridge
        self.sweeps = sweeps
        self.loss = loss
        self.duplicates = duplicates
        self.unseen = unseen
        self.dtype = dtype
        self.threads = threads
        self.progress = progress
        self.privacy = privacy
        self.engine = engine

    def _ranks(self, sizes: Sequence[int], entries: int | None = None) -> Sequence[int]:  # noqa: ARG002
        return [1] * len(sizes)  # one component that stays zero

    def _solver(self) -> Solver[Any, Any]:
        if self.loss == "seen":
            return Popularity()
        return plain(Backfitting(sweeps=self.sweeps, ridge=self.ridge))

    def _check_settings(self) -> None:
        super()._check_settings()
        check_count(0, sweeps=self.sweeps)
        if not isinstance(self.ridge, str) or self.ridge != "learn":
            check_positive(ridge=self.ridge)

    def _private_method(self, privacy: Privacy) -> Any:
        if self.loss == "seen":
            return method_of_loss(self.loss, privacy.method, "popularity")
        method = privacy.method
        if not isinstance(method, str) or (method != "auto" and has_factors(method)):
            raise SettingError(f"a bias predictor has no private method {shown(method)}")
        if method in ("auto", "bias", "constant"):
            return "constant" if self.sweeps == 0 else "bias"
        return method


def _at_most(rank: int, sizes: Sequence[int]) -> list[int]:
    """A rank in every mode, as far as it has levels."""
    return [min(rank, size) if size else rank for size in sizes]


def _named_solver(solver: str | Solver[Any, Any], loss: str) -> Solver[Any, Any]:
    solver = solver_of_loss(loss, solver)
    if not isinstance(solver, str):
        check_solver("solver", solver)
    name = solver if isinstance(solver, str) else solver.name
    if find(name, "coupled") and not find(name, "open"):
        raise SettingError(
            f"{name!r} gives samples, not one model: use sfumato.Coupled, which takes a single tensor "
            'too, as fit({"data": tensor})'
        )
    if not isinstance(solver, str):
        return plain(solver)
    made: Solver[Any, Any] = solver_class(solver, "open")()
    return made
