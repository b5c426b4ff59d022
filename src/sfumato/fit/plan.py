"""A fit, decided before any data is seen, and the one loop that carries it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from sfumato.checks import check_count, check_positive, check_seed, given
from sfumato.errors import DataError
from sfumato.models.multilinear import Multilinear
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.protocol import DivergedError, Info, PublicShape
from sfumato.surface import either

_Shape = TypeVar("_Shape", PublicShape, CoupledShape)


@dataclass(frozen=True)
class Plan(Generic[_Shape]):
    """What will be fitted and how: everything but the data.

    ``starts`` fits are made from different random starts and the one with the least training error
    is kept; like a tolerance, that choice looks at the data and is for non-private use.
    """

    shape: _Shape
    solver: Any  # a Solver, of a single tensor or of several
    seed: int = 0
    starts: int = 1
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_count(starts=self.starts)
        check_seed(seed=self.seed)
        check_positive(**given(tolerance=self.tolerance))
        if hasattr(self.solver, "check"):
            self.solver.check(self.shape)

    @property
    def rounds(self) -> int:
        """Questions put to the data, over all starts."""
        return self.starts * int(self.solver.rounds(self.shape))

    def explain(self) -> str:
        """The plan in words."""
        stop = "" if self.tolerance is None else f", until it gains less than {self.tolerance:g}"
        again = "" if self.starts == 1 else f", from {self.starts} starts, the best one kept"
        return f"{model_in_words(self.shape)}; {self.solver}{stop}{again}. Not private."


def model_in_words(shape: PublicShape | CoupledShape) -> str:
    """What kind of model of what shape."""
    if isinstance(shape, CoupledShape):
        return _relations_in_words(shape)
    sizes = " x ".join(f"{mode.name} {mode.size:,}" for mode in shape.modes)
    model = shape.make_model(shape.sizes, shape.dtype)
    ranks = "rank " + " x ".join(str(r) for r in dict.fromkeys(model.ranks))
    parts = ["a mean" if shape.fit_mean else "", "biases" if shape.fit_biases else ""]
    extras = " and ".join(part for part in parts if part)
    kind = (
        f"{type(model).__name__.removesuffix('Model')} of {ranks}{' with ' + extras if extras else ''}"
    )
    return f"{sizes}: {kind}, {model.rows.dtype}"


def _relations_in_words(shape: CoupledShape) -> str:
    parts = "; ".join(
        f"{part.name} {'Tucker' if part.tucker else 'CP'} of "
        + " x ".join(f"{shape.modes[d].name} {shape.sizes[d]:,}" for d in part.modes[: part.order])
        for part in shape.parts
    )
    return f"{parts}: rank {shape.rank}, {np.dtype(shape.dtype)}"


class Fit(NamedTuple):
    """A fitted model, and what each completed sweep or pass reported.

    ``posterior`` is what a Bayesian solver knows beyond the model.
    """

    model: Any
    history: tuple[Info, ...]
    posterior: Any = None


Progress = Callable[[int, int, Info], None]


def check_site(shape: PublicShape | CoupledShape, site: Site | CoupledSite) -> None:
    """Refuse entries of other modes than a fit was planned for, before they are touched or charged."""
    if isinstance(shape, PublicShape) and isinstance(site, Site):
        site.check_sizes(shape.sizes)
    elif (
        isinstance(shape, CoupledShape)
        and isinstance(site, CoupledSite)
        and len(shape.parts) == len(site.parts)
    ):
        for part, holder in zip(shape.parts, site.parts, strict=True):
            sizes = tuple(shape.sizes[mode] for mode in part.modes)
            for entries in (holder.entries, holder.unknown):
                if entries is not None:
                    entries.check_sizes(sizes)
    else:
        raise DataError(
            f"a plan for a {type(shape).__name__} does not fit this {type(site).__name__}: it was made "
            "for other relations, or for a single tensor"
        )


def carry_out(plan: Plan[_Shape], site: Site | CoupledSite, progress: Progress | None = None) -> Fit:
    """Fit the plan's model to a site's entries; ``progress(round, rounds, info)`` is told of each."""
    check_site(plan.shape, site)
    fits = []
    for start in range(plan.starts):
        try:
            fits.append(_one_start(replace(plan, seed=plan.seed + start), site, progress, start))
        except DivergedError:
            if start == plan.starts - 1 and not fits:
                raise
    return min(fits, key=lambda fit: _remaining(fit, site)) if len(fits) > 1 else fits[0]


def _remaining(fit: Fit, site: Site | CoupledSite) -> float:
    """What a fit could not lower any further."""
    objective = fit.history[-1].objective if fit.history else None
    if objective is not None:
        return objective
    assert isinstance(site, Site)
    return training_rmse(fit.model, site)


def _one_start(
    plan: Plan[_Shape], site: Site | CoupledSite, progress: Progress | None, start: int
) -> Fit:
    solver, history = plan.solver, list[Info]()
    state = solver.init(plan.seed, plan.shape)  # which checks the settings
    rounds = int(solver.rounds(plan.shape))
    for number in range(rounds):
        query = solver.ask(state)
        state, info = solver.update(state, solver.answer(query, site))
        if progress is not None:
            progress(start * rounds + number + 1, plan.rounds, info)
        if info.completed > len(history):
            history.append(info)
            if plan.tolerance is not None and _settled(history, plan.tolerance):
                break
    model = solver.finish(state)
    if not all(np.isfinite(part).all() for part in model.parameters):
        raise DivergedError(
            "the fit left the range of floating-point numbers; "
            + either(
                "raise the penalties, lower the step, or use float64",
                "use a lower rank, or --solver als",
            )
        )
    posterior = getattr(solver, "posterior", None)
    return Fit(model, tuple(history), None if posterior is None else posterior(state))


def _settled(history: list[Info], tolerance: float) -> bool:
    pairs = [(info.objective, info.train_rmse) for info in history[-2:]]
    errors = [error if objective is None else objective for objective, error in pairs]
    if len(errors) < 2 or errors[0] is None or errors[1] is None:
        return False
    return errors[0] - errors[1] < tolerance * abs(errors[0])


def training_rmse(model: Multilinear, site: Site) -> float:
    """Error at the entries that the model was fitted to."""
    tensor = site.tensor
    misses = tensor.values - model.predict(tensor.coordinates, threads=site.threads)
    return float(np.sqrt(np.mean(np.square(misses, dtype=np.float64))))
