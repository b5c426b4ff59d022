"""``sf.load``: how estimators come back from the folders that they were saved to."""

from __future__ import annotations

from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

from sfumato.checks import as_path, check_choice
from sfumato.estimators.base import NOT_SAVED, TensorEstimator
from sfumato.estimators.completion import CP, Biases, Tucker
from sfumato.estimators.coupled import Coupled
from sfumato.estimators.network import PrivateClassifier, PrivateRegressor
from sfumato.estimators.power import PowerMethod
from sfumato.estimators.predicting import UNSEEN
from sfumato.fit.update import Period
from sfumato.report.page.contents import Expected
from sfumato.solvers.protocol import Info
from sfumato.solvers.registry import Family, find, solver_class
from sfumato.store import (
    COMPONENTS,
    COUPLED,
    NETWORK,
    PRIVATE_COUPLED,
    kind_of,
    load_model,
    load_network,
)
from sfumato.store.reading import damage
from sfumato.typed import finite_number, made_of, whole_number

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (CP, Tucker, Biases)}
_NETWORKS: dict[str, Any] = {kind.__name__: kind for kind in (PrivateClassifier, PrivateRegressor)}


def load(folder: str | PathLike[str]) -> Any:
    """A fitted estimator from a folder that its ``save`` or ``release`` wrote.

    Parameters
    ----------
    folder : path
        Of a model, or a release.

    Returns
    -------
    CP, Tucker, Biases, Coupled, PowerMethod, PrivateClassifier or PrivateRegressor
        As it was saved; of a release what it says of the model.

    Raises
    ------
    ModelFileError
        Where the folder is missing, damaged, or none of ours.

    Examples
    --------
    >>> import sfumato as sf
    >>> model = sf.CP(rank=2).fit(sf.synthetic.ratings_like(30, 20, 5, 400))
    >>> folder = model.save("model")
    >>> cell = dict(user="u007", item="i003", day="1998-04-02")
    >>> sf.load("model").predict(**cell) == model.predict(**cell)
    True
    """
    folder = as_path("folder", folder)
    kind = kind_of(folder)
    if kind == COMPONENTS:
        return PowerMethod.load(folder)
    if kind == NETWORK:
        return _network(folder)
    if kind == COUPLED:
        return Coupled.load(folder)
    if kind == PRIVATE_COUPLED:
        return Coupled.load_private(folder)
    stored = load_model(folder)
    with damage(Path(folder)):
        settings = {name: value for name, value in stored.settings.items() if name not in NOT_SAVED}
        estimator: TensorEstimator = made_of(_KINDS[stored.kind], settings, "its settings")
        check_choice(UNSEEN, unseen=estimator.unseen)
        estimator.model_ = stored.model
        estimator.modes_ = stored.modes
        estimator.bounds_ = stored.bounds
        estimator.guarantee_, estimator.local_ = stored.guarantee, stored.local
        estimator.own_prior_ = stored.own_prior
        estimator.errors_, estimator.own_entries_ = stored.errors, stored.own_entries
        estimator.told_ = stored.told
        if stored.guarantee is None:
            _recall(estimator, stored.notes)
        else:  # a release says nothing of how it came about
            estimator.n_entries_, estimator.scatter_ = None, None
            estimator.fit_seconds_, estimator.history_ = 0.0, ()
            estimator.expected_ = _expected(stored.notes.get("expected"))
            periods = stored.notes.get("periods", [])
            estimator.periods_ = tuple(made_of(Period, each, "its periods") for each in periods)
    return estimator


def _network(folder: Path) -> Any:
    stored = load_network(folder)
    with damage(folder):
        kind = _NETWORKS[stored.estimator]
    return kind.of(stored, folder)


def _expected(numbers: Any) -> Expected | None:
    """What a plan expected; None where no formula said it, or an earlier version did not keep it."""
    if numbers is None:
        return None
    expected = made_of(Expected, numbers, "what was expected")
    if not 0 <= expected.low <= expected.ratio <= expected.high < inf:
        raise ValueError("what was expected does not lie within its bounds")
    return expected


def _recall(estimator: TensorEstimator, notes: dict[str, Any]) -> None:
    """How a fit without privacy came about."""
    if "solver" in estimator.get_params():
        estimator.solver = _solver_from_json(notes["solver"])
    scatter = notes.get("scatter")  # an earlier version has none
    estimator.scatter_ = None if scatter is None else finite_number(scatter, "the scatter")
    estimator.n_entries_ = whole_number(notes["entries"], "the number of entries")
    estimator.fit_seconds_ = finite_number(notes["fit_seconds"], "the time of the fit")
    estimator.refit_ = notes.get("refit")
    estimator.beside_raw_ = notes.get("beside_raw") is True
    estimator.history_ = tuple(made_of(Info, info, "its history") for info in notes["history"])


def _solver_from_json(settings: dict[str, Any]) -> Any:
    rest = {key: value for key, value in settings.items() if key != "name"}
    family: Family = "seen" if find(settings["name"], "seen") else "open"
    return made_of(solver_class(settings["name"], family), rest, "its solver")
