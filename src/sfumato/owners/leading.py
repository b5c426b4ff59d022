"""The leader's side of a study: rounds over sites that somebody else runs.

:class:`OwnersEngine` is an engine like the others: a fit puts its questions to it. No question travels.
Sites are told what was released and work the next question out; its digest alone is compared.

What was added up in a round, and over which sites, is in the leader's journal before anybody hears of
it: a leader that was killed goes on where it was, and no round is ever added up over two sets of sites.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sfumato.checks import check_count, check_positive, given
from sfumato.engines.protocol import Engine
from sfumato.errors import SettingError, SiteLostError
from sfumato.fit.completion import PrivateFit, carry_out_private
from sfumato.fit.loop import Progress
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Shape
from sfumato.owners.holding import nobody
from sfumato.owners.hub import Answers, Hub
from sfumato.owners.journal import Journal
from sfumato.owners.masks import Revealed, opened_sum
from sfumato.owners.messages import (
    BEGIN,
    END,
    JOIN,
    OPEN,
    ROUND,
    Begin,
    Begun,
    Differs,
    End,
    Ended,
    Join,
    Joined,
    Masked,
    Open,
    RefusedError,
    Round,
    Sums,
    digest_of,
    out_of_row,
    read,
)
from sfumato.owners.study import Study
from sfumato.privacy.clipping import Clipped, combine
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Draw, Ledger
from sfumato.privacy.mechanisms import Laplace, Noisy, NoisyShare
from sfumato.privacy.trust import ONE_OWNER, Trust
from sfumato.records import record
from sfumato.solvers.protocol import PrivateQuery, Query, SumQuery
from sfumato.types import Array
from sfumato.wire import to_wire

JOURNAL = "journal"  # file of a leader's folder
_GREETING = 1.0  # seconds that a site which was lost has to say that it is back
_AGAIN = 0.2  # seconds before whoever did not answer is asked again
_KINDS: dict[str, Any] = {"one owner": Clipped, "each site": NoisyShare, "secure shares": Masked}


@record
@dataclass(frozen=True)
class Led:
    """The first entry of a leader's journal; ``run`` is what sites and its ledger know it by."""

    study: str
    run: str


@record
@dataclass(frozen=True)
class AddedOver:
    """The one set of sites that a round is added up over."""

    number: int
    present: tuple[str, ...]


@record
@dataclass(frozen=True)
class Released:
    """What came of a round."""

    number: int
    noisy: Noisy


class Watch(NamedTuple):
    """What a person wants to see of a fit that is waiting: which round, and for whom."""

    round: int
    rounds: int
    waiting: tuple[str, ...]


@dataclass(frozen=True)
class Patience:
    """How long a leader waits.

    Parameters
    ----------
    answer : seconds that sites have for one answer before they are asked again.
    lost : seconds after which a site that has not answered is lost.
    least : sites that have to answer; the fit goes on without the others. None for all of them, or with
        secure shares for as many as the noise needs.
    """

    answer: float = 60.0
    lost: float = 600.0
    least: int | None = None

    def __post_init__(self) -> None:
        check_positive(answer=self.answer, lost=self.lost)
        check_count(**given(least=self.least))


