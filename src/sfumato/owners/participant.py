"""An owner's side of a study: its data, its ledger, its journal, and what it says when it is asked.

A site works out every question for itself: it goes through the plan's rounds as the leader does, from
what was released before, and holds the digest of its own question against the leader's. So nobody can
put another question to it than those that the study lists, and none twice: the order is always charge,
draw, journal, send. Asked again for a round that it has answered, it sends the same bytes.

A killed site starts anew from its journal. A draw that was charged but not journalled was never sent: it
is made once more, under the charge that stands.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from sfumato.data.shards import Shards
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import BudgetError, DataError, SettingError
from sfumato.fit.completion import PrivateFit
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.owners.holding import hold, nobody
from sfumato.owners.hub import LOG
from sfumato.owners.journal import Journal
from sfumato.owners.masks import Masks, new_secret, public_key
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
    check_release,
    digest_of,
    in_a_row,
    read,
)
from sfumato.owners.study import Study
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import SECRET, Entropy
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Draw, Ledger, Reservation
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import alike, record
from sfumato.solvers.protocol import Finished, SumQuery
from sfumato.surface import setting
from sfumato.wire import to_wire

ROUNDING = 1e-9  # by which numbers may differ where processors round otherwise, over the largest
LEDGER, JOURNAL = "ledger.jsonl", "journal"  # files of a site's folder


@record
@dataclass(frozen=True)
class Beginning:
    """The first entry of a site's journal: what it answers for, and with which secrets."""

    study: str
    name: str
    run: str  # by which the ledger knows its charges
    data: str  # digest of the entries that are fitted
    secret: str  # of masks
    places: int  # seed of what hides nothing but must not change: caps, and the places of owners


@record
@dataclass(frozen=True)
class AskedFor:
    """A round that is about to be charged: the digest of its question, and the key of its noise.

    Drawn again after a break, it is the same noise for the same question.
    """

    number: int
    question: str
    key: str


@record
@dataclass(frozen=True)
class Answered:
    """A round's answer, as it was or will be sent."""

    number: int
    reply: Any  # Sums


@record
@dataclass(frozen=True)
class OpenedWith:
    """The one set of sites that the sum of a round is opened over."""

    number: int
    present: tuple[str, ...]


