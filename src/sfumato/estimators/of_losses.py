"""Which solvers and private methods are for which loss."""

from __future__ import annotations

from typing import Any

from sfumato.checks import shown
from sfumato.errors import SettingError
from sfumato.solvers.least_squares.seen import SeenALS
from sfumato.solvers.private.popularity import PrivatePopularity
from sfumato.solvers.private.seen_together import PrivateSeen
from sfumato.solvers.registry import method_named
from sfumato.surface import setting

OF_SEEN = ("seen", "popularity")  # private methods


def method_of_loss(loss: str, method: Any, usual: str) -> Any:
    """The private method of a loss; ``usual`` is what "auto" stands for where cells were seen."""
    name = method if isinstance(method, str) else method_named(getattr(method, "name", ""))
    if loss == "seen":
        if name == "auto":
            return usual
        if name not in OF_SEEN or (usual == "popularity" and name != usual):
            raise SettingError(
                f"{setting('loss', 'seen')} has no private method {shown(method)}: use "
                f"{' or '.join(OF_SEEN if usual == 'seen' else OF_SEEN[1:])}"
            )
    elif name in OF_SEEN or isinstance(method, PrivateSeen | PrivatePopularity):
        raise SettingError(
            f"the method {name!r} is for entries that say what was seen: {setting('loss', 'seen')}"
        )
    return method


def check_squared(what: str, *losses: str) -> None:
    """Refuse other losses than squared errors, for what is not made for them."""
    other = [loss for loss in losses if loss != "squared"]
    if other:
        raise SettingError(f"{what} is for squared errors: leave {setting('loss', other[0])} out")


def solver_of_loss(loss: str, solver: Any) -> Any:
    """The open solver of a loss: what was seen has one of its own."""
    own = isinstance(solver, SeenALS) or (isinstance(solver, str) and solver == "seen")
    if loss == "seen":
        if isinstance(solver, str) and solver in ("als", "seen"):
            return SeenALS()
        if not own:
            raise SettingError(
                f"{setting('loss', 'seen')} has a solver of its own: leave {setting('solver')} out"
            )
    elif own or (isinstance(solver, str) and solver == "popularity"):
        raise SettingError(
            f"this solver is for entries that say what was seen: {setting('loss', 'seen')}"
        )
    return solver