class OwnersEngine(Engine):
    """The sites of several owners, through a hub."""

    def __init__(
        self,
        study: Study,
        hub: Hub,
        journal: Journal,
        patience: Patience | None = None,
        watch: Callable[[Watch], None] | None = None,
    ) -> None:
        study.check()
        if set(hub.sites) != set(study.sites):
            raise SettingError(
                f"the study is of {', '.join(study.sites)}, and reached are {', '.join(hub.sites)}"
            )
        self.study, self._hub, self._journal = study, hub, journal
        self._patience, self._watch = patience or Patience(), watch
        self._least = self._checked_least()
        self._asked = 0  # rounds, in this process
        self._told: dict[str, int] = {}  # rounds whose release a site knows
        self._differs: set[str] = set()  # who comes to other bits, and is sent what the leader has
        self._away: set[str] = set()  # who was lost, and is not waited for
        self._nobody = nobody(study)
        self._restart()

    def _checked_least(self) -> int:
        trust, least, sites = self.study.facts.trust, self._patience.least, len(self.study.sites)
        secure = trust.kind == "secure shares"
        enough = least if least is not None else trust.least_present if secure else sites
        if not 1 <= enough <= sites or (secure and enough < trust.least_present):
            raise SettingError(
                f"a round cannot be added up over {enough:,} of {sites:,} sites"
                + (f": the noise needs {trust.least_present:,}" if secure else "")
            )
        if trust.kind == "one owner" and enough < sites:
            raise SettingError("with one owner's noise all sites have to answer: leave least out")
        return enough

    def _restart(self) -> None:
        led = self._journal.of(Led)
        if led and led[0].study != self.study.digest:
            raise SettingError(f"{self._journal.path} belongs to another study: name another folder")
        if not led:
            led = [Led(self.study.digest, os.urandom(16).hex())]
            self._journal.append(led[0])
        self.run: str = led[0].run
        self._released: list[Noisy] = [entry.noisy for entry in self._journal.of(Released)]
        self._over = {entry.number: entry.present for entry in self._journal.of(AddedOver)}

    @property
    def sites(self) -> tuple[str, ...]:
        return self.study.sites

    # -- beginning --------------------------------------------------------------------------------

    def gather(self) -> None:
        """See that sites are there with the same study, and hand out keys where sums are secure.

        All of them, when it begins; later as many as it takes to go on.
        """
        begun, known = bool(self._released), self._journal.of(Begin)
        least = self._least if begun else len(self.sites)
        message = to_wire(Join(self.study.digest))
        joined = self._insist(JOIN, lambda names: dict.fromkeys(names, message), Joined, 0, least=least)
        if self.study.facts.trust.kind != "secure shares":
            return
        if not known:
            keys = {name: each.key or "" for name, each in joined.items()}
            known = [Begin(keys, self.run)]
            self._journal.append(known[0])
        begin = to_wire(known[0])
        self._insist(BEGIN, lambda names: dict.fromkeys(names, begin), Begun, 0, tuple(joined), least)

    def check_shape(self, shape: Shape) -> None:
        if shape != self.study.facts.shape:
            raise SettingError("sites have agreed on a plan of another shape")

    def check_trust(self, trust: Trust) -> None:
        if trust != self.study.facts.trust:
            raise SettingError("sites have agreed on another trust")

    # -- rounds -----------------------------------------------------------------------------------

    def released(self, query: PrivateQuery, draw: Draw, trust: Trust = ONE_OWNER) -> Noisy:
        """What is released of a round; of one that was added up before, what was."""
        self.check(query)
        number, self._asked = self._asked, self._asked + 1
        if not isinstance(query, SumQuery):
            raise SettingError(f"a {type(query).__name__} does not add up over sites")
        if number < len(self._released):
            if trust.kind == "one owner":  # so that seeded noise goes on where it was
                draw.release(query.clipped(self._nobody))
            return self._released[number]
        noisy = self._added_up(number, query, draw, trust)
        self._journal.append(Released(number, noisy))
        self._released.append(noisy)
        return noisy

    def _added_up(self, number: int, query: SumQuery, draw: Draw, trust: Trust) -> Noisy:
        given = self._collect(number, query)
        nothing = query.clipped(self._nobody)
        _check_alike(given, nothing)
        if number not in self._over:
            self._journal.append(AddedOver(number, tuple(sorted(given))))
            self._over[number] = tuple(sorted(given))
        parts = [given[name] for name in self._over[number]]
        if trust.kind == "one owner":
            return draw.release(combine([nothing, *parts]))
        if trust.kind == "secure shares":
            values, public = out_of_row(self._unmasked(number, given), nothing)
            together = NoisyShare(values, 0.0, nothing.step, public)
        else:
            together = reduce(add, parts)
        # As the plan has it, not as sites say.
        bound = nothing.l1 if isinstance(draw.mechanism, Laplace) else nothing.l2
        deviation = trust.total_deviation(draw.mechanism, bound, len(parts))
        return replace(together.opened(), deviation=deviation)

    def _collect(self, number: int, query: SumQuery) -> dict[str, Any]:
        """The answers of a round: of all sites, or of those that it was begun with."""
        self._welcome_back()
        wanted = self._over.get(number, self.sites)
        least = len(wanted) if number in self._over else self._least

        question = digest_of(query)

        def messages(names: Sequence[str]) -> dict[str, bytes]:
            return {name: self._round_for(name, number, question, query) for name in names}

        kind = _KINDS[self.study.facts.trust.kind]
        return self._insist(ROUND, messages, kind, number, wanted, least)

    def _round_for(self, name: str, number: int, question: str, query: SumQuery) -> bytes:
        first = min(self._told.get(name, 0), number)
        parameters = query if name in self._differs else None
        released = tuple(self._released[first:number])
        return to_wire(Round(number, first, released, question, parameters))

    def _unmasked(self, number: int, given: Mapping[str, Masked]) -> Array:
        """The sum behind masked answers. Every site in it has to help: there is no sum over fewer."""
        present = self._over[number]
        message = to_wire(Open(number, present))
        revealed = self._insist(
            OPEN, lambda names: dict.fromkeys(names, message), Revealed, number, present, len(present)
        )
        return opened_sum({name: given[name].values for name in present}, revealed)

    # -- asking until there is an answer ----------------------------------------------------------

    def _insist(
        self,
        topic: str,
        messages: Callable[[Sequence[str]], Mapping[str, bytes]],
        kind: type,
        number: int,
        wanted: Sequence[str] | None = None,
        least: int | None = None,
    ) -> dict[str, Any]:
        """Answers of at least so many sites; whoever is late is asked again until they are lost.

        Sites that were lost before are left out, unless they are needed.
        """
        names = tuple(wanted or self.sites)
        needed, given = len(names) if least is None else least, dict[str, Any]()
        end = time.monotonic() + self._patience.lost
        while waiting := self._waited_for(names, given, needed):
            left = max(0.01, min(self._patience.answer, end - time.monotonic()))
            answers = self._hub.ask(topic, messages(waiting), left)
            _refuse(answers, number)
            self._take(answers, kind, number, given)
            waiting = self._waited_for(names, given, needed)
            behind = any(name in answers.given for name in waiting)  # and is told more at once
            if waiting and time.monotonic() >= end:
                self._away |= set(waiting)
                break
            if waiting and not behind:
                self._tell(number, waiting)
                time.sleep(min(_AGAIN, max(0.0, end - time.monotonic())))
        if len(given) < needed:
            missing = ", ".join(name for name in names if name not in given)
            raise SiteLostError(
                f"in round {number + 1:,} {missing} did not answer within {self._patience.lost:g} "
                "seconds. What was charged stays charged: start whoever is missing and lead again in "
                "the same folder, which goes on where it was"
            )
        return given

    def _waited_for(self, names: Sequence[str], given: Mapping[str, Any], needed: int) -> list[str]:
        missing = [name for name in names if name not in given]
        close = [name for name in missing if name not in self._away]
        return missing if len(given) + len(close) < needed else close

    def _welcome_back(self) -> None:
        """Let sites that were lost take part again, if they are there and have time for us."""
        back = [name for name in self._hub.present() if name in self._away]
        if back:
            message = to_wire(Join(self.study.digest))
            answers = self._hub.ask(JOIN, dict.fromkeys(back, message), _GREETING)
            self._take(answers, Joined, 0, {})

    def _take(self, answers: Answers, kind: type, number: int, given: dict[str, Any]) -> None:
        for name, answer in answers.given.items():
            said = read(answer, kind | Joined | Differs)
            self._away.discard(name)
            if isinstance(said, Differs):
                self._differs.add(name)
                continue
            if isinstance(said, Joined):
                self._told[name] = said.updated
                if kind is not Joined:  # restarted: it has to be told more, and asked again
                    continue
            else:
                self._told[name] = number
            given[name] = said

    def _tell(self, number: int, waiting: Sequence[str]) -> None:
        if self._watch is not None:
            self._watch(Watch(number + 1, len(self.study.plan.charges), tuple(waiting)))

    # -- what is not asked between owners ---------------------------------------------------------

    def answer(self, query: Query) -> Any:
        raise SettingError(f"a {type(query).__name__} is not private: owners are asked for none such")

    def clipped(self, query: SumQuery) -> Clipped:
        raise SettingError(f"sums of a {type(query).__name__} do not leave owners without a draw")

    def with_own_rows(self, model: Multilinear, prior: OwnPrior) -> Multilinear:  # noqa: ARG002
        """Rows of owners stay at their sites: the leader's are none."""
        return model

    def end(self, model: Multilinear, prior: OwnPrior | None) -> None:
        """Tell sites what came of it; each solves its own rows then."""
        digest, rounds = digest_of((model, prior)), len(self.study.plan.charges)

        def messages(names: Sequence[str]) -> dict[str, bytes]:
            return {name: self._end_for(name, digest, (model, prior)) for name in names}

        self._insist(END, messages, Ended, rounds - 1, least=self._least)

    def _end_for(self, name: str, digest: str, made: tuple[Multilinear, OwnPrior | None]) -> bytes:
        first = min(self._told.get(name, 0), len(self._released))
        parameters = made if name in self._differs else None
        return to_wire(End(first, tuple(self._released[first:]), digest, parameters))

    def forget(self) -> None:
        """There is nothing that a leader could make them forget."""

    def close(self) -> None:
        self._hub.close()


