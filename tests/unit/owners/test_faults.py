"""Sites and leaders that are lost, late or killed: charges stand, answers are the same.

A kill is played at a write to a journal or ledger: before it, in its middle, or after it and before it
is known to be on disk. What the process held is let go of then, as the system would.
"""

import os
from collections import defaultdict

import numpy as np
import pytest
from studying import SITES, USERS, Sites, part, ratings, study_of

import sfumato as sf
from sfumato.errors import BudgetError, DataError, SettingError, SiteLostError
from sfumato.estimators.studies import lead
from sfumato.owners.holding import nobody
from sfumato.owners.journal import Journal
from sfumato.owners.leading import Patience, Released
from sfumato.owners.masks import new_secret, public_key
from sfumato.owners.messages import Begin, Joined, Masked, Open, RefusedError, Round, digest_of
from sfumato.owners.participant import Answered, OpenedWith, Participant
from sfumato.privacy.account import read_ledger
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Noisy
from sfumato.wire import from_wire, to_wire

SOON = Patience(answer=5.0, lost=0.05)
KINDS = ("one owner", "each site", "secure shares")
WRITES = {"one owner": 70, "each site": 95, "secure shares": 125}  # about as many as there are


class Killed(BaseException):
    """What a process does not live to see."""


class Fate:
    """Ends the process at some write, once."""

    def __init__(self, monkeypatch, generator, most):
        self._at, self._how = (
            int(generator.integers(0, most)),
            generator.choice(["before", "torn", "after"]),
        )
        self._write, self._count, self.struck = os.write, 0, False
        self._generator = generator
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fsync", lambda _: None)  # the system goes on: what is written stays

    def write(self, descriptor, content):
        count, self._count = self._count, self._count + 1
        if count != self._at or self.struck:
            return self._write(descriptor, content)
        self.struck = True
        if self._how != "before":
            end = (
                len(content) if self._how == "after" else int(self._generator.integers(1, len(content)))
            )
            self._write(descriptor, content[:end])
        raise Killed


class Watching(Sites):
    """Keeps every answer that has left a site."""

    def __init__(self, *arguments, **rest):
        self.sent = defaultdict(set)
        super().__init__(*arguments, **rest)

    def handler(self, name):
        inner = super().handler(name)

        def handle(topic, message):
            try:
                answer = inner(topic, message)
            except Killed:
                self.kill(name)
                raise ConnectionError from None
            if topic in ("round", "open") and not isinstance(from_wire(answer), Joined):
                number = from_wire(message).number
                self.sent[name, topic, number].add(answer)
            return answer

        return handle

    def restart(self):
        for name in self.study.sites:
            if name not in self.running:
                self.start(name)


def carried_out(study, sites, folder, book=None):
    """Led until it is done, with whoever has to be started again; ``book`` is a leader's ledger."""
    for _ in range(6):
        sites.restart()
        ledger = None if book is None else Ledger(study.facts.unit, path=book)
        seed = None if book is None else 4
        try:
            return lead(study, sites.hub, folder, patience=SOON, ledger=ledger, seed=seed)
        except (SiteLostError, Killed):
            continue
    raise AssertionError("never done")


