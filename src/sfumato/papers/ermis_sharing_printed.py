"""What paper E prints in its tables 7.2, 7.3, 7.6 and 7.7: RMSE over N sites, by method and epsilon.

CDP is Algorithm 1 (site or user says which factors are noised; it protects one record in both, if
anything), LDP1 and LDP2 add noise to the records; AC and zCDP are Algorithm 2 by how it is accounted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OTHER_DATA = ("Netflix", "Flickr")  # which are not to be had
Column = tuple[int, str]  # number of sites, and which of them is scored


class Printed(NamedTuple):
    """A row; ``epsilon`` is None where there is no privacy."""

    name: str
    epsilon: float | None
    values: dict[Column, float]


_EPSILONS_7_2 = (None, 1.0, 0.1, 0.05)
_PAIRS_7_2 = {
    "CDP": ((0.831, 0.719), (0.930, 0.737), (1.419, 1.224), (1.866, 1.631)),
    "LDP1": ((0.831, 0.719), (1.032, 0.914), (1.826, 1.511), (2.164, 1.992)),
    "LDP2": ((0.861, 0.717), (1.026, 0.882), (1.695, 1.362), (1.992, 1.831)),
    "Netflix CDP": ((0.775, 0.802), (0.902, 0.933), (1.354, 1.419), (1.683, 1.812)),
    "Netflix LDP1": ((0.775, 0.802), (0.945, 0.973), (1.598, 1.654), (1.905, 1.972)),
    "Netflix LDP2": ((0.799, 0.827), (0.950, 0.985), (1.405, 1.468), (1.751, 1.835)),
}

_SITES_7_3 = range(2, 11)
_ROWS_7_3 = {
    "CDP": (0.865, 0.764, 0.680, 0.612, 0.571, 0.544, 0.520, 0.502, 0.480),
    "LDP1": (1.075, 0.952, 0.856, 0.774, 0.729, 0.686, 0.648, 0.611, 0.574),
    "LDP2": (1.020, 0.809, 0.720, 0.641, 0.593, 0.564, 0.545, 0.524, 0.506),
    "Netflix CDP": (0.785, 0.682, 0.596, 0.539, 0.486, 0.465, 0.451, 0.440, 0.430),
    "Netflix LDP1": (1.016, 0.905, 0.804, 0.725, 0.688, 0.641, 0.603, 0.579, 0.567),
    "Netflix LDP2": (0.906, 0.765, 0.673, 0.598, 0.545, 0.506, 0.487, 0.470, 0.459),
}

_EPSILONS_7_6 = (None, 10.0, 1.0, 0.1)
_ROWS_7_6 = {
    "zCDP user": (0.96, 1.05, 1.39, 1.87),
    "Hua et al.": (0.93, 1.25, 1.48, 2.01),
    "Liu et al.": (0.93, 1.18, 1.46, 2.05),
    "Flickr zCDP user": (0.37, 0.51, 0.74, 1.02),
    "Flickr Hua et al.": (0.39, 0.55, 0.80, 1.10),
    "Flickr Liu et al.": (0.37, 0.52, 0.75, 1.02),
}

_SITES_7_7 = (1, 2, 5, 10)
_ROWS_7_7: dict[tuple[str, float | None], tuple[float, ...]] = {
    ("no privacy", None): (0.96, 0.89, 0.81, 0.74),
    ("AC site", 10.0): (1.11, 1.02, 0.94, 0.88),
    ("AC site", 1.0): (1.44, 1.33, 1.22, 1.14),
    ("AC site", 0.1): (2.05, 1.90, 1.78, 1.67),
    ("AC user", 10.0): (1.19, 1.10, 1.01, 0.95),
    ("AC user", 1.0): (1.62, 1.39, 1.28, 1.20),
    ("AC user", 0.1): (2.26, 2.09, 1.93, 1.81),
    ("zCDP site", 10.0): (1.01, 0.92, 0.83, 0.77),
    ("zCDP site", 1.0): (1.30, 1.18, 1.07, 0.98),
    ("zCDP site", 0.1): (1.72, 1.59, 1.46, 1.37),
    ("zCDP user", 10.0): (1.05, 0.96, 0.87, 0.81),
    ("zCDP user", 1.0): (1.39, 1.27, 1.15, 1.08),
    ("zCDP user", 0.1): (1.87, 1.72, 1.57, 1.49),
}


def _over_sites(sites: Iterable[int], values: Sequence[float]) -> dict[Column, float]:
    return {(n, "X1"): value for n, value in zip(sites, values, strict=True)}


PRINTED: dict[str, tuple[Printed, ...]] = {
    "table 7.2": tuple(
        Printed(name, epsilon, {(2, "X1"): first, (2, "X2"): second})
        for name, pairs in _PAIRS_7_2.items()
        for epsilon, (first, second) in zip(_EPSILONS_7_2, pairs, strict=True)
    ),
    "table 7.3": tuple(
        Printed(name, 1.0, _over_sites(_SITES_7_3, values)) for name, values in _ROWS_7_3.items()
    ),
    "table 7.6": tuple(
        Printed(name, epsilon, {(1, "X1"): value})
        for name, values in _ROWS_7_6.items()
        for epsilon, value in zip(_EPSILONS_7_6, values, strict=True)
    ),
    "table 7.7": tuple(
        Printed(name, epsilon, _over_sites(_SITES_7_7, values))
        for (name, epsilon), values in _ROWS_7_7.items()
    ),
}