def _refuse(answers: Answers, number: int) -> None:
    if answers.refused:
        said = "; ".join(f"{name}: {text}" for name, text in sorted(answers.refused.items()))
        raise RefusedError(f"in round {number + 1:,} a site does not go on: {said}")


def _check_alike(given: Mapping[str, Sums], nothing: Clipped) -> None:
    """That sites have answered with numbers that can be added up: as those who hold nothing would."""
    size = sum(prod(shape) for shape in nothing.shapes)
    for name, sums in given.items():
        public = () if isinstance(sums, Masked) else sums.public
        shapes = [array.shape for array in (sums.values, *public)]
        wanted = [(size,)] if isinstance(sums, Masked) else nothing.shapes
        if (sums.step, shapes) != (nothing.step, wanted) or sums.values.dtype != np.int64:
            raise RefusedError(f"{name} has answered another question than the one of this round")


def lead(
    study: Study,
    hub: Hub,
    folder: str | os.PathLike[str],
    *,
    patience: Patience | None = None,
    ledger: Ledger | None = None,
    entropy: Entropy | None = None,
    progress: Progress | None = None,
    watch: Callable[[Watch], None] | None = None,
) -> tuple[PrivateFit, Guarantee]:
    """Carry out a study, or go on with one that was broken off in the same folder.

    The leader's ledger and noise count where there is one owner; else they are those of the sites.
    """
    with Journal(Path(folder) / JOURNAL) as journal:
        engine = OwnersEngine(study, hub, journal, patience, watch)
        ledger, entropy = ledger or Ledger(study.facts.unit), entropy or Entropy()
        entropy.public_seed()  # that of a cap in one process: seeded noise is the same then
        engine.gather()
        made = carry_out_private(study.plan, engine, ledger, entropy, progress, engine.run)
        engine.end(made.model, made.own_prior)
    return made, study.plan.guarantee(ledger, entropy)
