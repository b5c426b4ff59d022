"""``sf.PowerMethod``: components of a low-rank tensor, of a stream's moment, or privately of either."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from sfumato.checks import (
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_progress,
    check_seed,
    check_threads,
)
from sfumato.data import symmetric
from sfumato.data.samples import Samples, open_samples
from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError, ReleaseError, SettingError, not_fitted
from sfumato.estimators.parameters import Parametrised
from sfumato.estimators.power_plans import entry_unit, stream_plan, tensor_plan
from sfumato.estimators.power_streams import (
    OpenStream,
    PrivateStream,
    check_blocks,
    check_rereadable,
    ended_early,
    samples_each,
)
from sfumato.estimators.power_tensors import (
    as_array,
    check_values,
    open_source,
    private_source,
    share_left,
)
from sfumato.estimators.reporting import Reporting, component_parts
from sfumato.fit.choose import open_ledger
from sfumato.fit.loop import Progress, Watch
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.power import (
    Decomposition,
    Online,
    carry_out_power,
    from_stream,
    from_tensor,
    private_from_stream,
    private_from_tensor,
)
from sfumato.fit.request import Privacy
from sfumato.kernels.numba.threads import available_threads
from sfumato.models.components import Components
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.page.contents import Shown
from sfumato.sites.device import DEVICES, use_gpu
from sfumato.solvers.power.iteration import (
    PowerSettings,
    PowerState,
    components,
    usual_iterations,
    usual_restarts,
    weight_deviations,
)
from sfumato.solvers.power.moments import Moment, make_moment
from sfumato.solvers.protocol import Run
from sfumato.store import StoredComponents, load_components, save_components
from sfumato.store.reading import damage
from sfumato.typed import fits, made_of
from sfumato.types import Array

_SUBSPACE = 10  # rounds that look for the space of a stream's second moment
_NOISY_SUBSPACE = 5  # the same where every round has noise of its own
_NOISY_ITERATIONS = 10
_PRIVATE_RESTARTS = 8  # all restarts share the budget; from 5 to 20 it matters little
_NOT_SAVED = ("privacy", "progress", "threads", "device")


class PowerMethod(Parametrised, Reporting):
    """Components of a tensor sum_i w_i v_i (x) ... (x) v_i with orthogonal or independent v_i.

    Parameters
    ----------
    n_components : int
        How many to look for.
    restarts, iterations : int or None
        Random starts for each component, and power iterations from each; None for as many as theory
        asks for, and fewer where each costs privacy.
    symmetric : bool
        Whether the tensor is; else it has a vector for every mode.
    whiten
        True where components are linearly independent but not orthogonal. Of a tensor also a matrix
        sum c_i v_i v_i' with c_i > 0, such as a second moment.
    moment : str
        What a stream's tensor is: "samples", E[x (x) ... (x) x], about zero and not about the mean;
        or "documents", the moment of three different words of a document, from rows of word counts.
    order : int
        Of a stream's moment.
    samples : int or None
        For :meth:`partial_fit` and ``fit_stream(reuse=False)``, the number of samples that answer
        each question; with privacy their public number.
    features : int or None
        Of a stream, how many numbers a sample has. It shows, unless there is not a single array.
    average : bool
        Where each iteration has noise of its own, average the last half of them. False does as
        printed in the paper.
    privacy : Privacy or None
        ``Privacy(epsilon, delta, unit)``, with the unit ``TensorEntry(change)`` for a tensor and
        ``Sample(norm)`` for a stream.
    seed : int
        Of the random starts, which are public.
    threads : int or None
        For sparse tensors; None for all cores.
    device : str
        Where a tensor is multiplied by directions: "cpu", "gpu" for a GPU of NVIDIA's, or "auto" for one
        where there is one. Streams, whitened tensors and private sparse ones are left to processors.
    progress : callable or None
        Called after every question with how many are answered and how many there are; True for a bar,
        on a terminal or in a notebook, unless the stream is read once.

    Attributes
    ----------
    components_
        Unit vectors, a row for each component (of a symmetric tensor).
    factors_
        The same for every mode.
    weights_
        Their weights, in the order in which they were found.
    weight_deviations_
        Standard deviation of the noise that privacy put into them. A weight that is not larger than
        a few of these may be noise, and its component with it.
    topics_, topic_shares_
        Of documents, a topic's shares of words in each row, and the topics' shares.
    guarantee_
        What a private fit promises.
    finished_, n_samples_seen_
        Of a stream that is read once.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> truth = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 2)))[0].T
    >>> tensor = np.einsum("r,ri,rj,rk->ijk", [2.0, 1.0], truth, truth, truth)
    >>> sf.PowerMethod(2).fit(tensor).weights_.round(6)
    array([2., 1.])
    """

    def __init__(
        self,
        n_components: int,
        restarts: int | None = None,
        iterations: int | None = None,
        *,
        symmetric: bool = True,
        whiten: Any = False,
        moment: str = "samples",
        order: int = 3,
        samples: int | None = None,
        features: int | None = None,
        average: bool = True,
        privacy: Privacy | None = None,
        seed: int = 0,
        threads: int | None = None,
        device: str = "cpu",
        progress: Watch = None,
    ) -> None:
        self.n_components = n_components
        self.restarts = restarts
        self.iterations = iterations
        self.symmetric = symmetric
        self.whiten = whiten
        self.moment = moment
        self.order = order
        self.samples = samples
        self.features = features
        self.average = average
        self.privacy = privacy
        self.seed = seed
        self.threads = threads
        self.device = device
        self.progress = progress

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(two_d_array=False, three_d_array=True, sparse=True)
        return Tags(None, target_tags=TargetTags(required=False), input_tags=inputs)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_components_")

    # -- a tensor ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: ARG002
        """Decompose an array, or a sparse tensor whose absent entries are zeros.

        With privacy only the cells of a symmetric tensor are read whose levels ascend, and their values
        stand for all permutations: whether it is symmetric is not said.

        Parameters
        ----------
        X
            An array, or a sparse tensor.
        y : None
            Not used: scikit-learn hands it on.

        Returns
        -------
        Self
            This estimator, fitted.
        """
        begin = time.perf_counter()
        check_flag(symmetric=self.symmetric)
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)
        tensor = X if isinstance(X, SparseTensor) else as_array(X)
        if len(tensor.shape) < 3:
            raise DataError(
                f"a tensor has three modes or more, got {len(tensor.shape)}: rows of samples go to "
                "fit_stream; of a matrix itself take numpy.linalg.eigh or svd"
            )
        if self.symmetric:
            symmetric.check_cube(tensor.shape)
        self._forget_stream()
        if self.privacy is not None:
            self._fit_privately(tensor, self.privacy)
        else:
            self._fit_openly(tensor)
        self.fit_seconds_ = time.perf_counter() - begin
        return self

    def _fit_openly(self, tensor: Array | SparseTensor) -> None:
        check_values(tensor)
        settings = self._tensor_settings(tensor.shape)
        if self.symmetric:
            symmetric.check_symmetric(tensor)
        source, whitening = open_source(tensor, settings, self.whiten, self._threads, self._on_gpu)
        if whitening is not None:
            settings = replace(settings, sizes=source.sizes)
        with self._watched() as progress:
            answer = from_tensor(source)
            state = carry_out_power(settings, self._run, answer, progress, whitening)
        self._keep(state, None)

    @property
    def _threads(self) -> int:
        return int(self.threads or available_threads())

    @property
    def _on_gpu(self) -> bool:
        """Whether a tensor goes to a GPU; an error where it must and cannot."""
        check_choice(DEVICES, device=self.device)
        return use_gpu(self.device)

    @property
    def _run(self) -> Run:
        return Run(int(self.seed), self._threads)

    def _tensor_settings(self, shape: Sequence[int]) -> PowerSettings:
        sizes = tuple(shape[:1]) if self.symmetric else tuple(shape)
        return self._settings(sizes, len(shape), noisy=self.privacy is not None)

    def _fit_privately(self, tensor: Array | SparseTensor, privacy: Privacy) -> None:
        unit = entry_unit(privacy, symmetric=bool(self.symmetric))
        if not isinstance(self.whiten, bool | np.bool_) or self.whiten:
            raise SettingError(
                "a private decomposition of a tensor has no whitening; one of a stream of samples has"
            )
        on_gpu = self._on_gpu
        plan = tensor_plan(self._tensor_settings(tensor.shape), unit, privacy, tensor, self._run)
        ledger = open_ledger(privacy, unit)
        source = private_source(tensor, unit, self._threads, on_gpu)
        entropy = privacy.entropy()
        with self._watched() as progress:
            state = private_from_tensor(plan, source, ledger, entropy, progress)
        self._keep(state, plan.guarantee(ledger, entropy))

    # -- a stream ---------------------------------------------------------------------------------

    def fit_stream(self, X: Any, *, reuse: bool = True, columns: Sequence[str] | None = None) -> Self:
        """Decompose the moment of a stream of samples, without ever forming it; by processors.

        ``X`` is an array or memory map with a sample in every row, a SciPy sparse matrix, the path of a
        .npy or Parquet file or of a folder of Parquet files (``columns`` chooses some), a table, a list
        or iterator of arrays, or a function that returns such an iterator.

        With ``reuse`` the whole stream is read for every question; without, each is answered by the
        next ``samples`` samples, and the stream is read once. With privacy and without ``reuse`` each
        array of a list or iterator is the block of samples that answers one question: where blocks were
        cut by counting, one sample more would shift all later ones.

        Parameters
        ----------
        X
            The samples.
        reuse : bool
            Whether the stream can be read again and again.
        columns : sequence of str or None
            Those of a table that are read.

        Returns
        -------
        Self
            This estimator, fitted.
        """
        begin = time.perf_counter()
        check_flag(reuse=reuse)
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)
        samples = self._opened(X, columns, self.features)
        settings = self._stream_settings(samples.size, fresh=not reuse)
        self._forget_stream()
        if self.privacy is not None:
            self._stream_privately(samples, settings, self.privacy, reuse)
        elif reuse:
            check_rereadable(samples, settings)
            moment = make_moment(self.moment, settings.order)
            answer = from_stream(samples.batches, moment)
            with self._watched() as progress:
                state = carry_out_power(settings, self._run, answer, progress)
            self._keep(state, None)
        else:
            self._read_once(samples, settings)
        self.fit_seconds_ = time.perf_counter() - begin
        return self

    def partial_fit(self, X: Any, y: None = None) -> Self:  # noqa: ARG002
        """Use the next samples of a stream: rows of an array or of a sparse matrix.

        Every ``samples`` samples answer one question (with privacy every call is a block of samples for
        one). Components come one after the other; ``finished_`` says whether all of them are there, and
        samples after that are left unread.

        Parameters
        ----------
        X
            A sample in every row.
        y : None
            Not used: scikit-learn hands it on.

        Returns
        -------
        Self
            This estimator.
        """
        check_kind(Privacy | None, "a Privacy, or None", privacy=self.privacy)
        features = self.online_.size if hasattr(self, "online_") else self.features
        samples = self._opened(X, None, features)
        if not hasattr(self, "online_"):
            self._begin_online(samples.size)
        if not self.finished_:
            with self.online_.machine.all_or_nothing():
                self.online_.add(samples)
                self._keep(self.online_.machine.state, self.online_.guarantee)
            if self.online_.guarantee is None:  # else their number is private
                self.n_samples_seen_ = self.online_.machine.samples_seen
        return self

    def _opened(self, X: Any, columns: Sequence[str] | None, features: int | None) -> Samples:
        if features is not None:
            check_count(features=features)
        # That there is no sample at all must not show.
        return open_samples(X, columns, may_be_empty=self.privacy is not None, features=features)

    def _forget_stream(self) -> None:
        """A fit begins anew, and partial_fit after it too."""
        self.__dict__.pop("online_", None)
        self.__dict__.pop("n_samples_seen_", None)

    @property
    def finished_(self) -> bool:
        """Whether a stream has given all components."""
        return hasattr(self, "online_") and self.online_.machine.done

    def _stream_settings(self, size: int, *, fresh: bool) -> PowerSettings:
        check_flag(symmetric=self.symmetric)
        if not self.symmetric:
            raise SettingError("the moment of a stream is symmetric: leave symmetric out")
        if not isinstance(self.whiten, bool | np.bool_):
            raise SettingError("of a stream, whiten is True or False: its second moment is found")
        check_count(3, order=self.order)
        noisy = fresh or self.privacy is not None
        settings = self._settings((size,), int(self.order), noisy=noisy)
        return replace(
            settings, subspace=(_NOISY_SUBSPACE if noisy else _SUBSPACE) if self.whiten else 0
        )

    def _read_once(self, samples: Samples, settings: PowerSettings) -> None:
        self._begin_online(samples.size, samples.count)
        online = self.online_.machine
        online.add(samples.batches())
        if not online.done:
            each = samples_each(self.samples, settings, samples.count)
            seen = f"{each:,} samples, and there were {online.samples_seen:,}"
            raise ended_early(settings, online.state, seen)
        self._keep(online.state, None)
        self.n_samples_seen_ = online.samples_seen

    def _begin_online(self, size: int, count: int | None = None) -> None:
        settings = self._stream_settings(size, fresh=True)
        self.online_: OpenStream | PrivateStream
        if self.privacy is not None:
            self.online_ = self._private_online(settings, self.privacy)
        else:
            moment = make_moment(self.moment, settings.order)
            each = samples_each(self.samples, settings, count)
            machine = Online(settings, self._run, moment, each, self._told)
            self.online_ = OpenStream(size, machine)

    # -- a stream, privately ----------------------------------------------------------------------

    def _stream_privately(
        self, samples: Samples, settings: PowerSettings, privacy: Privacy, reuse: bool
    ) -> None:
        if not reuse:
            self._read_blocks(samples, settings, privacy)
            return
        check_rereadable(samples, settings)
        plan, moment = self._stream_plan(settings, privacy, reuse=True)
        ledger, entropy = open_ledger(privacy, plan.task.unit), privacy.entropy()
        with self._watched() as progress:
            state = private_from_stream(plan, samples.batches, moment, ledger, entropy, progress)
        self._keep(state, plan.guarantee(ledger, entropy))

    def _read_blocks(self, samples: Samples, settings: PowerSettings, privacy: Privacy) -> None:
        check_blocks(samples)
        online = self._private_online(settings, privacy)
        online.read(samples, settings)
        # Not before: blocks of a stream that failed, given again, would answer later questions too.
        self.online_ = online
        self._keep(online.machine.state, online.guarantee)

    @property
    def _told(self) -> Progress | None:
        """Of a stream that is read once, which has no bar: nobody knows when its samples come."""
        return None if isinstance(self.progress, bool) else self.progress

    def _private_online(self, settings: PowerSettings, privacy: Privacy) -> PrivateStream:
        plan, moment = self._stream_plan(settings, privacy, reuse=False)
        ledger, entropy = open_ledger(privacy, plan.task.unit), privacy.entropy()
        machine = Online(settings, self._run, moment, None, self._told)
        return PrivateStream.begin(plan, machine, ledger, entropy)

    def _stream_plan(
        self, settings: PowerSettings, privacy: Privacy, *, reuse: bool
    ) -> tuple[PrivatePlan[Decomposition], Moment]:
        count = privacy.public.entries if reuse else self.samples
        return stream_plan(settings, privacy, self.moment, count, self._run, reuse=reuse)

    # -- what both share --------------------------------------------------------------------------

    def _settings(self, sizes: tuple[int, ...], order: int, *, noisy: bool) -> PowerSettings:
        check_count(n_components=self.n_components)
        check_seed(seed=self.seed)
        check_flag(average=self.average)
        check_threads(self.threads)
        check_progress(self.progress)
        if self.n_components > min(sizes):
            raise SettingError(
                f"{self.n_components} components cannot be independent in {min(sizes)} dimensions: look "
                f"for at most {min(sizes)}"
            )
        restarts, iterations = self.restarts, self.iterations
        if restarts is None:
            private = self.privacy is not None
            restarts = _PRIVATE_RESTARTS if private else usual_restarts(self.n_components)
        if iterations is None:
            iterations = _NOISY_ITERATIONS if noisy else usual_iterations(sizes)
        check_count(restarts=restarts, iterations=iterations)
        counts = (int(self.n_components), int(restarts), int(iterations))
        return PowerSettings(sizes, order, *counts, average=bool(noisy and self.average))

    def _keep(self, state: PowerState, guarantee: Guarantee | None) -> None:
        self.fitted_components_ = components(state)
        self.weights_ = self.fitted_components_.weights
        self.factors_ = self.fitted_components_.factors
        self.weight_deviations_ = weight_deviations(state)
        self.guarantee_ = guarantee

    # -- what was found ---------------------------------------------------------------------------

    def _fitted(self) -> Components:
        if not hasattr(self, "fitted_components_"):
            raise not_fitted("PowerMethod", "call fit, fit_stream or partial_fit")
        return self.fitted_components_

    @property
    def components_(self) -> Array:
        """Unit vectors, a row for each component."""
        found = self._fitted()
        if not found.symmetric:
            raise AttributeError("an asymmetric tensor has components for every mode: see factors_")
        return found.vectors[0]

    @property
    def topics_(self) -> Array:
        """Components of documents as shares of words, a topic in every row."""
        self._check_documents()
        positive = np.maximum(self.components_, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        return positive / np.where(total > 0, total, 1.0)

    @property
    def topic_shares_(self) -> Array:
        """The share of documents that is about each topic."""
        self._check_documents()
        shares: Array = (
            np.maximum(self.weights_, 0.0) * np.maximum(self.components_, 0.0).sum(axis=1) ** 3
        )
        return shares / (shares.sum() or 1.0)

    def _check_documents(self) -> None:
        if self.moment != "documents":
            raise AttributeError('only moment="documents" has topics')
        self._fitted()

    def to_tensor(self) -> Array:
        """The dense tensor that the components add up to."""
        return self._fitted().to_tensor()

    def error(self, X: Any) -> float:
        """What the components leave of a tensor, as a share of its norm; no guarantee covers it.

        Parameters
        ----------
        X
            An array, or a sparse tensor.

        Returns
        -------
        float
            Zero where they are all of it.
        """
        tensor = X if isinstance(X, SparseTensor) else as_array(X)
        found = self._fitted()
        sizes = tuple(factor.shape[1] for factor in found.factors)
        if tensor.shape != sizes:
            raise DataError(f"the components are of a tensor of shape {sizes}, got {tensor.shape}")
        return share_left(found, tensor)

    # -- showing ----------------------------------------------------------------------------------

    def _shown(self) -> Shown:
        found = self._fitted()
        weights = ", ".join(f"{weight:.4g}" for weight in found.weights)
        facts = (("components", f"{len(found.weights)}"), ("weights", weights))
        title = f"Components of a{' symmetric' if found.symmetric else ''} tensor of order {found.order}"
        return Shown(title, facts, self.guarantee_, component_parts(found))

    # -- keeping ----------------------------------------------------------------------------------

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write components, weights and settings to a folder; see :func:`sfumato.load`.

        Parameters
        ----------
        folder : path
            Where to.
        force : bool
            As of :meth:`release`.

        Returns
        -------
        Path
            The folder.
        """
        if self._fitted() and self.guarantee_ is not None:
            return self.release(folder, force=force)
        stored = StoredComponents(self.fitted_components_, self._saved_settings(), None)
        return save_components(stored, folder)

    def release(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write what the guarantee covers, and nothing else.

        Where the guarantee is only claimed, or the noise came from a seed, ``force`` says that this is
        meant; the release is marked so.

        Parameters
        ----------
        folder : path
            Where to.
        force : bool
            Release what is claimed only, or seeded.

        Returns
        -------
        Path
            The folder.
        """
        found = self._fitted()
        if self.guarantee_ is None:
            raise ReleaseError("this is not private: fit it with privacy=... to release it")
        self.guarantee_.check_releasable(force)
        settings = {**self._saved_settings(), "weight_deviations": self.weight_deviations_.tolist()}
        return save_components(StoredComponents(found, settings, self.guarantee_), folder)

    def _saved_settings(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.get_params().items() if name not in _NOT_SAVED}
        if not isinstance(self.whiten, bool | np.bool_):  # a matrix of data
            del kept["whiten"]
        return kept

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> PowerMethod:
        """What :meth:`save` or :meth:`release` wrote.

        Parameters
        ----------
        folder : path
            That was saved or released.

        Returns
        -------
        PowerMethod
            As it was saved.
        """
        stored = load_components(folder)
        size = len(stored.components.weights)
        settings = {k: value for k, value in stored.settings.items() if k not in _NOT_SAVED}
        deviations = settings.pop("weight_deviations", [0.0] * size)
        with damage(Path(folder)):
            method = made_of(cls, settings, "its settings")
            if not fits(deviations, list[float]) or len(deviations) != size:
                raise ValueError("its weights and their deviations do not fit each other")
            if not isinstance(method.whiten, bool):
                raise TypeError("the setting whiten is neither true nor false")
        found = stored.components
        method.fitted_components_, method.guarantee_ = found, stored.guarantee
        method.weights_, method.factors_ = found.weights, found.factors
        method.weight_deviations_ = np.array(deviations, np.float64)
        return method
