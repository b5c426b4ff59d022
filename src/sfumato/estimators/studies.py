"""Studies between owners, from estimators and back: planned, led, and taken part in.

study = sf.make_study(sf.CP(privacy=...), ["user", "item"], {"north": 2000, "south": 900}, bounds=(1, 5))
model = sf.lead(study, hub, "lead/")                        # by whoever leads
own = sf.take_part(study, "north", ratings, serve, "own/")  # by every owner
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from os import PathLike
from typing import Any, NamedTuple

from sfumato.checks import check_kind, shown
from sfumato.data.shards import Shards
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators.base import NOT_SAVED, TensorEstimator
from sfumato.estimators.completion import CP, Biases, Tucker
from sfumato.estimators.of_losses import check_squared
from sfumato.fit.loop import Progress
from sfumato.fit.request import Privacy
from sfumato.owners.hub import Handler, Hub
from sfumato.owners.leading import Patience, Watch
from sfumato.owners.leading import lead as lead_study
from sfumato.owners.participant import Participant
from sfumato.owners.study import Member, Study, members_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.trust import ONE_OWNER, Trust
from sfumato.surface import either, setting

_ESTIMATORS: dict[str, type[TensorEstimator]] = {"CP": CP, "Tucker": Tucker, "Biases": Biases}


class _Agreed(NamedTuple):
    modes: tuple[Mode, ...]
    bounds: tuple[float, float] | None
    n_entries: int | None = None


# -- planning -------------------------------------------------------------------------------------


def make_study(
    estimator: TensorEstimator,
    modes: Sequence[str | Mode],
    sites: Mapping[str, int] | Sequence[str],
    *,
    bounds: tuple[float, float],
    entries: int | None = None,
) -> Study:
    """What owners agree on: the plan of a private fit over their data, without any of it.

    Parameters
    ----------
    estimator : TensorEstimator
        With its privacy. Its ``trust`` is "each site" unless it is given; for one owner with several
        sites that is ``Trust("one owner", sites=...)``.
    modes : sequence of str or Mode
        Names of the modes, or modes where there is more to say than their labels. Labels of all but
        the owners' mode have to be listed in ``privacy.public.labels``: a range, or a sequence.
    sites : mapping or sequence of str
        By name, how many levels of the owners' mode each has at most; names alone where the labels
        of owners are listed, or where all rows are released.
    bounds : pair of float
        Public, of the values.
    entries : int or None
        Of all sites together, where that is public.

    Returns
    -------
    Study
        To be saved, and sent to all who take part.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(labels={"item": range(20)})
    >>> privacy = sf.Privacy(1.0, unit="entry", local="user", public=public)
    >>> sites = {"north": 40, "south": 40}
    >>> study = sf.make_study(
    ...     sf.CP(privacy=privacy), ["user", "item"], sites, bounds=(1, 5)
    ... )
    >>> print(study.in_words())
    user 80 x item 20: CP of rank 1 with a mean and biases, float64; private
        biases, within epsilon 1 for one entry, its presence included.
      1 x constant: Laplace, noise multiplier 11; 0.091 of the budget
      1 x spread: Laplace, noise multiplier 22; 0.045 of the budget
      1 x entries by item: Laplace, noise multiplier 5.79; 0.17 of the budget
      2 x residuals by item: Laplace, noise multiplier 2.9; 0.69 of the budget
    2 sites: north (40 user at most), south (40 user at most).
    Trust: each site. You have to trust each site with its own data and nobody
        else's: it adds all of the noise before an answer leaves it, so that
        neither whoever runs the fit nor any other site has to be trusted.
    """
    privacy = estimator.privacy
    if privacy is None:
        raise SettingError(f"a study between owners is private: give the estimator {setting('privacy')}")
    privacy.check_no_intervals("a study between owners")
    names = [mode if isinstance(mode, str) else mode.name for mode in modes]
    members = members_of(sites, "owners")
    privacy = _over(privacy, members)
    if privacy.seed is not None and privacy.trust.kind != "one owner":
        raise SettingError("sites draw noise of their own, which nobody can seed: leave the seed out")
    if privacy.ledger is not None or privacy.sampler != "sfumato":
        raise SettingError(
            f"leave out {setting('ledger')}, {setting('limit')} and {setting('sampler')}: each site has "
            "a ledger of its own, and draws with sfumato's samplers"
        )
    known = tuple(_mode(mode, privacy) for mode in modes)
    check_squared("a study between owners", estimator.loss)
    planned = type(estimator)(**{**estimator.get_params(), "privacy": privacy})
    plan: Any = planned.plan(known, bounds=bounds, entries=entries)
    labels = tuple(_labels_of(name, privacy, plan.task.facts.local, names) for name in names)
    settings = {k: v for k, v in estimator.get_params().items() if k not in NOT_SAVED}
    study = Study(type(estimator).__name__, settings, plan, labels, members, version("sfumato"))
    study.check()
    return study


def _over(privacy: Privacy, members: tuple[Member, ...]) -> Privacy:
    """The same privacy for just these sites."""
    trust, public = privacy.trust, privacy.public
    if trust == ONE_OWNER:
        trust = Trust("each site", len(members))
    if trust.sites != len(members):
        raise SettingError(
            f"{setting('trust')} is for {trust.sites:,} sites, and there are {len(members):,}"
        )
    owners = members[-1].last
    if owners:
        if public.units not in (None, owners):
            raise SettingError(
                f"there are {owners:,} owners at all sites together: leave out "
                + either("Public(units=...)", "--public-units")
            )
        public = replace(public, units=owners)
    return replace(privacy, trust=trust, public=public)


def _mode(mode: str | Mode, privacy: Privacy) -> Mode:
    """A mode of a study; levels that are not listed are counted elsewhere."""
    public = privacy.public
    if isinstance(mode, Mode):
        return mode
    if public.lists(mode):
        return Mode(mode, len(public.listed(mode)))
    return Mode(mode, public.units or 2)


def _labels_of(
    name: str, privacy: Privacy, local: int | None, names: Sequence[str]
) -> tuple[str | int, ...] | None:
    public = privacy.public
    if public.lists(name):
        listed = public.listed(name)
        if isinstance(listed, range) and listed == range(len(listed)):
            return None
        return tuple(int(label) if isinstance(label, int) else str(label) for label in listed)
    if local is None or names[local] != name:
        raise SettingError(
            f"owners have to agree on the labels of {name}: list them, "
            + either(f"Public(labels={{{name!r}: [...]}})", f"--public-labels {name}=FILE")
        )
    if public.units is None:
        raise SettingError(f"say how many {name} each site has at most: sites={{'north': 1000, ...}}")
    return None


# -- carrying it out ------------------------------------------------------------------------------


def lead(
    study: Study,
    hub: Hub,
    folder: str | PathLike[str],
    *,
    patience: Patience | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    watch: Callable[[Watch], None] | None = None,
) -> TensorEstimator:
    """Lead a study over the sites of a hub. Rows of owners stay with them.

    Parameters
    ----------
    study : Study
        That all have agreed on.
    hub : Hub
        What reaches the sites.
    folder : path
        Keeps what was added up: led again in it, a study that was broken off goes on.
    patience : Patience or None
        How long to wait for sites.
    ledger, seed
        For studies of one owner.
    progress : callable or None
        Called as ``progress(round, rounds, info)``.
    watch : callable or None
        Hears which sites are there.

    Returns
    -------
    TensorEstimator
        Fitted, to be released.

    Examples
    --------
    >>> import sfumato as sf
    >>> from sfumato.owners.hub import InProcess
    >>> from sfumato.owners.participant import Participant
    >>> tensor = sf.prepare.clip(
    ...     sf.synthetic.cp((80, 20), 1, entries=800).tensor, (-3, 3)
    ... )
    >>> public = sf.Public(labels={"mode1": range(20)}, entries=800)
    >>> privacy = sf.Privacy(
    ...     9, 1e-6, unit="entry", method="bias", local="mode0", public=public
    ... )
    >>> sites = {"north": 80, "south": 80}
    >>> study = sf.make_study(
    ...     sf.CP(privacy=privacy), ["mode0", "mode1"], sites, bounds=(-3, 3)
    ... )
    >>> parts = dict(zip(sites, tensor.split(0.5, by="mode0")))
    >>> hub = InProcess(
    ...     {
    ...         name: Participant(study, name, part, name)
    ...         for name, part in parts.items()
    ...     }
    ... )
    >>> sf.lead(study, hub, "leader").guarantee_.trust
    "each site with its own data and nobody else's: it adds all of the noise
        before an answer leaves it, so that neither whoever runs the fit nor any
        other site has to be trusted"
    """
    from sfumato.privacy.entropy import Entropy

    check_kind(Study, "a Study", study=study)
    made, guarantee = lead_study(
        study,
        hub,
        folder,
        patience=patience,
        ledger=ledger,
        entropy=Entropy(seed),
        progress=progress,
        watch=watch,
    )
    estimator = _estimator(study)
    estimator.adopt(made, _Agreed(study.modes, study.facts.bounds), guarantee, study.facts.local)
    return estimator


def take_part(
    study: Study,
    name: str,
    entries: SparseTensor | Shards,
    serve: Callable[[Handler], None],
    folder: str | PathLike[str],
    *,
    ledger: str | PathLike[str] | None = None,
    limit: Budget | None = None,
    threads: int = 1,
    trust_leader: bool = False,
    tell: Callable[[int, int], None] | None = None,
) -> TensorEstimator | None:
    """Take part as one of the sites: ``serve`` answers the leader until the study is over.

    Parameters
    ----------
    study : Study
        That all have agreed on.
    name : str
        Of this site.
    entries : SparseTensor or Shards
        What lies here.
    serve : callable
        Is given a function that answers messages, and comes back when the study is over.
    folder : path
        Keeps what has happened.
    ledger : path or None
        File of this site's own spending.
    limit : Budget or None
        What that may reach.
    threads : int
        For answers.
    trust_leader : bool
        Has to be said where the noise is the leader's.
    tell : callable or None
        Hears how many questions were answered, and of how many.

    Returns
    -------
    TensorEstimator or None
        With the rows of this site's own owners; None where the study was broken off, which starting
        again in the same folder goes on with.

    Examples
    --------
    A site whose leader goes away before asking anything:

    >>> import sfumato as sf
    >>> public = sf.Public(labels={"mode1": range(20)}, entries=400)
    >>> privacy = sf.Privacy(9, unit="entry", local="mode0", public=public)
    >>> modes, sites = ["mode0", "mode1"], {"north": 40, "south": 40}
    >>> study = sf.make_study(sf.CP(privacy=privacy), modes, sites, bounds=(-9, 9))
    >>> entries = sf.synthetic.cp((40, 20), 1, entries=200).tensor
    >>> sf.take_part(
    ...     study, "north", entries, serve=lambda answer: None, folder="north"
    ... ) is None
    True
    """
    check_kind(Study, "a Study", study=study)
    check_kind(SparseTensor | Shards, "a SparseTensor, or Shards", entries=entries)
    with Participant(
        study,
        name,
        entries,
        folder,
        ledger=ledger,
        limit=limit,
        threads=threads,
        trust_leader=trust_leader,
        tell=tell,
    ) as participant:
        serve(participant)
        return own_estimator(participant)


def own_estimator(participant: Participant) -> TensorEstimator | None:
    """What a site ends with."""
    if participant.made is None:
        return None
    study = participant.study
    estimator = _estimator(study)
    agreed = _Agreed(participant.modes, study.facts.bounds)
    estimator.adopt(participant.made, agreed, participant.guarantee(), study.facts.local)
    return estimator


def _estimator(study: Study) -> TensorEstimator:
    try:
        return _ESTIMATORS[study.model](**study.settings)
    except (KeyError, TypeError) as error:
        raise SettingError(f"a study cannot be of {shown(study.model)}: {error}") from error
