"""Values on their way through a channel: cut for it, with the bound that its noise is sized by.

Input perturbation of whoever holds all data and local privacy of everybody by themselves are the same
mechanism, and this is where both make it. Proof: ``proofs/input.md``.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from sfumato.data.channels import Additive, Geometric, Response
from sfumato.errors import SettingError
from sfumato.privacy.clipping import Clipped, check_range, clip_from_middle, clip_values
from sfumato.types import Array

_MOST_COUNT = 2.0**40  # of a count that nothing bounds
Cut = tuple[float, float]


def cut_for(
    channel: Response | Geometric | Additive,
    values: Array,
    bounds: Cut | None,
    *,
    changing: int = 1,
    events: bool = False,
    which: Array | None = None,
) -> Clipped:
    """What a channel's mechanism takes: whole numbers, of which so many change between neighbours.

    Each may become any other, or, where ``events`` are what is protected, the next one.
    """
    if isinstance(channel, Response):
        if bounds is None:
            raise SettingError("responses are for values with bounds")
        places = np.zeros(values.shape, np.int64) if which is None else which
        bins = channel.bins(clip_values(values, *bounds), places)
        most = float(channel.categories - 1)
        return Clipped(bins, changing * most, sqrt(changing) * most, single=changing == 1)
    if isinstance(channel, Geometric):
        steps, most = steps_of(channel, values)
        change = 1.0 if events else most
        return Clipped(steps, changing * change, sqrt(changing) * change, single=changing == 1)
    kept = clip_from_middle(values, channel.low, channel.high)
    l1, l2 = changing * kept.l1, sqrt(changing) * kept.l1
    return replace(kept, l1=l1, l2=l2, single=changing == 1)


def steps_of(channel: Geometric, values: Array) -> tuple[Array, float]:
    """Clipped values in steps from the lowest, and how many steps there are."""
    high = channel.low + _MOST_COUNT * channel.step if channel.high is None else channel.high
    check_range(channel.low, high)
    steps = np.rint((clip_values(values, channel.low, high) - channel.low) / channel.step)
    most = float(np.rint((high - channel.low) / channel.step))
    return np.clip(steps, 0, most).astype(np.int64), most
