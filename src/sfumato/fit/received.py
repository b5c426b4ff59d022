"""Fits of privatised entries: which solver, and what the fit promises without spending anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sfumato.data.privatised import Privatised
from sfumato.errors import SettingError
from sfumato.fit.plan import Plan
from sfumato.models.shape import Shape
from sfumato.privacy.guarantee import Guarantee
from sfumato.solvers.behind.received import Received
from sfumato.solvers.least_squares.als import ALS


def behind_channels(plan: Plan[Shape], entries: int) -> Plan[Shape]:
    """The plan for values that have passed channels: Bayesian ALS by their likelihood."""
    if plan.solver != ALS():
        raise SettingError(
            "values that were privatised are fitted by 'als' with its usual settings, which knows what "
            f"they have passed, or as counts by sfumato.Coupled; {plan.solver.name!r} would take them "
            "for clean"
        )
    if plan.starts != 1:
        raise SettingError(
            "a fit of privatised values chooses among starts of its own: leave starts out"
        )
    return replace(plan, solver=Received(entries))


def promised(received: Privatised, shape: Shape) -> Guarantee | None:
    """What those are promised whose values were privatised; None where raw ones were fitted as well."""
    if received.has_clean or not received.promises:
        return None
    each = [Guarantee.from_json(dict(promise)) for promise in received.promises]
    kinds = {(one.unit, one.neighbours) for one in each}
    if len(kinds) > 1:
        raise SettingError(
            "these were privatised for different units, which do not add up: "
            + "; ".join(sorted(unit for unit, _ in kinds))
        )
    return _together(each, _spent(received, each), _released(shape))


def _released(shape: Shape) -> tuple[str, ...]:
    rows = "rows and biases" if shape.fit_biases else "rows"
    parts = ["noisy values", *(["mean"] if shape.fit_mean else [])]
    parts += [f"{rows} of {mode.name}" for mode in shape.modes]
    return (*parts, *(["core"] if shape.core_size else []))


def _spent(received: Privatised, each: Sequence[Guarantee]) -> tuple[float, float]:
    """The largest sum of epsilons, and of deltas, over files that one unit's values are in.

    A unit is a cell, or a level of the mode that a guarantee's cap is about: in how many files it is, is
    public.
    """
    if len(each) == 1:
        return each[0].epsilon, each[0].delta
    keys = _unit_keys(received, each[0])
    pairs = np.unique(np.stack([keys, received.numbers.astype(np.int64)]), axis=1)
    epsilons, deltas = (np.array([getattr(one, name) for one in each]) for name in ("epsilon", "delta"))
    totals = [np.bincount(pairs[0], amounts[pairs[1]]).max() for amounts in (epsilons, deltas)]
    return float(totals[0]), float(totals[1])


def _unit_keys(received: Privatised, promise: Guarantee) -> Any:
    tensor = received.tensor
    if promise.cap is not None:
        for mode, name in enumerate(tensor.mode_names):
            if promise.unit.endswith(f"of one {name}") or f"of one {name}," in promise.unit:
                return tensor.coordinates[mode].astype(np.int64)
        return np.zeros(tensor.n_entries, np.int64)  # of which mode is not known: all may be one unit's
    return np.unique(tensor.coordinates, axis=1, return_inverse=True)[1].reshape(-1)


def _together(
    each: Sequence[Guarantee], spent: tuple[float, float], released: Sequence[str]
) -> Guarantee:
    first = each[0]
    epsilon, delta = spent
    return replace(
        first,
        epsilon=epsilon,
        delta=delta,
        released=tuple(released),
        proven=all(one.proven for one in each),
        exact=all(one.exact for one in each),
        seeded=any(one.seeded for one in each),
        assumptions=tuple(dict.fromkeys(said for one in each for said in one.assumptions)),
        warnings=tuple(dict.fromkeys(said for one in each for said in one.warnings)),
        **(_OF_ONE_FILE if len(each) > 1 else {}),
    )


_OF_ONE_FILE: dict[str, Any] = {
    "ledger": None,
    "fits": None,
    "total_epsilon": None,
    "odometer_epsilon": None,
    "ledger_limit": None,
    "curve": (),  # of one file; together they have no more than their sum
}
