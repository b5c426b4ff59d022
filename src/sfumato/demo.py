"""The demonstration: complete ratings that come with the package, privately, and draw the trade-off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sfumato.data import synthetic
from sfumato.data.tensor import SparseTensor
from sfumato.estimators.compare import compare
from sfumato.estimators.completion import CP, Biases
from sfumato.fit.request import Privacy
from sfumato.privacy.units import Public
from sfumato.report.figures import trade_off
from sfumato.report.progress import FitProgress
from sfumato.report.records import Curve, Result
from sfumato.report.text import plain_table, sizes_in_words

_NEXT = (
    "sfumato complete ratings.csv --modes user item --value rating --bounds 1 5 --out model "
    "--epsilon 1 --delta 1e-6 --unit user --labels-are-public --public-units 1000"
)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
_SHOWN = 3.0  # the budget of the model that is kept


def run_demo(
    out: Path,
    console: Console,
    *,
    ratings: SparseTensor | None = None,
    epsilons: Sequence[float] = EPSILONS,
) -> list[Curve]:
    """Fit invented ratings within a row of budgets; write the picture and one model to ``out``."""
    tensor = synthetic.ratings_like() if ratings is None else ratings
    train, test = tensor.split(0.2, seed=0)
    console.print(f"Invented ratings from 1 to 5 of items by users on days: {_in_words(tensor)}.")
    console.print(f"A fifth of them is held out: {test.n_entries:,} that no fit sees.\n")
    with FitProgress(console) as progress:
        open_fits = {"biases": Biases(progress=progress), "CP": CP(progress=progress)}
        levels = [
            replace(level, name=f"{level.name}, not private")
            for level in compare(open_fits, train, test, progress.begin)
        ]
        curves, kept = _private_fits(train, test, epsilons, progress)
    console.print(_table(epsilons, curves, levels))
    _print_examples(kept, test, console)
    console.print(f"\nThe guarantee at epsilon {_closest(epsilons):g}:\n{kept.guarantee_}")

    out.mkdir(parents=True, exist_ok=True)
    image = trade_off(
        out / "trade-off.png",
        epsilons,
        curves,
        levels,
        title="Completing user x item x day ratings privately",
        note="one entry protected, its presence included; delta 1e-6; users' own rows stay with them",
    )
    folder = kept.save(out / "model")
    console.print(f"\nPicture: {image}\nModel:   {folder} (release: safe to hand out; owner: is not)")
    console.print("Next, on a file of your own, with the number of users that there are at most:")
    console.print(f"  {_NEXT}", soft_wrap=True)
    return curves


def _in_words(tensor: SparseTensor) -> str:
    sizes = sizes_in_words({mode.name: mode.size for mode in tensor.modes})
    return f"{sizes}, {tensor.n_entries:,} entries, {tensor.density:.3g} of all cells"


def _private_fits(
    train: SparseTensor,
    test: SparseTensor,
    epsilons: Sequence[float],
    progress: FitProgress,
) -> tuple[list[Curve], CP]:
    """Errors of the private constant, biases and CP model at each budget, and the model to keep.

    Method and rank of the model are left to the plan.
    """
    names = ("private constant", "private biases", "sfumato")
    errors: dict[str, list[float]] = {name: [] for name in names}
    models: dict[float, CP] = {}
    public = Public(train.n_entries, labels=True, units=train.shape[train.mode_index("user")])
    for epsilon in epsilons:
        privacy = Privacy(epsilon, 1e-6, unit="entry", local="user", public=public)
        model = CP(privacy=privacy, progress=progress)
        rivals = (
            Biases(sweeps=0, privacy=privacy, progress=progress),
            Biases(privacy=privacy, progress=progress),
            model,
        )
        for name, rival in zip(names, rivals, strict=True):
            progress.begin(f"{name}, epsilon {epsilon:g}")
            errors[name].append(rival.fit(train).rmse(test))
        models[epsilon] = model
    return [Curve(name, tuple(errors[name])) for name in names], models[_closest(epsilons)]


def _closest(epsilons: Sequence[float]) -> float:
    return min(epsilons, key=lambda epsilon: abs(np.log(epsilon / _SHOWN)))


def _table(epsilons: Sequence[float], curves: Sequence[Curve], levels: Sequence[Result]) -> Table:
    table = plain_table("held-out RMSE at epsilon", *(f"{epsilon:g}" for epsilon in epsilons))
    for curve in curves:
        table.add_row(curve.name, *(f"{rmse:.4f}" for rmse in curve.rmse))
    for level in levels:
        table.add_row(level.name, *([""] * (len(epsilons) - 1)), f"{level.rmse:.4f}")
    return table


def _print_examples(model: CP, test: SparseTensor, console: Console) -> None:
    """A few held-out ratings beside their predictions, and the best items for one user."""
    console.print("\nSome of the held-out ratings:")
    predicted = model.predict(test)
    for entry in np.linspace(0, test.n_entries - 1, 4).astype(int).tolist():
        user, item, day = _labels(test, entry)
        console.print(
            f"  {user} on {item}, {day}: rated {test.values[entry]:g}, predicted {predicted[entry]:.1f}"
        )
    user, _, day = _labels(test, 0)
    best = ", ".join(f"{item} ({value:.1f})" for item, value in model.top("item", 3, user=user, day=day))
    console.print(f"  highest predictions for {user} on {day}: {best}")


def _labels(tensor: SparseTensor, entry: int) -> list[str]:
    return [
        str(mode.label(int(level)))
        for mode, level in zip(tensor.modes, tensor.coordinates[:, entry], strict=True)
    ]
