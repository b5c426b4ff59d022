"""Studies: what is agreed on, what sites refuse, and what each of them ends with."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studying import ENTRIES, ITEMS, SITES, USERS, Sites, part, ratings, study_of, trust_of

import sfumato as sf
from sfumato.errors import BudgetError, DataError, SettingError, SfumatoError
from sfumato.estimators.studies import lead, make_study, own_estimator
from sfumato.owners.hub import InProcess
from sfumato.owners.leading import OwnersEngine, Patience
from sfumato.owners.messages import Begin, End, Join, Open, RefusedError, Round
from sfumato.owners.participant import Participant
from sfumato.owners.study import Member, Study
from sfumato.privacy.account import read_ledger
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Noisy
from sfumato.wire import from_wire, to_wire

KINDS = ("one owner", "each site", "secure shares")
kinds = pytest.mark.parametrize("kind", KINDS)
units = pytest.mark.parametrize("unit", ["entry", "user"])


# -- fits -----------------------------------------------------------------------------------------


@kinds
@units
def test_a_study_ends_with_one_release_and_own_rows_at_every_site(kind, unit, tmp_path):
    study = study_of(kind, unit)
    with Sites(study, tmp_path / "sites") as sites:
        model = lead(study, sites.hub, tmp_path / "lead", seed=1 if kind == "one owner" else None)
        assert model.guarantee_.trust == study.facts.trust.in_words()
        released = model.release_files(force=True)
        for number, name in enumerate(study.sites):
            own = own_estimator(sites.running[name])
            mine = part(number)
            assert own.rmse(mine) < 1.1 * sf.Biases(sweeps=0).fit(mine).rmse(mine)
            for m, (theirs, ours) in enumerate(
                zip(own.model_.factors, model.model_.factors, strict=True)
            ):
                assert m == 0 or np.array_equal(theirs, ours)
            # the release is the same, but for what each ledger says of the total
            saved = own.release_files(force=True)
            assert saved["model.safetensors"] == released["model.safetensors"]
        assert not model.model_.factors[0].any()  # rows of owners never reach the leader
    for name in study.sites:
        charged = tmp_path / "sites" / name / "ledger.jsonl"
        if kind == "one owner":
            assert not charged.exists()
        else:
            account = read_ledger(charged)
            assert len(account.charges) == len(study.plan.charges)
            assert account.epsilon(1e-5) <= 20.0


@pytest.mark.parametrize("method", ["auto", "alternating", "constant", "gradient"])
@units
def test_three_modes_with_times_by_any_method_that_adds_up(method, unit, tmp_path):
    """Saved at a site and loaded again, the model has the rows of that site's owners."""
    whole = sf.synthetic.ratings_like(40, 30, 6, 900)
    labels = {"item": list(whole.modes[1].labels), "day": list(whole.modes[2].labels)}
    asked = sf.Privacy(
        8.0, 1e-6, unit=unit, local="user", method=method, public=sf.Public(labels=labels, entries=900)
    )
    modes = ["user", "item", sf.Mode("day", 6, None, "day")]
    study = make_study(sf.CP(privacy=asked), modes, {"a": 40, "b": 45}, bounds=(1, 5))
    half = whole.coordinates[0] < 20
    parts = {"a": whole.take(half), "b": whole.take(~half)}
    with Sites(study, tmp_path / "sites", entries=parts) as sites:
        model = lead(study, sites.hub, tmp_path / "lead")
        own = own_estimator(sites.running["b"])
    assert own.method_ == model.method_
    assert own.model_.shape == (45, 30, 6)
    own.save(tmp_path / "own", force=True)
    again = sf.load(tmp_path / "own")
    assert np.array_equal(again.predict(parts["b"]), own.predict(parts["b"]))
    assert again.rmse(parts["b"]) < 1.5