def shards_of(study, folder):
    """Each site's entries on disk, in two shards."""
    whole, number = ratings(), len(study.sites)
    return {
        name: sf.make_shards(
            whole.take(whole.coordinates[0] * number // USERS == place), folder / name, shards=2
        )
        for place, name in enumerate(study.sites)
    }


@pytest.mark.parametrize("held", ["in memory", "on disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_write_and_started_again_it_ends_the_same(kind, held, tmp_path, monkeypatch):
    """Site or leader, 102 times in all: same bytes again, each round charged once, sums over one set."""
    generator = np.random.default_rng([held == "on disk", KINDS.index(kind)])
    study, struck = study_of(kind, listed=held == "on disk", sites=SITES[:3]), 0
    entries = shards_of(study, tmp_path / "shards") if held == "on disk" else None
    for run in range(17):
        folder = tmp_path / str(run)
        with (
            Watching(study, folder / "sites", entries=entries) as sites,
            monkeypatch.context() as patch,
        ):
            book = folder / "lead.jsonl" if kind == "one owner" else None
            fate = Fate(patch, generator, most=WRITES[kind])
            model = carried_out(study, sites, folder / "lead", book)
            struck += fate.struck
        assert all(len(answers) == 1 for answers in sites.sent.values())  # the same bytes, if again
        assert np.isfinite(model.predict({"user": [0], "item": [3]}, unseen="bias")).all()
        books = (
            [folder / "lead.jsonl"]
            if kind == "one owner"
            else [folder / "sites" / name / "ledger.jsonl" for name in study.sites]
        )
        for book in books:
            account = read_ledger(book)
            assert account.fits == 1
            assert account.events == [charge.mechanism.event for charge in study.plan.charges]
    assert struck >= 7  # of 17: the others were after the end


def test_noise_is_never_drawn_twice_for_what_was_sent(tmp_path):
    """A site that is asked for a round again, after any restart, sends the bytes that it sent."""
    study = study_of("each site")
    sent = []
    for seed in range(3):
        with Sites(study, tmp_path) as sites:
            sites.starts += 100 * seed  # with other noise, were there any
            site = sites.running["east"]
            solver = study.plan.task.solver
            question = digest_of(solver.ask(solver.init(study.plan.run, study.facts)))
            sent.append(site("round", to_wire(Round(0, 0, (), question))))
            sent.append(site("round", to_wire(Round(0, 0, (), question))))
    assert len(set(sent)) == 1
    assert len(read_ledger(tmp_path / "east" / "ledger.jsonl").charges) == 1


# -- lost and late --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_site_ends_the_fit_unless_it_may_be_missing(kind, tmp_path):
    study = study_of(kind)
    with Sites(study, tmp_path / "sites") as sites:
        hub, rounds = sites.hub, []
        inner = hub.handlers["north"]

        def dies(topic, message):
            if topic == "round":
                rounds.append(from_wire(message).number)
                if len(rounds) > 1:
                    raise ConnectionError
            return inner(topic, message)

        hub.handlers["north"] = dies
        with pytest.raises(SiteLostError, match=r"in round 2 north did not answer.*stays charged"):
            lead(study, hub, tmp_path / "lead", patience=SOON)
        if kind != "one owner":
            charges = {n: len(each._ledger.events) for n, each in sites.running.items()}
            assert charges == {"east": 2, "north": 1, "south": 2, "west": 2}


def test_with_full_noise_at_each_site_others_go_on(tmp_path):
    """And whoever comes back takes part again, without having been charged for what it missed."""
    study, watched = study_of("each site"), []
    with Sites(study, tmp_path / "sites") as sites:
        hub = sites.hub
        inner, missed = hub.handlers["north"], {1, 2}

        def away(topic, message):
            if topic == "round" and from_wire(message).number in missed:
                raise TimeoutError
            return inner(topic, message)

        hub.handlers["north"] = away
        few = Patience(answer=5.0, lost=0.05, least=3)
        lead(study, hub, tmp_path / "lead", patience=few, watch=watched.append)
        charged = {n: len(each._ledger.events) for n, each in sites.running.items()}
    rounds = len(study.plan.charges)
    assert charged == {"east": rounds, "north": rounds - 2, "south": rounds, "west": rounds}
    assert {watch.waiting for watch in watched} == {("north",)}
    assert {watch.round for watch in watched} <= {2, 3}
    with Sites(study, tmp_path / "again") as sites:
        lead(study, sites.hub, tmp_path / "lead again")
    told = []
    for folder in ("lead", "lead again"):
        with Journal(tmp_path / folder / "journal") as journal:
            told.append([entry.noisy.deviation for entry in journal.of(Released)])
    ratios = np.divide(*told)  # noise of three sites is less than that of four, and solvers are told so
    assert ratios[:4] == pytest.approx([1, np.sqrt(3 / 4), np.sqrt(3 / 4), 1])


def test_secure_sums_go_on_without_one_and_open_once(tmp_path):
    """Five sites, one may be missing: its late answer stays hidden, and no second sum is opened."""
    names = ("a", "b", "c", "d", "e")
    study = study_of("secure shares", sites=names, tolerate=2)
    with Sites(study, tmp_path / "sites") as sites:
        hub = sites.hub
        inner, late = hub.handlers["c"], []

        def slow(topic, message):
            answer = inner(topic, message)
            if topic == "round" and from_wire(message).number == 1:
                late.append(answer)
                raise TimeoutError
            return answer

        hub.handlers["c"] = slow
        lead(study, hub, tmp_path / "lead", patience=SOON)
        (answer, *_), c, a = late, sites.running["c"], sites.running["a"]
        assert isinstance(from_wire(answer), Masked)
        opened = [e for e in c._journal.of(OpenedWith) if e.number == 1]
        assert not opened  # so that nobody knows the key of its own mask
        assert [e.present for e in a._journal.of(OpenedWith) if e.number == 1] == [("a", "b", "d", "e")]
        with pytest.raises(RefusedError, match="a second sum would show"):
            a("open", to_wire(Open(1, names)))


def test_a_site_that_dies_between_masking_and_opening_is_waited_for(tmp_path):
    study = study_of("secure shares")
    with Sites(study, tmp_path / "sites") as sites:
        hub = sites.hub
        inner = hub.handlers["west"]

        def dies(topic, message):
            if topic == "open" and from_wire(message).number == 2:
                raise ConnectionError
            return inner(topic, message)

        hub.handlers["west"] = dies
        with pytest.raises(SiteLostError, match="in round 3 west did not answer"):
            lead(study, hub, tmp_path / "lead", patience=SOON)
        before = {n: [e.reply for e in s._journal.of(Answered)] for n, s in sites.running.items()}
        model = lead(study, sites.hub, tmp_path / "lead", patience=SOON)  # west is back
        for name, site in sites.running.items():
            after = [e.reply for e in site._journal.of(Answered)]
            for one, other in zip(before[name], after, strict=False):
                assert np.array_equal(one.values, other.values)
    assert model.guarantee_.releasable


# -- books that do not agree ----------------------------------------------------------------------


def test_a_journal_without_its_end_is_noticed_by_the_ledger(tmp_path):
    """Else a round would be answered twice with noise of its own."""
    study = study_of("each site")
    with Sites(study, tmp_path / "sites") as sites:
        lead(study, sites.hub, tmp_path / "lead")
    journal = tmp_path / "sites" / "east" / "journal"
    content = journal.read_bytes()
    journal.write_bytes(content[: len(content) // 2])
    with pytest.raises(BudgetError, match="one of them is not this study's, or was cut off"):
        Participant(study, "east", part(0), tmp_path / "sites" / "east")


def first_round(study, site):
    solver = study.plan.task.solver
    question = digest_of(solver.ask(solver.init(study.plan.run, study.facts)))
    return site("round", to_wire(Round(0, 0, (), question)))


@pytest.mark.parametrize("kind", ["each site", "secure shares"])
def test_an_answer_that_was_lost_from_the_journal_is_given_again(kind, tmp_path):
    """The key of its noise is written before it is charged: drawn again, it is the same."""
    study = study_of(kind)
    keys = None
    sent = []
    for _ in range(2):
        with Participant(study, "east", part(0), tmp_path / "east") as site:
            if kind == "secure shares":
                keys = keys or {n: public_key(new_secret()) for n in SITES}
                keys["east"] = public_key(site._secret)
                site("begin", to_wire(Begin(keys, "leader")))
            before = (tmp_path / "east" / "journal").read_bytes()
            sent.append(first_round(study, site))
            after = (tmp_path / "east" / "journal").read_bytes()
        answered = len(to_wire(Answered(0, from_wire(sent[0])))) + 48
        if len(sent) == 1:
            assert len(after) - len(before) > answered
            (tmp_path / "east" / "journal").write_bytes(after[:-answered])
    assert sent[0] == sent[1]
    assert len(read_ledger(tmp_path / "east" / "ledger.jsonl").charges) == 1


def test_two_processes_cannot_answer_for_one_site(tmp_path):
    study = study_of("each site")
    with (
        Participant(study, "east", part(0), tmp_path),
        pytest.raises(DataError, match="another process answers for this site"),
    ):
        Participant(study, "east", part(0), tmp_path)


def drawn(reservation, times):
    for _ in range(times):
        reservation.ask(lambda draw: None)


def test_a_ledger_goes_on_with_a_fit_that_was_broken_off(tmp_path):
    study = study_of("each site")
    charges, path = study.plan.charges, tmp_path / "l.jsonl"
    with Ledger(study.facts.unit, path=path).reserve(charges, Entropy(1), run="a") as reservation:
        drawn(reservation, 3)
    for run in ("", "b"):  # of the same draws, and not the same fit
        with Ledger(study.facts.unit, path=path).reserve(charges, Entropy(1), run=run) as other:
            drawn(other, 1)
    ledger = Ledger(study.facts.unit, path=path)
    with ledger.reserve(charges, Entropy(1), run="a") as reservation:
        drawn(reservation, len(charges))
    account = read_ledger(path)
    assert [c.event for c in account.standing("a")] == [c.mechanism.event for c in charges]
    assert {c.fit for c in account.standing("a")} == {1}
    assert [c.fit for c in account.standing("b")] == [3]
    assert account.fits == 3
    assert not account.standing("")
    for wrong in (charges[1:], charges[:1]):
        with pytest.raises(BudgetError, match=r"charged to .* for other draws"):
            ledger.reserve(wrong, Entropy(1), run="a").__enter__()


@pytest.mark.parametrize("in_file", [True, False])
def test_the_rest_of_a_fit_has_to_be_within_the_limit(in_file, tmp_path):
    """Whether the file was begun with the limit, or a site names one later."""
    study = study_of("each site")
    charges, path, limit = study.plan.charges, tmp_path / "l.jsonl", study.plan.budget
    begun = limit if in_file else None
    with Ledger(study.facts.unit, begun, path).reserve(charges, Entropy(1), run="a") as reservation:
        drawn(reservation, 1)
    with (
        pytest.raises(BudgetError, match="the budget"),
        Ledger(study.facts.unit, limit, path).reserve(charges, Entropy(1), run="b"),
    ):
        pass
    with Ledger(study.facts.unit, limit, path).reserve(charges, Entropy(1), run="a") as reservation:
        drawn(reservation, len(charges))
    assert len(read_ledger(path).charges) == len(charges)


@pytest.mark.parametrize("unit", ["entry", "user"])
def test_passing_over_the_first_round_saves_nothing_of_the_limit(unit, tmp_path):
    """The first draw may pay for all of them: a leader that begins with the second is no cheaper."""
    study = study_of("each site", unit)
    charges, limit = study.plan.charges, study.plan.budget
    spent = []
    for skipped in (0, 1, 3):
        path = tmp_path / f"{skipped}.jsonl"
        ledger = Ledger(study.facts.unit, limit, path)
        with ledger.reserve(charges, Entropy(), run="a") as reservation:
            for _ in range(skipped):
                reservation.skip()
            drawn(reservation, len(charges) - skipped)
        account = read_ledger(path)
        spent.append(account.spent)
        assert account.odometer(limit.delta) >= account.epsilon(limit.delta)
    assert spent[1:] == pytest.approx(spent[:1] * 2)


# -- a leader that does not do as agreed ----------------------------------------------------------


def test_what_is_said_to_be_released_has_to_have_its_form(tmp_path):
    """Kernels index by level: fewer numbers than levels would be read from elsewhere in memory."""
    for unit in ("entry", "user"):
        study = study_of("each site", unit)
        solver = study.plan.task.solver
        state = solver.init(study.plan.run, study.facts)
        good = solver.ask(state).clipped(nobody(study))
        for values, deviation, public in (
            (np.zeros(good.values.size + 1), 1.0, ()),
            (np.zeros(0), 1.0, ()),
            (np.zeros(good.values.shape, np.int64), 1.0, ()),
            (np.full(good.values.shape, np.nan), 1.0, ()),
            (np.full(good.values.shape, np.inf), 1.0, ()),
            (np.zeros(good.values.shape), 0.0, ()),
            (np.zeros(good.values.shape), np.nan, ()),
            (np.zeros(good.values.shape), 1.0, (np.zeros(3, np.int64),)),
        ):
            with Participant(study, "east", part(0), tmp_path / "east") as site:
                forged = Round(1, 0, (Noisy(values, deviation, public),), "00")
                with pytest.raises(RefusedError, match="cannot have been"):
                    site("round", to_wire(forged))
                assert not site._ledger.events
        (tmp_path / "east" / "journal").unlink()
        (tmp_path / "east" / "ledger.jsonl").unlink()


def test_a_leader_without_its_journal_cannot_go_on_with_secure_sums(tmp_path):
    """Begun anew, it would ask a site that was late for the key that hides its answer."""
    names = ("a", "b", "c", "d", "e")
    study = study_of("secure shares", sites=names, tolerate=2)
    with Sites(study, tmp_path / "sites") as sites:
        hub, inner = sites.hub, sites.handler("c")

        def late(topic, message):
            answer = inner(topic, message)
            if topic == "round":
                raise TimeoutError
            return answer

        hub.handlers["c"] = late
        lead(study, hub, tmp_path / "lead", patience=SOON)
        with pytest.raises(RefusedError, match="begun by another leader"):
            lead(study, sites.hub, tmp_path / "another", patience=SOON)
        assert not sites.running["c"]._journal.of(OpenedWith)


def test_a_round_has_one_question(tmp_path):
    """Led again elsewhere over fewer sites, earlier answers are not given for other questions."""
    study = study_of("each site")
    with Sites(study, tmp_path / "sites") as sites:
        lead(study, sites.hub, tmp_path / "lead")
    with Sites(study, tmp_path / "sites") as sites:
        hub = sites.hub
        inner = hub.handlers["west"]

        def away(topic, message):
            if topic == "round":
                raise ConnectionError
            return inner(topic, message)

        hub.handlers["west"] = away
        few = Patience(answer=5.0, lost=0.05, least=3)
        with pytest.raises(RefusedError, match="another question in its journal for round 2"):
            lead(study, hub, tmp_path / "another", patience=few)


def test_another_fit_of_the_same_draws_is_not_taken_for_this_one(tmp_path):
    """One owner's ledger: led in two folders it is charged twice, whichever was begun first."""
    study = study_of("one owner")
    path = tmp_path / "ledger.jsonl"

    def led(folder, hub):
        ledger = Ledger(study.facts.unit, path=path)
        return lead(study, hub, tmp_path / folder, patience=SOON, ledger=ledger)

    with Sites(study, tmp_path / "sites") as sites:
        hub = sites.hub
        hub.away.add("west")
        with pytest.raises(SiteLostError):
            led("a", hub)
        led("b", sites.hub)
    with Sites(study, tmp_path / "other sites") as sites:
        led("a", sites.hub)
    account = read_ledger(path)
    assert account.fits == 2
    assert len(account.charges) == 2 * len(study.plan.charges)


def test_errors_of_files_stay_with_the_owner(tmp_path, monkeypatch):
    study = study_of("each site")
    with Participant(study, "east", part(0), tmp_path / "east") as site:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(RefusedError, match="its owner sees why") as refused:
            first_round(study, site)
        assert str(tmp_path) not in str(refused.value)
        monkeypatch.undo()
    with Participant(study, "east", part(0), tmp_path / "east") as site:
        first_round(study, site)  # and started again it goes on


def test_sums_without_noise_leave_only_if_that_is_said(tmp_path):
    study = study_of("one owner")
    with pytest.raises(SettingError, match="sums leave the site as they are"):
        Participant(study, "east", part(0), tmp_path / "east")
    with pytest.raises(SettingError, match="set no limit here"):
        Participant(
            study, "east", part(0), tmp_path / "east", trust_leader=True, limit=study.plan.budget
        )


def test_noise_of_a_secret_can_be_drawn_again_and_of_another_is_another():
    def words(secret):
        source = Entropy(secret=secret)
        return [source.words().stream(0)(3).tolist() for _ in range(3)]

    first, again, other = words(b"a" * 32), words(b"a" * 32), words(b"b" * 32)
    assert first == again
    assert len({tuple(each) for each in (*first, *other)}) == 6
    assert not Entropy(secret=b"a" * 32).seeded
    for wrong in ({"secret": b"short"}, {"secret": b"a" * 32, "seed": 1}):
        with pytest.raises(SettingError, match="a secret has 32 bytes"):
            Entropy(**wrong)
