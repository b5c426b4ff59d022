"""The rank, chosen by the evidence lower bound of variational Bayes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from sfumato.checks import check_count, check_threads, shown
from sfumato.data.relations import Relations
from sfumato.data.tensor import SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.completion import Fit, carry_out
from sfumato.fit.plan import Plan
from sfumato.models.gamma_posterior import GammaPosterior
from sfumato.sites.coupled import CoupledSite
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.coupled.variational import Variational
from sfumato.solvers.protocol import Run


class RankChoice(NamedTuple):
    """The rank with the largest bound, the bound of every rank, and the posterior at the best one."""

    best: int
    bounds: dict[int, float]
    posterior: GammaPosterior


def choose_rank(
    relations: Relations | Mapping[str, SparseTensor],
    ranks: Iterable[int] = range(1, 7),
    solver: Variational | None = None,
    *,
    starts: int = 2,
    seed: int = 0,
    threads: int = 1,
) -> RankChoice:
    """Fit every rank from several random starts and compare their bounds.

    The bound prefers too few components to too many where the data are sparse: what they do not show
    is not there. It looks at the data, so a private fit must not use it.

    Parameters
    ----------
    relations : Relations or mapping
        The tensors by name.
    ranks : sequence of int
        Those to try.
    solver : Variational or None
        With settings of your own.
    starts : int
        Random starts for each rank.
    seed : int
        Of the starts.
    threads : int
        For each fit.

    Returns
    -------
    RankChoice
        The ``best`` rank, and the ``bounds`` of all.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> rng = np.random.default_rng(0)
    >>> users, words = rng.gamma(0.3, size=(40, 2)), rng.gamma(0.3, size=(30, 2))
    >>> posts = sf.read(
    ...     rng.poisson(8 * users @ words.T).astype(float), modes=["user", "word"]
    ... )
    >>> sf.choose_rank({"posts": posts}, range(1, 4)).best
    2
    """
    method = Variational() if solver is None else solver
    if not isinstance(method, Variational):
        raise SettingError(f"only variational Bayes has a bound to choose by, got {shown(method)}")
    try:
        given = list(ranks)
    except TypeError:  # also an array without a dimension, which says that it can be gone through
        given = []
    if not given:
        raise SettingError(f"give ranks to choose from, such as range(1, 7), got {shown(ranks)}")
    check_count(**{f"rank {shown(rank)}": rank for rank in given})
    check_threads(threads)
    tried = list(dict.fromkeys(given))
    coupled = relations if isinstance(relations, Relations) else Relations(relations)
    for relation in coupled.values():
        method.check_relation(relation)
    site = Local(CoupledSite(coupled, threads, np.dtype(np.float64)))
    fits = dict[int, Fit]()
    for rank in tried:
        shape = CoupledShape.of(coupled, int(rank))
        fits[rank] = carry_out(Plan(shape, method, Run(seed, threads), starts), site)
    bounds = {rank: -float(fit.history[-1].objective or 0.0) for rank, fit in fits.items()}
    best = max(bounds, key=lambda rank: bounds[rank])
    return RankChoice(best, bounds, fits[best].posterior)
