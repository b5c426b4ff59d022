"""Every solver that can be asked for by name: one row each.

Rows are text, so that the list costs no import: what a caller may ask for is known before any solver is
loaded. An open solver is a class; a private one a function ``make(facts, wish)`` of its module, which
gives the solver that suits what was asked for, or says why there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from sfumato.errors import SettingError
from sfumato.surface import either

if TYPE_CHECKING:
    from sfumato.privacy.facts import Facts
    from sfumato.solvers.protocol import PrivateSolver, Wish

Family = Literal["open", "seen", "coupled", "private", "private coupled", "as printed"]


@dataclass(frozen=True)
class Method:
    """A row.

    Parameters
    ----------
    name : what it is asked for by.
    home : its module inside ``sfumato.solvers``; for an open solver the class as well.
    families : what it is for: single tensors, those that say what was seen, several that share modes,
        private fits of one or of several, papers' claims.
    labels : names that its solvers have in a guarantee.
    joint : whether rows can stay with their owners.
    factors : whether it fits factors, or means and biases alone.
    laws : of its noise, where there are several.
    """

    name: str
    home: str
    families: tuple[Family, ...]
    labels: tuple[str, ...] = ()
    joint: bool = False
    factors: bool = True
    laws: tuple[str, ...] = ("auto",)


_OPEN: tuple[Family, ...] = ("open",)
_SEVERAL: tuple[Family, ...] = ("open", "coupled")
_PRIVATE: tuple[Family, ...] = ("private",)
_PRINTED: tuple[Family, ...] = ("as printed",)
_WEI = "as printed by Wei et al."

METHODS = (
    Method("als", "least_squares.als:ALS", _OPEN),
    Method("sgd", "gradient.sgd:SGD", _OPEN),
    Method("minibatch", "gradient.minibatch:MinibatchSGD", _OPEN),
    Method("sequential", "gradient.sequential:SequentialSGD", _OPEN),
    Method("seen", "least_squares.seen:SeenALS", ("seen",)),
    Method("popularity", "least_squares.seen:Popularity", ("seen",)),
    Method("multiplicative", "coupled.multiplicative:Multiplicative", _SEVERAL),
    Method("variational", "coupled.variational:Variational", _SEVERAL),
    Method("langevin", "coupled.langevin:Langevin", ("coupled",)),
    Method("gibbs", "coupled.gibbs:Gibbs", ("coupled",)),
    Method("moments", "private.moments.solver", _PRIVATE, ("moments",), joint=True),
    Method("alternating", "private.alternating.solver", _PRIVATE, ("alternating",), joint=True),
    Method(
        "input",
        "private.input.solver",
        _PRIVATE,
        ("input perturbation",),
        laws=("auto", "response", "laplace", "gaussian"),
    ),
    Method(
        "gradient",
        "private.gradient.solver",
        _PRIVATE,
        ("gradient perturbation",),
        joint=True,
        laws=("auto", "gaussian", "residual", "vector"),
    ),
    Method("output", "private.output", _PRIVATE, ("output perturbation",)),
    Method("pairs", "private.pairs.solver", _PRIVATE, ("private pairs",), joint=True),
    Method("bias", "private.biases", _PRIVATE, ("private biases",), joint=True, factors=False),
    Method("constant", "private.constant", _PRIVATE, ("private constant",), joint=True, factors=False),
    Method("seen", "private.seen_together", _PRIVATE, ("seen together",), joint=True),
    Method(
        "popularity", "private.popularity", _PRIVATE, ("private popularity",), joint=True, factors=False
    ),
    Method("langevin", "private.langevin.solver", ("private coupled",), ("langevin",), joint=True),
    # Where the first row of a name makes another solver, that one's label has a row of its own.
    Method("gradient", "private.passes", _PRIVATE, ("gradient perturbation, pure passes",)),
    *(
        Method(name, f"as_printed.wei:{kind}", _PRINTED, (f"{name} perturbation {_WEI}",))
        for name, kind in (
            ("input", "PaperInput"),
            ("gradient", "PaperGradient"),
            ("output", "PaperOutput"),
        )
    ),
)


def names(family: Family) -> tuple[str, ...]:
    """What can be asked for."""
    return tuple(dict.fromkeys(row.name for row in METHODS if family in row.families))


def find(name: str, family: Family) -> Method | None:
    """The row of a name."""
    rows = (method for method in METHODS if method.name == name and family in method.families)
    return next(rows, None)


def solver_class(name: str, family: Family) -> Any:
    """The class of an open solver, or of one as printed; an error where there is none."""
    row = find(name, family)
    if row is None:
        raise SettingError(f"there is no solver {name!r}; there are {', '.join(names(family))}")
    module, kind = row.home.split(":")
    return getattr(import_module(f"sfumato.solvers.{module}"), kind)


def private_solver(name: str, facts: Facts, wish: Wish) -> PrivateSolver[Any]:
    """The solver of a private method, before calibration."""
    row = find(name, "private")
    if row is None and find(name, "private coupled"):
        raise SettingError(
            f"{name!r} is a method for several relations: use "
            + either('sfumato.Coupled, which takes one too, as fit({"data": tensor})', "sfumato couple")
        )
    if row is None:
        raise SettingError(f"there is no method {name!r}; there are {', '.join(names('private'))}")
    if wish.law not in row.laws:
        raise SettingError(f"the noise of {name!r} is one of {', '.join(row.laws)}; got {wish.law!r}")
    made: PrivateSolver[Any] = import_module(f"sfumato.solvers.{row.home}").make(facts, wish)
    return made


def method_named(solver: str) -> str:
    """A private solver's method as callers ask for it; of a foreign solver its own name."""
    return next((method.name for method in METHODS if solver in method.labels), solver)


def has_factors(method: str) -> bool:
    """Whether a private method, or the solver of a guarantee, fits factors; foreign ones may."""
    rows = [row for row in METHODS if method in (*row.labels, row.name) and "private" in row.families]
    return not rows or any(row.factors for row in rows)