@kinds
@pytest.mark.parametrize("listed", [False, True])
def test_what_sites_add_up_is_what_one_process_would_play(kind, listed, tmp_path, monkeypatch):
    """Without noise, to the last bit: masks, replay and journals change nothing."""
    from sfumato.privacy import mechanisms

    monkeypatch.setattr(mechanisms, "noise", lambda law, number, _: np.zeros(number, np.int64))
    monkeypatch.setattr(mechanisms, "with_noise", lambda values, law, _: values)
    study = study_of(kind, listed=listed)
    with Sites(study, tmp_path / "sites") as sites:
        model = lead(study, sites.hub, tmp_path / "lead")
    public = sf.Public(labels={"item": range(ITEMS), "user": range(USERS)}, entries=ENTRIES)
    if not listed:
        public = replace(public, labels={"item": range(ITEMS)}, units=80)
    asked = sf.Privacy(
        20.0, 1e-5, unit="entry", method="bias", local="user", public=public, trust=trust_of(kind)
    )
    whole = ratings()
    if not listed:
        users = whole.modes[0]
        whole = sf.SparseTensor(whole.coordinates, whole.values, (users, whole.modes[1]), whole.bounds)
    played = sf.CP(4, privacy=asked).fit(whole)
    assert model.model_.mean == played.model_.mean
    assert np.array_equal(model.model_.factors[1], played.model_.factors[1])
    assert np.array_equal(model.model_.mode_biases[1], played.model_.mode_biases[1])


def test_sites_may_hold_shards(tmp_path):
    study = study_of(listed=True)
    whole = ratings()
    entries = {}
    for number, name in enumerate(study.sites):
        mine = whole.take(whole.coordinates[0] * len(SITES) // USERS == number)
        entries[name] = sf.make_shards(mine, tmp_path / f"{name}.shards", shards=2)
    fitted = []
    for held in ({}, entries):
        folder = tmp_path / f"with {len(held)}"
        with Sites(study, folder / "sites", entries=held) as sites:
            model = lead(study, sites.hub, folder / "lead")
            own = own_estimator(sites.running["west"])
        fitted.append((model.model_.mode_biases[1], own.model_.mode_biases[0][-5:]))
    for a, b in zip(*fitted, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"bounds": (0.0, 5.0)}, "make the shards with bounds"),
        ({"by": "item"}, "by='user'"),
        ({"dtype": "float32"}, "dtype='float64'"),
    ],
)
def test_shards_that_would_have_to_be_changed_are_refused(made, said, tmp_path):
    study, whole = study_of(listed=True), ratings()
    tensor = whole.with_values(whole.values, made.pop("bounds", whole.bounds))
    shards = sf.make_shards(tensor, tmp_path / "shards", shards=2, **made)
    with pytest.raises(DataError, match=said):
        Participant(study, "west", shards, tmp_path / "west")
    with pytest.raises(DataError, match="owners numbered already"):
        Participant(study_of(), "west", shards, tmp_path / "west")


# -- what is agreed on ----------------------------------------------------------------------------


def test_a_study_is_a_file(tmp_path):
    study = study_of("secure shares")
    study.save(tmp_path / "a.study")
    again = Study.read(tmp_path / "a.study")
    assert again.digest == study.digest
    assert again.in_words() == study.in_words()
    assert "4 sites: east (20 user at most)" in study.in_words()
    assert study.plan.charges == again.plan.charges
    with pytest.raises(DataError, match="could not be read"):
        Study.read(tmp_path / "b.study")
    with pytest.raises(DataError, match="could not be written"):
        study.save(tmp_path / "none" / "a.study")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_studies_are_errors_or_the_same(tmp_path_factory, data):
    content = bytearray(to_wire(study_of()))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("study") / "s"
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        found = Study.read(path)
    except SfumatoError:
        return
    found.check()


def test_a_study_that_promises_more_than_it_keeps_is_refused():
    study = study_of()
    task = study.plan.task
    less = replace(study, plan=replace(study.plan, task=task.with_noise(task.noise / 2)))
    with pytest.raises(BudgetError, match="not within"):
        less.check()
    for other, said in (
        (replace(study, version="0.0.1"), "made with sfumato 0.0.1"),
        (replace(study, model="Search"), "a study is of one of"),
        (replace(study, members=study.members[:3]), "noise is for 4 sites, and 3 take part"),
        (replace(study, members=(*study.members[:3], Member("EAST", 60, 80))), "the same name"),
        (replace(study, members=(*study.members[:3], Member("a/b", 60, 80))), "cannot be called"),
        (replace(study, members=(*study.members[:3], Member("w", 60, 90))), "not the 80 of the plan"),
        (replace(study, members=(*study.members[:3], Member("w", 50, 80))), "not the 80 of the plan"),
        (replace(study, labels=study.labels[:1]), "labels, or none, of every mode"),
    ):
        with pytest.raises(SettingError, match=said):
            other.check()


