"""The demonstration: complete ratings that come with the package, and draw what was found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from sfumato import report
from sfumato.data import synthetic
from sfumato.data.tensor import SparseTensor
from sfumato.estimators import CP, Biases
from sfumato.solvers import ALS

NOT_PRIVATE = "not private: the model and its predictions can give away single entries"
_NEXT = "sfumato complete ratings.csv --modes user item --value rating --bounds 1 5 --out model"


def run_demo(
    out: Path, console: Console, *, ratings: SparseTensor | None = None, rank: int = 3
) -> list[report.Result]:
    """Fit invented ratings, print how good that is, and write a picture and the model to ``out``."""
    tensor = synthetic.ratings_like() if ratings is None else ratings
    train, test = tensor.split(0.2, seed=0)
    console.print(f"Invented ratings from 1 to 5 of items by users on days: {tensor!r}.")
    console.print(f"A fifth of them is held out: {test.n_entries:,} that no fit sees.\n")
    report.warm_up([Biases(), CP(rank, solver=ALS(sweeps=1))], train)
    with report.FitProgress(console) as progress:
        model = CP(rank, progress=progress)
        rivals = {"bias predictor": Biases(progress=progress), f"sfumato CP, rank {rank}": model}
        results = report.compare(rivals, train, test, progress.begin)
    console.print(report.results_table(results))
    _print_examples(model, test, console)

    out.mkdir(parents=True, exist_ok=True)
    title = f"Completing user x item x day: {test.n_entries:,} ratings that the fit has not seen"
    image = report.picture(out / "completed.png", results, model.predict(test), test.values, title=title)
    folder = model.save(out / "model")
    console.print(f"\nPicture: {image}\nModel:   {folder}\n{NOT_PRIVATE}")
    console.print(f"Next, on a file of your own:\n  {_NEXT}", soft_wrap=True)
    return results


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
