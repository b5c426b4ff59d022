"""How often private biases ask about a mode, and with which share: from public numbers alone."""

from __future__ import annotations

import numpy as np

from sfumato.solvers.private.known import Known


def usual_sweeps(known: Known) -> int:
    """Enough for the modes, and for units' own means, to settle.

    Under pure privacy the noise of T rounds averages out to sqrt(T) times that of one: fewer rounds,
    unless noise hardly matters.
    """
    if known.facts.unit_mode is not None or known.owners is not None:
        return 3 if known.pure else 6
    if len(known.shared) == 1:
        return 2
    return 4 if not known.pure or _noise_is_small(known) else 2


def _noise_is_small(known: Known) -> bool:
    """Whether average levels of the largest mode would keep nearly all of their means."""
    mode = max(known.shared, key=lambda m: known.facts.sizes[m])
    share = 1 / (4 * len(known.shared))
    entries = np.array([known.facts.least_entries])
    kept = known.reliability(mode, entries, known.mechanism(share).deviation(1.0))
    return kept > 0.99


def mode_shares(known: Known) -> tuple[dict[int, float], tuple[int, float] | None]:
    """Shares of the modes asked about in rounds, and that of the units' own mode if it is released.

    A level of a mode with L levels has about N / L entries. Noise of variance 1/f (1/f^2 where pure)
    in its sum is an error of L^2 / f (L^2 / f^2): the sum over the modes is least for shares
    proportional to L (L^(2/3)). A unit's own row is about the unit alone and drowns in the noise
    that hides it, unless the budget is large: its share is cut by what could be kept of it.
    """
    own = known.facts.unit_mode
    wanted = [n ** (2 / 3 if known.pure else 1.0) for n in known.facts.sizes]
    whole = sum(wanted[m] for m in known.shared)
    if own is None or own == known.facts.local:
        return {m: wanted[m] / whole for m in known.shared}, None
    ones = np.ones(known.facts.sizes[own])
    wanted[own] *= known.reliability(own, ones, known.mechanism(1.0).deviation(1.0))
    whole += wanted[own]
    return {m: wanted[m] / whole for m in known.shared}, (own, wanted[own] / whole)