def test_what_a_study_needs_is_said():
    public = sf.Public(labels={"item": range(ITEMS)})
    privacy = sf.Privacy(1.0, 1e-6, unit="entry", local="user", public=public)
    modes, sites = ["user", "item"], {"a": 10, "b": 20}

    def made(privacy=privacy, sites=sites, **rest):
        return make_study(sf.CP(privacy=privacy, **rest), modes, sites, bounds=(1, 5))

    assert made().facts.trust == sf.Trust("each site", 2)  # the default between owners
    assert made().facts.sizes == (30, ITEMS)
    for given_, said in (
        ({"privacy": None}, "is private: give the estimator privacy"),
        ({"privacy": replace(privacy, seed=1)}, "nobody can seed"),
        ({"privacy": replace(privacy, ledger="l.jsonl")}, "each site has a ledger of its own"),
        ({"privacy": replace(privacy, sampler="opendp")}, "draws with sfumato's samplers"),
        ({"privacy": replace(privacy, trust=sf.Trust("each site", 3))}, "for 3 sites, and there are 2"),
        ({"privacy": replace(privacy, public=sf.Public())}, "list them|give the labels"),
        ({"privacy": replace(privacy, public=replace(public, units=7))}, "30 owners at all sites"),
        ({"sites": ["a", "b"]}, "how many|at most"),
        ({"sites": {}}, "at least one site"),
        ({"sites": {"a": 1, "b": 4}}, "owners at a must be"),
        ({"privacy": replace(privacy, local=None)}, "here all rows are released: leave it out"),
        ({"privacy": replace(privacy, local=None), "sites": ["a", "b"]}, "give the labels|list them"),
    ):
        with pytest.raises(SettingError, match=said):
            made(**given_)


# -- what sites refuse ----------------------------------------------------------------------------


def asked(participant, topic, plain):
    return from_wire(participant(topic, to_wire(plain)))


def test_sites_do_nothing_but_what_the_study_says(tmp_path):
    study = study_of("each site")
    with Participant(study, "east", part(0), tmp_path / "east") as site:
        query = study.plan.task.solver.ask(study.plan.task.solver.init(study.plan.run, study.facts))
        noisy = Noisy(np.zeros(2), 1.0)
        for topic, plain, said in (
            ("join", Join("00"), "another study"),
            ("join", Open(0, ()), "Open was sent where another message"),
            ("sql", Join("00"), "no message 'sql'"),
            ("begin", Begin({}, ""), "keys are for"),
            ("round", Round(-1, 0, (), ""), "no round 0"),
            ("round", Round(99, 0, (), ""), "no round 100"),
            ("round", Round(0, 0, (noisy,), ""), "was sent those of rounds 1 to 1"),
            ("round", Round(1, -1, (noisy, noisy), ""), "was sent those of rounds 0 to 1"),
            ("round", Round(0, 0, (), "00", noisy), "different questions for round 1"),
            ("open", Open(0, SITES), "has masked nothing"),
            ("end", End(0, (), "00"), "was sent those of"),
        ):
            with pytest.raises(RefusedError, match=said):
                asked(site, topic, plain)
        with pytest.raises(SfumatoError):
            site("round", b"\x80\x04pickle")
        assert query is not None
    assert not (tmp_path / "east" / "ledger.jsonl").exists() or not (
        Ledger(study.facts.unit, path=tmp_path / "east" / "ledger.jsonl").events
    )


