"""What ``sfumato complete`` is asked to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli.options import Duplicates, ModelName

if TYPE_CHECKING:
    from sfumato.data.shards import Shards
    from sfumato.data.tensor import SparseTensor
    from sfumato.engines.ray import Ray
    from sfumato.estimators.base import TensorEstimator
    from sfumato.estimators.search import PrivateSearch
    from sfumato.fit.request import Privacy

DEFAULT_TUCKER_RANK = 4


class SolverName(StrEnum):
    als = "als"
    sgd = "sgd"
    minibatch = "minibatch"
    sequential = "sequential"


class LossName(StrEnum):
    squared = "squared"
    poisson = "poisson"
    logistic = "logistic"
    seen = "seen"


@dataclass(frozen=True)
class Order:
    """What to fit, as asked for on the command line."""

    model: ModelName
    rank: int | None
    ranks: list[int] | None
    solver: SolverName
    rounds: int | None
    duplicates: Duplicates
    seed: int
    threads: int | None
    privacy: Privacy | None = None
    tune_rank: list[int] | None = None
    engine: Ray | None = None
    loss: str = "squared"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.tune_rank and (self.ranks or self.rank is not None):
            raise typer.BadParameter("give --tune-rank or a rank, not both", param_hint="--tune-rank")
        if self.tune_rank and self.privacy is None:
            raise typer.BadParameter(
                "it pays for the choice from a private fit's budget: give --epsilon",
                param_hint="--tune-rank",
            )
        if self.privacy is not None and (self.solver != SolverName.als or self.rounds is not None):
            raise typer.BadParameter(
                "a private fit has solvers and rounds of its own: leave --solver and --rounds out, and "
                "choose with --method",
                param_hint="--solver",
            )
        if self.ranks and self.rank is not None:
            raise typer.BadParameter("give --rank or --ranks, not both", param_hint="--ranks")
        if self.ranks and self.model == ModelName.cp:
            raise typer.BadParameter(
                "a CP model has one rank, --rank; several belong to --model tucker", param_hint="--ranks"
            )

    @property
    def given_ranks(self) -> int | list[int] | None:
        """The rank or ranks asked for; None leaves them to the estimator."""
        return self.ranks or self.rank

    def settled(self, tensor: SparseTensor | Shards) -> Order:
        """The same with the usual rank of a CP model for these entries, where none is given."""
        if self.given_ranks is not None or self.model != ModelName.cp:
            return self
        from sfumato.models.shape import usual_rank

        return replace(self, rank=usual_rank(tensor.shape, tensor.n_entries))

    def ranks_in_words(self, shape: Sequence[int]) -> str:
        """The ranks asked for; by default the usual ones, as far as the shape allows."""
        from sfumato.models.shape import usual_rank

        ranks = self.given_ranks
        if ranks is None and self.plans_rank:
            return "planned rank"
        if ranks is None and self.model == ModelName.cp:
            ranks = usual_rank(shape)
        elif ranks is None:
            ranks = [min(DEFAULT_TUCKER_RANK, size) for size in shape]
        return f"rank {ranks}" if isinstance(ranks, int) else f"ranks {' '.join(map(str, ranks))}"

    @property
    def plans_rank(self) -> bool:
        """Whether the rank, where none is given, follows from the budget."""
        return self.privacy is not None and self.privacy.method in ("auto", "alternating", "moments")

    @property
    def leaves_open(self) -> bool:
        """Whether the method or the rank of a private fit is left to the plan."""
        auto = self.privacy is not None and self.privacy.method == "auto"
        return not self.tune_rank and (auto or (self.plans_rank and self.given_ranks is None))

    def estimator(self, *, rounds: int | None, progress: Any) -> TensorEstimator:
        from sfumato.estimators.completion import CP, Tucker
        from sfumato.solvers.registry import solver_class

        solver: Any = solver_class(self.solver.value, "open")()
        if rounds is not None:
            solver = replace(solver, **{"sweeps" if hasattr(solver, "sweeps") else "passes": rounds})
        of_seen = self.loss == "seen"  # which has a solver of its own
        settings: dict[str, Any] = {
            "solver": "als" if of_seen or self.privacy is not None else solver,
            "privacy": self.privacy,
            "unseen": "error" if self.privacy is None else "bias",  # labels may be left out
            "loss": self.loss,
            "duplicates": self.duplicates.value,
            "seed": self.seed,
            "threads": self.threads,
            "progress": progress,
            "engine": self.engine,
            "device": self.device,
        }
        kind: Any = CP if self.model == ModelName.cp else Tucker
        estimator: TensorEstimator = kind(self.given_ranks, **settings)
        return estimator

    def private_estimator(self, privacy: Privacy, progress: Any) -> TensorEstimator | PrivateSearch:
        """One estimator, or a search among several ranks within the same budget."""
        from sfumato.estimators.search import PrivateSearch

        if not self.tune_rank:
            return self.estimator(rounds=None, progress=progress)
        orders = [replace(self, rank=rank, tune_rank=None) for rank in self.tune_rank]
        candidates = [order.estimator(rounds=None, progress=progress) for order in orders]
        return PrivateSearch(candidates, privacy)

    def name_for(self, shape: Sequence[int]) -> str:
        if self.tune_rank:
            kind = "CP" if self.model == ModelName.cp else "Tucker"
            return f"{kind}, best rank of {' '.join(map(str, self.tune_rank))}"
        how = self.solver.value if self.privacy is None else f"method {self.privacy.method}"
        return f"{'CP' if self.model == ModelName.cp else 'Tucker'}, {self.ranks_in_words(shape)}, {how}"
