"""``sf.refit``: a site's own model, fitted to its raw data with a release as prior."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from sfumato.checks import check_kind, check_seed, check_threads
from sfumato.data import prepare
from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.completion import CP
from sfumato.estimators.of_losses import check_squared
from sfumato.estimators.predicting import owners_mode, read_own
from sfumato.fit.own import among_levels
from sfumato.fit.refit import Given
from sfumato.fit.refit import refit as fit_again
from sfumato.kernels.numba.threads import available_threads
from sfumato.metrics import rmse
from sfumato.models.multilinear import CPModel
from sfumato.solvers.protocol import Run


def refit(
    model: TensorEstimator,
    own: Any,
    *,
    own_mode: str | None = None,
    own_value: str | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> CP:
    """A model of a site's own raw data, with a release as prior. It is not private: keep it at the site.

    Rows and biases of all modes are fitted to the site's entries. Those of shared modes, such as items,
    shrink towards what the release says of them, as far as that proves right; a tenth of the entries is
    held out to choose between this, a fit without the release, and how much of the release as it is to
    mix in. A large site so loses next to nothing, and a small one gains.

    Parameters
    ----------
    model : TensorEstimator
        A fitted CP model or bias predictor, such as ``sf.load`` makes of a release.
    own
        The site's entries: a tensor, or a table or file with a column of labels per mode and one of
        values. Labels of shared modes have to be known to the model; several entries at one cell are
        merged as its ``duplicates`` says.
    own_mode : str or None
        The mode whose levels are the site's own: the one whose rows stay with their owners; where there
        is none, by default the first.
    own_value : str or None
        Names the column of values, where there are more.
    seed : int
        Of the start and of what is held out.
    threads : int or None
        All cores by default.

    Returns
    -------
    CP
        It has no guarantee and no ``release``. Its ``refit_`` says what was chosen, and by which errors
        at held-out entries.

    Examples
    --------
    >>> import sfumato as sf
    >>> mine, others = sf.synthetic.ratings_like(60, 40, 5, 2000).split(
    ...     0.8, by="user"
    ... )
    >>> public = sf.Public(labels=True, units=60, entries=2000)
    >>> shared = sf.CP(
    ...     privacy=sf.Privacy(3, unit="entry", local="user", public=public)
    ... ).fit(others)
    >>> model = sf.refit(shared, mine)
    >>> model.guarantee_ is None, sorted(model.refit_)
    (True, ['errors', 'informed', 'weight'])
    """
    check_kind(TensorEstimator, "a fitted model, such as sf.load gives", model=model)
    check_seed(seed=seed)
    check_threads(threads)
    release, begin = model._fitted(), time.perf_counter()
    if not isinstance(release, CPModel):
        raise SettingError("a site refits CP models and bias predictors: this is a Tucker model")
    check_squared("refitting", model.loss)
    mode = owners_mode(model.modes_, model.local_, own_mode)
    entries = read_own(own, own_value, model.modes_, model.bounds_, None)
    tensor = among_levels(model.modes_, mode, entries, np.float64)
    tensor = prepare.merge_duplicates(tensor, model.duplicates)
    run = Run(int(seed), int(threads or available_threads()))
    says_something = release.rows.any() or release.biases.any()
    prior = model._prior_of(mode) if says_something else None
    found = fit_again(Given(release, prior, mode, tensor, model.bounds_, run))
    made = CP(unseen=model.unseen, seed=seed, threads=threads)
    made.model_, made.modes_, made.bounds_ = found.model, tensor.modes, model.bounds_
    made.history_, made.n_entries_ = (), tensor.n_entries
    made.guarantee_ = made.local_ = made.own_prior_ = None
    made.refit_ = asdict(found.chosen)
    made.scatter_ = rmse(tensor.values, found.model.predict(tensor.coordinates)) ** 2
    made.fit_seconds_ = time.perf_counter() - begin
    return made
