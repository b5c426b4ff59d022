"""Kernels of cells against their readable twins, on owners of any kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.synthetic import uniform_tensor
from sfumato.kernels.numba.contributions import Entries, Taken
from sfumato.kernels.numba.moments import (
    Centring,
    Shortening,
    centred_rests,
    moment_of_cells,
    project_cells,
)
from sfumato.kernels.reference.moments import (
    centred_rests_reference,
    moment_of_cells_reference,
    project_cells_reference,
)
