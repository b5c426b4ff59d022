"""Numbers on a fine grid, for tests that release some."""

import numpy as np

from sfumato.privacy.clipping import Clipped

STEP = 2.0**-24


def on_grid(values, l1, l2, step=STEP, **others):
    """Numbers rounded to a grid, with the bounds that they are said to have."""
    return Clipped(np.rint(np.asarray(values) / step).astype(np.int64), l1, l2, step, **others)