def rounding_otherwise(participant, by):
    """Make a site work out other bits, as other processors would."""
    solver = type(participant._solver)

    class Other(solver):
        def update(self, state, released):
            if released is not None:
                released = replace(released, values=released.values * (1 + by))
            return super().update(state, released)

    settings_of = {f.name: getattr(participant._solver, f.name) for f in fields(solver) if f.init}
    participant._solver = Other(**settings_of)


def test_sites_that_round_otherwise_take_over_the_leaders_bits(tmp_path):
    """And end with the same release; what they are sent was made from released numbers."""
    study = study_of("each site")
    with Sites(study, tmp_path / "sites") as sites:
        rounding_otherwise(sites.running["south"], 2.0**-50)
        model = lead(study, sites.hub, tmp_path / "lead")
        south = own_estimator(sites.running["south"])
        charges = {name: len(each._ledger.events) for name, each in sites.running.items()}
    assert set(charges.values()) == {len(study.plan.charges)}
    assert np.array_equal(south.model_.mode_biases[1], model.model_.mode_biases[1])


def test_sites_that_come_to_something_else_stop_before_anything_is_charged(tmp_path):
    study = study_of("each site")
    with Sites(study, tmp_path / "sites") as sites:
        rounding_otherwise(sites.running["south"], 1e-4)
        with pytest.raises(
            RefusedError, match=r"south.*different questions.*Nothing was answered or ch"
        ):
            lead(study, sites.hub, tmp_path / "lead")
        charges = {name: len(each._ledger.events) for name, each in sites.running.items()}
    assert charges["south"] < charges["east"]


def test_sites_with_other_data_are_an_error(tmp_path):
    study = study_of()
    renamed = part(0)
    modes = (sf.Mode("person", renamed.modes[0].size, renamed.modes[0].labels), renamed.modes[1])
    other = sf.SparseTensor(renamed.coordinates, renamed.values, modes, (1.0, 5.0))
    with pytest.raises(DataError, match="the study is about user, item, not person, item"):
        Participant(study, "east", other, tmp_path / "a")
    with pytest.raises(SettingError, match="takes no part in this study"):
        Participant(study, "nobody", part(0), tmp_path / "b")
    with pytest.raises(SettingError, match="more levels of user than the public number, 20"):
        Participant(study, "east", ratings(), tmp_path / "c")
    with pytest.raises(BudgetError, match=r"budget.*epsilon 1"):
        Participant(study, "east", part(0), tmp_path / "d", limit=sf.Budget(1.0, 1e-5))


def test_a_folder_belongs_to_one_site_and_its_data(tmp_path):
    study = study_of()
    Participant(study, "east", part(0), tmp_path).close()
    Participant(study, "east", part(0), tmp_path).close()  # again
    with pytest.raises(DataError, match="the data have changed"):
        Participant(study, "east", part(0).take(np.arange(50)), tmp_path)
    for other, name in ((study_of("secure shares"), "east"), (study, "north")):
        with pytest.raises(DataError, match=r"belongs to another study|have changed"):
            Participant(other, name, part(0), tmp_path)


def test_hubs_of_other_sites_are_refused(tmp_path):
    study = study_of()
    with pytest.raises(SettingError, match="reached are a, b"):
        lead(study, InProcess(dict.fromkeys("ab", lambda *_: b"")), tmp_path)


@pytest.mark.parametrize(
    "settings_", [{"lost": -1.0}, {"answer": 0.0}, {"lost": float("nan")}, {"least": 0}], ids=str
)
def test_patience_that_cannot_be_is_refused(settings_):
    with pytest.raises(SettingError, match="must be"):
        Patience(**settings_)


def test_leaders_cannot_do_with_fewer_than_the_noise_needs(tmp_path):
    from sfumato.owners.journal import Journal

    for kind, least, said in (
        ("secure shares", 3, "the noise needs 4"),
        ("each site", 5, "cannot be added up over 5 of 4"),
        ("one owner", 3, "all sites have to answer"),
    ):
        study = study_of(kind)
        with (
            Sites(study, tmp_path / kind) as sites,
            Journal(tmp_path / kind / "j") as journal,
            pytest.raises(SettingError, match=said),
        ):
            OwnersEngine(study, sites.hub, journal, Patience(least=least))
