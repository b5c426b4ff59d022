"""Where pages may be, what they say of places that nobody has, and which parts are marked."""

import numpy as np
import pytest
from command_line import run
from pages import Page
from releases import KINDS, coupled, joint, network, ratings

import sfumato as sf
from sfumato.data.tensor import Mode
from sfumato.estimators.lists import empty_places
from sfumato.report.page.contents import Levels, Part, Shown
from sfumato.report.page.page import _OF_A_MODEL, page
from sfumato.store.names import JSON, MANIFEST


def read(path):
    made = Page(path.read_text("utf-8"))
    made.check()
    return made


# -- folders of models --------------------------------------------------------------------------------


def test_the_page_knows_a_models_folder_by_the_names_that_the_store_gives():
    assert set(_OF_A_MODEL) == {JSON, MANIFEST}


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("inside", ["release", "owner", "release/deeper", "linked"])
def test_no_page_is_written_into_a_models_folder(inside, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    joint(folder)
    model = sf.load(folder)
    (folder / "release/deeper").mkdir()
    (folder / "linked").symlink_to(folder / "release")
    before, place = everything(folder), folder / inside
    for target in (place / "mine.html", place / "report.html"):
        with pytest.raises(sf.SettingError, match="would not load"):
            model.report(target)
        with pytest.raises(sf.SettingError, match="would not load"):
            model.report(target, release=True)
        refused = run("report", folder, "--out", target)
        assert refused.exit_code == 1
        assert "--out" in refused.stderr
    monkeypatch.chdir(place)
    assert run("report", folder / "release").exit_code == 1
    assert everything(folder) == before


def test_a_page_may_lie_beside_a_release(tmp_path):
    joint(tmp_path / "model")
    assert run("report", tmp_path / "model", "--out", tmp_path / "model/mine.html").exit_code == 0
    assert sf.load(tmp_path / "model/release").guarantee_ is not None


def test_an_audit_and_privatised_values_have_no_page_there_either(tmp_path):
    sf.CP(1).fit(ratings()).save(tmp_path / "model")
    noisy = tmp_path / "noisy.csv"
    sf.write_privatised(sf.privatise(ratings(), epsilon=3), noisy)
    assert run("report", noisy, "--out", tmp_path / "model/report.html").exit_code == 1
    assert sf.load(tmp_path / "model").rank_ == 1


# -- places that nobody has ---------------------------------------------------------------------------


def named(*labels):
    return Mode("user", len(labels), np.array(labels, object))


@pytest.mark.parametrize(
    ("labels", "empty"),
    [
        (("ann", "(nobody 2)", "bob", "(nobody 1)"), [1, 3]),
        (("ann", "(nobody 2)"), []),  # who is really called so
        (("(nobody 7)", "(nobody' 1)"), [1]),
        (("(nobody 1)", "(nobody' x)", "(nobody'' 1)", "(nobody'' 2)"), [2, 3]),
        (("ann", "nobody 1"), []),
    ],
)
def test_empty_places_are_those_that_a_fit_has_made_up(labels, empty):
    assert np.flatnonzero(empty_places(named(*labels))).tolist() == empty


def test_a_mode_without_labels_has_no_empty_places():
    assert not empty_places(Mode("user", 3)).any()


def test_owners_called_nobody_are_told_from_places_that_a_fit_makes_up():
    whole = ratings()
    users = named("(nobody 1)", *(f"u{n}" for n in range(29)))
    entries = sf.SparseTensor(whole.coordinates, whole.values, (users, whole.modes[1]), whole.bounds)
    public = sf.Public(labels={"item": range(6)}, units=35)
    model = sf.CP(1, privacy=sf.Privacy(1.0, 1e-6, unit="user", public=public)).fit(entries)
    found = empty_places(model.modes_[0])
    assert found.sum() == 5
    assert not found[model.modes_[0].find(np.array(["(nobody 1)"], object))].any()


@pytest.mark.parametrize("save", [joint, coupled])
def test_the_holders_part_shows_no_owner_who_is_not_there(save, tmp_path):
    save(tmp_path / "model")
    assert run("report", tmp_path / "model", "--out", tmp_path / "mine.html").exit_code == 0
    found = read(tmp_path / "mine.html")
    assert "nobody 1" not in (tmp_path / "mine.html").read_text("utf-8")
    assert "30 levels. 10 places are empty: 40 is the number that is public." in found.text
    assert len(found.data[-1]["modes"][0]["labels"]) == 30
    if save is joint:
        assert "30; 10 places are empty" in found.text


@pytest.mark.parametrize("kind", KINDS)
def test_no_release_names_places_of_owners(kind, tmp_path):
    KINDS[kind](tmp_path / "model")
    release = tmp_path / "model/release"
    for content in everything(release if release.is_dir() else tmp_path / "model").values():
        assert b"(nobody" not in content


# -- parts and marks ----------------------------------------------------------------------------------


def test_an_open_model_is_one_part_and_says_once_what_it_is(tmp_path):
    train, test = ratings().split(0.2, seed=0)
    sf.CP(2).fit(train).report(tmp_path / "page.html", held_out=test)
    found = read(tmp_path / "page.html")
    assert found.text.lower().count("not for release") == 1
    assert not [each for each in found.of("div") if each.get("class") == "held"]
    assert {"learnt", "errors", "learning"} <= set(found.ids)
    assert "no guarantee covers" not in found.text


def test_an_open_network_has_one_table_and_no_empty_list_of_sections(tmp_path):
    from sfumato.report.networks import FOR_YOU_ALONE
    from sfumato.report.page.contents import Held

    shown = Shown("A network", (("layers", "2"),), None)
    assert not Page(page(shown).text).of("nav")
    measures = (("the network", {"accuracy": 0.9}), ("a constant", {"accuracy": 0.5}))
    found = Page(page(shown, Held(measures=measures, remarks=(FOR_YOU_ALONE,))).text)
    found.check()
    assert len(found.of("table")) == 1
    assert found.words.count("How well it predicts") == 2  # in the list of sections, and above its own
    assert "These are for you alone" not in found.text


def test_the_ledger_is_the_holders_alone(tmp_path):
    public = sf.Public(labels={"item": range(6)}, units=40)
    privacy = sf.Privacy(1.0, 1e-6, unit="user", public=public, ledger=tmp_path / "secret-name.ledger")
    model = sf.CP(1, privacy=privacy).fit(ratings())
    model.report(tmp_path / "page.html", release=True)
    model.report(tmp_path / "mine.html")
    assert "secret-name" not in (tmp_path / "page.html").read_text("utf-8")
    text = (tmp_path / "mine.html").read_text("utf-8")
    assert text.index("secret-name") > text.index('class="held"')
    assert "1 fits" not in text


def test_held_out_entries_that_may_be_the_fitted_ones_are_remarked_on(tmp_path):
    whole = ratings()
    train, test = whole.split(0.2, seed=0)
    model = sf.CP(1).fit(train)
    for entries, remarked in ((test, False), (train, True), (whole, True)):
        model.report(tmp_path / "page.html", held_out=entries)
        found = read(tmp_path / "page.html")
        assert "Errors at the entries given with held_out" in found.text
        assert ("may be those that were fitted" in found.text) == remarked


def test_the_holders_page_says_how_to_have_errors_on_it(tmp_path):
    train, test = ratings().split(0.2, seed=0)
    public = sf.Public(labels={"item": range(6)}, units=40)
    sf.CP(1, privacy=sf.Privacy(1.0, 1e-6, unit="user", public=public)).fit(train).save(tmp_path / "m")
    sf.write_completed(tmp_path / "t.csv", test.coordinates, test.values, test.modes, "stars")
    assert run("report", tmp_path / "m", "--out", tmp_path / "a.html").exit_code == 0
    assert "give entries that were not fitted with --held-out" in read(tmp_path / "a.html").text
    asked = ("--held-out", tmp_path / "t.csv", "--out", tmp_path / "b.html")
    assert run("report", tmp_path / "m", *asked).exit_code == 0
    found = read(tmp_path / "b.html")
    assert "Errors at the entries given with --held-out" in found.text
    assert "are kept in no file" not in found.text
    network(tmp_path / "net")
    sf.load(tmp_path / "net").report(tmp_path / "c.html")
    assert "kept in no file" not in read(tmp_path / "c.html").text


# -- what was learnt ----------------------------------------------------------------------------------


def about(rows, biases=None, name="day"):
    part = Part("", (Levels(name, lambda n: f"level {n}", rows, biases),))
    made = Page(page(Shown("A model", (), None, (part,))).text)
    made.check()
    return made


def test_a_map_of_many_levels_is_an_even_sample_with_those_that_are_named():
    rows = np.random.default_rng(0).normal(size=(30_000, 12))
    found = about(rows)
    dots = found.of("circle")
    assert 1_000 <= len(dots) <= 1_014
    assert f"{len(dots):,} of the 30,000 levels are drawn: an even sample" in found.text
    across = np.array([float(dot["cx"]) for dot in dots])
    near = np.abs(across - np.median(across)) < np.ptp(across) / 8
    assert near.mean() > 0.25  # no ring
    kept = set(found.data[0]["modes"][0]["levels"])
    assert {int(dot["data-level"]) for dot in dots if "data-level" in dot} <= kept


def test_colours_of_a_map_are_against_the_mean_of_its_levels():
    rows = np.random.default_rng(0).normal(size=(60, 3))
    kinds = [dot["class"] for dot in about(rows, 5 + rows[:, 0]).of("circle")]
    assert {kinds.count(kind) > 10 for kind in ("low", "usual", "high")} == {True}


def test_components_that_are_the_same_for_all_levels_are_said_and_not_listed():
    rows = np.random.default_rng(0).normal(size=(9, 4))
    rows[:, :2] = 0.3
    found = about(rows)
    assert "2 of 4 components are the same for all 9 levels of day ." in found.text
    assert "the strongest" not in found.text
    assert "The sign of a component means nothing" in found.text
    same = about(np.full((9, 4), 0.3))
    assert "All components are the same for all 9 levels of day ." in same.text
    assert not same.of("table")
    assert not same.of("circle")


def test_components_without_negative_numbers_have_one_end():
    found = about(np.random.default_rng(0).random((9, 4)))
    assert "Largest levels" in found.text
    assert "Other end" not in found.text
    assert "sign of a component" not in found.text
