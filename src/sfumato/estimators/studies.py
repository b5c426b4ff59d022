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
    estimator : with its privacy. Its ``trust`` is "each site" unless it is given; for one owner with
        several sites that is ``Trust("one owner", sites=...)``.
    modes : names of the modes, or modes where there is more to say than their labels. Labels of all but
        the owners' mode have to be listed in ``privacy.public.labels``: a range, or a sequence.
    sites : by name, how many levels of the owners' mode each has at most; names alone where the labels
        of owners are listed, or where all rows are released.
    bounds : public, of the values.
    entries : of all sites together, where that is public.
    """
    privacy = estimator.privacy
    if privacy is None:
        raise SettingError(f"a study between owners is private: give the estimator {setting('privacy')}")
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
    """Lead a study over the sites of a hub: the fitted estimator, to be released.

    ``folder`` keeps what was added up: led again in it, a study that was broken off goes on. Rows of
    owners stay with them. ``ledger`` and ``seed`` are for studies of one owner.
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

    Returns the estimator with the rows of this site's own owners; None where the study was broken off,
    which starting again in the same folder goes on with. ``trust_leader`` has to be said where the
    noise is the leader's.
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