class Participant:
    """What an owner runs: ``participant(topic, message)`` is the handler of a hub.

    Parameters
    ----------
    study, name : what is taken part in, and as whom.
    entries : the site's, as they were read, or shards of them.
    folder : of the site alone: its journal, and its ledger unless another file is named.
    ledger, limit : where spending is recorded, and what it may reach.
    threads : for the site's own sums.
    trust_leader : has to be said where the noise is the leader's: sums then leave without any.
    entropy : for tests; noise comes from the operating system.
    tell : hears of rounds answered: ``tell(done, rounds)``.
    """

    def __init__(
        self,
        study: Study,
        name: str,
        entries: SparseTensor | Shards,
        folder: str | os.PathLike[str],
        *,
        ledger: str | os.PathLike[str] | None = None,
        limit: Budget | None = None,
        threads: int = 1,
        trust_leader: bool = False,
        entropy: Entropy | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        study.check()
        study.member(name)
        if study.facts.trust.kind == "one owner" and not (trust_leader and limit is None):
            raise SettingError(
                "in this study sums leave the site as they are, and whoever leads adds the noise and "
                f"charges for it: say {setting('trust_leader')} if they are yours, and set no limit here"
            )
        self.study, self.name, self.folder = study, name, Path(folder)
        self.made: PrivateFit | None = None  # with the rows of this site's owners, once it has ended
        self._entropy, self._tell, self._lock = entropy or Entropy(), tell, Lock()
        self._stack, self._rights = ExitStack(), dict[int, Draw]()
        try:
            self._journal = self._stack.enter_context(Journal(self.folder / JOURNAL))
            self._begin(entries, ledger or self.folder / LEDGER, limit, threads)
        except BaseException:
            self._stack.close()
            raise

    # -- beginning, for the first time or again ---------------------------------------------------

    def _begin(
        self, entries: SparseTensor | Shards, ledger: Any, limit: Budget | None, threads: int
    ) -> None:
        plan, begun = self.study.plan, self._journal.of(Beginning)
        places = begun[0].places if begun else int.from_bytes(os.urandom(8), "little") >> 1
        held = hold(self.study, self.name, entries, Entropy(places), threads)
        self._engine, self.owners, data = held
        self._engine.check_shape(self.study.facts.shape)
        self._nobody = nobody(self.study)
        if begun:
            self._check_same(begun[0], data)
        else:
            run, secret = os.urandom(16).hex(), new_secret().hex()
            begun = [Beginning(self.study.digest, self.name, run, data, secret, places)]
        self._ledger = Ledger(self.study.facts.unit, limit, ledger if self._noisy else None)
        self._left, self._reservation = self._reserve(begun[0].run)
        if not self._journal.entries:
            self._journal.append(begun[0])
        self._secret = bytes.fromhex(begun[0].secret)
        self._solver, self._run = plan.task.solver, replace(plan.run, threads=threads)
        self._state, self._updated = self._solver.init(self._run, self.study.facts), 0
        self._masks: Masks | None = None
        self._finished = False  # whether what comes after the last round is done
        for keys in self._journal.of(Begin):
            self._masks = Masks(self.name, self._secret, keys.keys, self.study.digest)

    def _reserve(self, run: str) -> tuple[list[int], Reservation]:
        """Rounds that are left, in order, with the rights to draw for them.

        A round that was asked for and not answered has its right still. Where the leader draws all
        noise, nothing is charged here.
        """
        charges, asked = self.study.plan.charges, self._journal.of(AskedFor)
        answered = {entry.number for entry in self._journal.of(Answered)}
        standing = len(self._ledger.account.standing(run))
        if self._noisy and standing not in (len(asked) - 1, len(asked)):
            raise BudgetError(
                f"the ledger has {standing:,} charges of this study and the journal {len(asked):,}: one "
                "of them is not this study's, or was cut off. Begin a new study"
            )
        done = [entry.number for entry in asked]
        left = list(range(done[-1] + 1 if done else 0, len(charges)))
        reservation = self._stack.enter_context(
            self._ledger.reserve(
                [charges[number] for number in (*done, *left)] if self._noisy else (),
                self._entropy,
                proven=self.study.plan.proven,
                run=run,
            )
        )
        for entry in asked if self._noisy else ():
            right = reservation.ask(lambda draw: draw, _entropy_of(entry))
            if entry.number not in answered:
                self._rights[entry.number] = right
        return left, reservation

    def _check_same(self, begun: Beginning, data: str) -> None:
        if (begun.study, begun.name) != (self.study.digest, self.name):
            raise DataError(
                f"{self.folder} belongs to another study, or to another site: name another folder"
            )
        if begun.data != data:
            raise DataError(
                "the data have changed since this study began: go on with those that it began with, or "
                "begin a new study in another folder"
            )

    @property
    def _noisy(self) -> bool:
        return self.study.facts.trust.kind != "one owner"

    @property
    def _secure(self) -> bool:
        return self.study.facts.trust.kind == "secure shares"

    # -- answering --------------------------------------------------------------------------------

    def __call__(self, topic: str, message: bytes) -> bytes:
        """The handler: one message at a time."""
        handlers: dict[str, Callable[[bytes], Any]] = {
            JOIN: self._join,
            BEGIN: self._take_keys,
            ROUND: self._round,
            OPEN: self._open,
            END: self._end,
        }
        if topic not in handlers:
            raise RefusedError(f"there is no message {topic!r} in a study")
        try:
            with self._lock:
                return to_wire(handlers[topic](message))
        except (DataError, BudgetError) as error:  # there are paths in their words: for the owner
            LOG.exception("%s could not answer", self.name)
            raise RefusedError(
                f"the journal or the ledger of {self.name} cannot be used; its owner sees why"
            ) from error

    def _join(self, message: bytes) -> Joined:
        asked: Join = read(message, Join)
        if asked.study != self.study.digest:
            raise RefusedError(
                f"{self.name} has another study than the leader: everyone needs the same file"
            )
        return self._standing()

    def _standing(self) -> Joined:
        """What this site has been told and has answered: after a restart it has been told nothing."""
        answered = len(self._journal.of(Answered))
        return Joined(answered, self._updated, public_key(self._secret) if self._secure else None)

    def _take_keys(self, message: bytes) -> Begun:
        """Once: with other keys, what was masked before would be masked anew."""
        told: Begin = read(message, Begin)
        if not self._secure or set(told.keys) != set(self.study.sites):
            raise RefusedError("keys are for the sites of a study with secure sums, all of them")
        if told.keys[self.name] != public_key(self._secret):
            raise RefusedError(f"the key that the leader has of {self.name} is not its own")
        known = self._journal.of(Begin)
        if known and known[0] != told:
            raise RefusedError(
                "this study was begun by another leader, or with other keys: lead on in the folder "
                "where it was begun, or begin a new one"
            )
        masks = Masks(self.name, self._secret, told.keys, self.study.digest)
        if not known:
            self._journal.append(told)
        self._masks = masks
        return Begun()

    def _round(self, message: bytes) -> Sums | Joined | Differs:
        asked: Round = read(message, Round)
        answers = {entry.number: entry.reply for entry in self._journal.of(Answered)}
        rounds = len(self.study.plan.charges)
        if not 0 <= asked.number < rounds:
            raise RefusedError(f"there are {rounds:,} rounds, and no round {asked.number + 1:,}")
        if asked.number < self._updated:
            raise RefusedError(
                f"{self.name} knows the release of round {asked.number + 1:,} already: no other answer "
                "to it is given"
            )
        if asked.first > self._updated:
            return self._standing()
        self._update(asked.first, asked.released, asked.number)
        query = self._solver.ask(self._state)
        if digest_of(query) != asked.question:
            if asked.parameters is None:
                return Differs()
            query = self._adopted(query, asked.parameters, f"questions for round {asked.number + 1:,}")
        self._check_asked_before(asked)
        if asked.number in answers:
            return answers[asked.number]  # type: ignore[no-any-return]
        reply = self._answer(query, asked)
        self._journal.append(Answered(asked.number, reply))
        if self._tell is not None:
            self._tell(asked.number + 1, rounds)
        return reply

    def _check_asked_before(self, asked: Round) -> None:
        """A round has one question, whoever leads."""
        before = [e.question for e in self._journal.of(AskedFor) if e.number == asked.number]
        if before and before[0] != asked.question:
            raise RefusedError(
                f"{self.name} has another question in its journal for round {asked.number + 1:,}: lead "
                "on in the folder where this study was begun, or begin a new one"
            )

    def _answer(self, query: Any, asked: Round) -> Sums:
        if self._secure and self._masks is None:
            raise RefusedError("no keys were handed out yet")
        clipped, trust = self._engine.clipped(_as_sums(query)), self.study.facts.trust
        right = self._right(asked)
        if right is None:
            return clipped
        share = right.shares([clipped], trust)
        if self._masks is None:
            return share
        return Masked(self._masks.mask(in_a_row(share), asked.number), share.step)

    def _right(self, asked: Round) -> Draw | None:
        """The right to draw for a round, charged now or before this process began."""
        number = asked.number
        if not self._noisy:
            if number in self._left:
                self._left = [each for each in self._left if each > number]
                self._journal.append(AskedFor(number, asked.question, ""))
            return None
        if number in self._rights:
            return self._rights.pop(number)
        if number not in self._left:
            raise RefusedError(f"{self.name} was passed over in round {number + 1:,}")
        self._reservation.check_open()
        while self._left[0] != number:  # the others went on without this site: not drawn, not charged
            self._left.pop(0)
            self._reservation.skip()
        self._left.pop(0)
        entry = AskedFor(number, asked.question, os.urandom(SECRET).hex())
        self._journal.append(entry)
        return self._reservation.ask(lambda draw: draw, self._noise_of(entry))

    def _noise_of(self, entry: AskedFor) -> Entropy:
        """Noise of a round, which can be drawn again; seeded for tests alone."""
        return self._entropy if self._entropy.seeded else _entropy_of(entry)

    def _open(self, message: bytes) -> Any:
        asked: Open = read(message, Open)
        if self._masks is None or asked.number not in {e.number for e in self._journal.of(Answered)}:
            raise RefusedError(f"{self.name} has masked nothing in round {asked.number + 1:,}")
        if not set(asked.present) <= set(self.study.sites) or asked.present != tuple(
            sorted(set(asked.present))
        ):
            raise RefusedError("a sum is over sites of the study, each once, in order")
        self.study.facts.trust.check_present(len(asked.present))
        revealed = self._masks.reveal(asked.number, asked.present)
        before = [e for e in self._journal.of(OpenedWith) if e.number == asked.number]
        if before and before[0].present != asked.present:
            raise RefusedError(
                f"round {asked.number + 1:,} was opened over other sites: a second sum would show what "
                "one site has under its share of the noise alone"
            )
        if not before:
            self._journal.append(OpenedWith(asked.number, asked.present))
        return revealed

    # -- following --------------------------------------------------------------------------------

    def _update(self, first: int, released: tuple[Noisy, ...], rounds: int) -> None:
        """Take in what was released up to a round; what is known already is passed over."""
        if not 0 <= first <= self._updated or first + len(released) != rounds:
            raise RefusedError(
                f"{self.name} knows the releases of {self._updated:,} rounds, and was sent those of "
                f"rounds {first + 1:,} to {first + len(released):,}, for round {rounds + 1:,}"
            )
        for noisy in released[self._updated - first :]:
            check_release(noisy, _as_sums(self._solver.ask(self._state)).clipped(self._nobody))
            self._state, _ = self._solver.update(self._state, noisy)
            self._updated += 1

    def _adopted(self, own: Any, theirs: Any, what: str) -> Any:
        """What the leader has come to, where this site would have come to the same but for rounding.

        Other processors add up in other orders. What is adopted is a function of released numbers either
        way, and what a question clips to it clips to with its own numbers.
        """
        if not alike(own, theirs, ROUNDING):
            raise RefusedError(
                f"{self.name} and the leader work out different {what}: more than other processors "
                "would explain. See that everybody has the same versions of libraries. Nothing was "
                "answered or charged"
            )
        return theirs

    def _end(self, message: bytes) -> Ended | Joined | Differs:
        told: End = read(message, End)
        plan = self.study.plan
        if told.first > self._updated:
            return self._standing()
        self._update(told.first, told.released, len(plan.charges))
        if self.made is None:
            if not self._finished:
                for _ in range(plan.task.rounds - len(plan.charges)):
                    self._state, _ = self._solver.update(self._state, None)
                self._finished = True
            made = self._solver.finish(self._state)
            if digest_of(_model_of(made)) != told.model:
                if told.parameters is None:
                    return Differs()
                model, prior = self._adopted(_model_of(made), told.parameters, "models")
                made = replace(made, model=model, own_prior=prior)
            model = self._with_own_rows(made.model, made.own_prior)
            self.made = PrivateFit(model, (), made.own_prior, made.posterior, told=made.told)
        return Ended()

    def _with_own_rows(self, model: Multilinear, prior: OwnPrior | None) -> Multilinear:
        """The model with the rows of this site's owners, which stay here."""
        if prior is not None:
            self._engine.forget()
            model = self._engine.with_own_rows(model, prior)
        mode, member = self.study.numbered, self.study.member(self.name)
        if mode is None:
            return model
        mine = slice(member.first, member.last)
        return model.with_rows(mode, model.factors[mode][mine], model.mode_biases[mode][mine])

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Of the model that this site ends with: its own owners, and what is public of the rest."""
        local, owners = self.study.facts.local, self.owners
        return tuple(
            owners if owners is not None and m == local else mode
            for m, mode in enumerate(self.study.modes)
        )

    def guarantee(self) -> Guarantee:
        """What the release promises, with what this site's ledger adds up to."""
        return self.study.plan.guarantee(self._ledger, self._entropy)

    def close(self) -> None:
        """Let go of the journal and the ledger."""
        self._stack.close()

    def __enter__(self) -> Participant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _model_of(made: Finished[Multilinear]) -> tuple[Multilinear, OwnPrior | None]:
    """What a site needs of a release to solve its own rows."""
    return made.model, made.own_prior


def _entropy_of(entry: AskedFor) -> Entropy:
    return Entropy(secret=bytes.fromhex(entry.key))


def _as_sums(query: Any) -> SumQuery:
    if not isinstance(query, SumQuery):
        raise RefusedError(f"a {type(query).__name__} does not add up over sites")
    return query
