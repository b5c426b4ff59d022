"""Pages of models: what they say, that they load nothing, and that a release's has no more than it."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from command_line import run
from pages import Page
from releases import KINDS, network, ratings

import sfumato as sf
from sfumato.data.tensor import Mode
from sfumato.errors import NotFittedError, ReleaseError, SettingError
from sfumato.estimators.showing import privatised_page
from sfumato.privacy.trust import Trust
from sfumato.report.page.contents import Levels, Part, Shown
from sfumato.report.page.page import _asset, page
from sfumato.store.reading import parse_tensors

EVIL = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "\"' onmouseover='alert(1)",
    "]]><!--",
    "a\u202eb\x00\ud800",
    "&lt;b&gt;",
)


def read(path):
    made = Page(path.read_text("utf-8"))
    made.check()
    return made


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each kind of model."""
    place = tmp_path_factory.mktemp("models")
    for name, save in KINDS.items():
        save(place / name)
    return place


def of_release(folder):
    return folder / "release" if (folder / "release").is_dir() else folder


# -- releases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_every_kind_of_release_is_well_formed_and_says_what_it_is(kind, folders, tmp_path):
    made = run("report", of_release(folders / kind), "--out", tmp_path / "page.html")
    assert made.exit_code == 0, made.output
    found = read(tmp_path / "page.html")
    assert "For release." in found.text
    assert "Not for release" not in found.text
    for section in ("protected", "epsilon", "spent"):
        assert section in found.ids
    promise = sf.load(of_release(folders / kind)).guarantee_
    assert promise.unit in found.text
    assert promise.method in found.text


@pytest.mark.parametrize("kind", ["joint", "coupled"])
def test_the_page_of_a_release_depends_on_the_release_alone(kind, folders, tmp_path):
    """In memory, from the folder around it, and from a copy of the release by itself: the same bytes."""
    whole, alone = folders / kind, tmp_path / "copy"
    shutil.copytree(whole / "release", alone)
    sf.load(alone).report(tmp_path / "alone.html")
    sf.load(whole).report(tmp_path / "whole.html", release=True)
    assert (tmp_path / "alone.html").read_bytes() == (tmp_path / "whole.html").read_bytes()
    sf.load(whole).report(tmp_path / "mine.html")
    assert read(tmp_path / "mine.html").text.count("Not for release") >= 2
    assert (tmp_path / "mine.html").stat().st_size > (tmp_path / "alone.html").stat().st_size


def joint_model():
    """With labels of owners that are found nowhere else."""
    whole = ratings()
    users = Mode("user", 30, np.array([f"secretowner{n}" for n in range(30)], object))
    entries = sf.SparseTensor(whole.coordinates, whole.values, (users, whole.modes[1]), whole.bounds)
    public = sf.Public(labels={"item": range(6)}, units=40, entries=100)
    return sf.CP(2, privacy=sf.Privacy(1.0, 1e-6, unit="user", public=public)).fit(entries), entries


def test_nothing_of_owners_and_of_the_data_is_on_the_page_of_a_release(tmp_path):
    model, entries = joint_model()
    model.report(tmp_path / "page.html", release=True)
    model.report(tmp_path / "mine.html", held_out=entries)
    text, mine = ((tmp_path / name).read_text("utf-8") for name in ("page.html", "mine.html"))
    assert "secretowner" not in text
    assert "secretowner7" in mine
    assert [mode["name"] for mode in Page(text).data[0]["modes"]] == ["item"]
    # Whatever rows owners have, the page is the same.
    model.model_.factors[0][:], model.model_.mode_biases[0][:] = 7.65e8, 3.21e8
    model.report(tmp_path / "again.html", release=True)
    model.report(tmp_path / "mine.html")
    assert (tmp_path / "again.html").read_text("utf-8") == text
    assert 321000000 in Page((tmp_path / "mine.html").read_text("utf-8")).data[1]["modes"][0]["bias"]


def test_every_number_and_label_that_a_release_embeds_is_one_of_the_release(folders, tmp_path):
    """Rows, biases and labels for the search: each in three digits a number of the release's arrays."""
    for kind in ("entry", "joint", "coupled", "power"):
        release = of_release(folders / kind)
        sf.load(release).report(tmp_path / "page.html")
        arrays = parse_tensors((release / "model.safetensors").read_bytes(), release)
        numbers = {float(f"{x:.3g}") for array in arrays.values() for x in array.ravel().tolist()}
        text = (release / "model.json").read_text("utf-8")
        description = json.loads(text)
        words = {*json.dumps(description).replace('"', " ").replace(",", " ").split()}
        for part in read(tmp_path / "page.html").data:
            for mode in part["modes"]:
                assert set(mode["rows"]) <= numbers
                assert set(mode["bias"] or ()) <= numbers
                assert set(mode["count"] or ()) <= numbers
                size = len(mode["labels"])
                assert set(mode["labels"]) <= words | {str(n) for n in range(size)}
            if part["mean"] is not None:
                assert part["mean"] == float(f"{description['mean']:.3g}")


def test_what_the_holder_knows_is_not_released(tmp_path):
    model, entries = joint_model()
    for given in ({"held_out": entries}, {"ledger": tmp_path / "x"}, {"audit": tmp_path / "x"}):
        with pytest.raises(SettingError, match="not released"):
            model.report(tmp_path / "page.html", release=True, **given)
    with pytest.raises(ReleaseError):
        sf.CP(1).fit(entries).report(tmp_path / "page.html", release=True)
    seeded = sf.Privacy(1.0, 1e-6, unit="user", public=model.privacy.public, seed=1)
    again = sf.CP(2, privacy=seeded).fit(entries)
    with pytest.raises(ReleaseError, match="seed"):
        again.report(tmp_path / "page.html", release=True)
    assert not (tmp_path / "page.html").exists()
    again.report(tmp_path / "page.html", release=True, force=True)
    assert "seeded" in read(tmp_path / "page.html").text
    assert "nothing is promised of it" in read(tmp_path / "page.html").text
    model.report(tmp_path / "mine.html")
    assert (tmp_path / "mine.html").stat().st_mode & 0o777 == 0o600  # holds more than a release


# -- open models --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [sf.CP(2), sf.Tucker(2), sf.Biases(), sf.CP(2, solver=sf.SGD(passes=3))],
    ids=repr,
)
def test_a_page_of_an_open_model_says_that_nothing_is_protected(model, tmp_path):
    train, test = ratings().split(0.2, seed=0)
    model.fit(train).report(tmp_path / "page.html", held_out=test)
    found = read(tmp_path / "page.html")
    assert "Nothing is protected" in found.text
    assert "protected" not in found.ids
    assert f"{model.rmse(test):.4f}" in found.text
    if not isinstance(model, sf.Biases):
        assert "learning" in found.ids


def test_pages_of_other_open_models(tmp_path):
    sf.Coupled(2).fit({"ratings": ratings(), "tags": ratings("tag", 5)}).report(tmp_path / "a.html")
    tensor = np.einsum("i,j,k->ijk", *[np.eye(4)[0]] * 3)
    sf.PowerMethod(1).fit(tensor).report(tmp_path / "b.html")
    for name in ("a.html", "b.html"):
        assert "Nothing is protected" in read(tmp_path / name).text


def test_a_model_has_to_be_fitted(tmp_path):
    with pytest.raises(NotFittedError):
        sf.CP(2).report(tmp_path / "page.html")
    assert "not fitted" in sf.CP(2)._repr_html_()


# -- what labels cannot do ----------------------------------------------------------------------------


def test_labels_are_text_whatever_they_hold(tmp_path):
    whole = ratings()
    items = Mode(EVIL[1], 6, np.array([*EVIL[:4], "a\u202eb", EVIL[5]], object))
    entries = sf.SparseTensor(whole.coordinates, whole.values, (whole.modes[0], items), whole.bounds)
    model = sf.CP(2).fit(entries)
    model.report(tmp_path / "page.html", held_out=entries)
    found = read(tmp_path / "page.html")
    assert len(found.of("script")) == 2
    assert {EVIL[0], EVIL[2], EVIL[3], EVIL[5]} <= set(found.data[0]["modes"][1]["labels"])
    assert EVIL[5] in found.words
    assert "\u202e" not in (tmp_path / "page.html").read_text("utf-8")
    assert "<img" not in model._repr_html_()


def test_text_that_cannot_be_written_is_replaced():
    rows = np.eye(6)[:, :2]
    part = Part(EVIL[0], (Levels(EVIL[4], lambda n: EVIL[n], rows, rows[:, 0]),))
    made = Page(page(Shown(EVIL[0], ((EVIL[1], EVIL[2]),), None, (part,))).text)
    made.check()
    assert "\ufffd" in made.data[0]["modes"][0]["labels"][4]
    assert page(Shown(EVIL[0], (), None, (part,))).text.encode()


# -- sizes ----------------------------------------------------------------------------------------------


def test_a_page_of_large_modes_stays_small_and_says_what_it_shows():
    g = np.random.default_rng(0)
    users, items = g.normal(size=(50_000, 20)), g.normal(size=(3_706, 20))
    counts = np.arange(3_706.0)
    levels = (
        Levels(
            "user", lambda n: f"a user with a rather long name and the number {n}", users, users[:, 0]
        ),
        Levels("item", lambda n: f"item {n}", items, items[:, 0], counts),
    )
    made = page(Shown("Large", (), None, (Part("", levels, 3.5, (1, 5)),))).text
    assert len(made.encode()) < 3_000_000
    found = Page(made)
    found.check()
    kept = [len(mode["labels"]) for mode in found.data[0]["modes"]]
    assert f"of which the {kept[0]:,} with the largest rows can be searched here" in found.text
    several = tuple(Part(f"table {n}", levels) for n in range(4))
    assert len(page(Shown("Several", (), None, several)).text.encode()) < 3_000_000


def test_a_model_without_factors_has_no_map(tmp_path):
    sf.Biases().fit(ratings()).report(tmp_path / "page.html")
    assert "No factors" in read(tmp_path / "page.html").text


# -- on the command line ----------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    whole = ratings()
    file = tmp_path / "ratings.csv"
    sf.write_completed(file, whole.coordinates, whole.values, whole.modes, "stars")
    return file


FIT = ("--modes", "user", "item", "--value", "stars", "--bounds", 1, 5)
PRIVATE = ("--epsilon", 1, "--delta", 1e-6, "--unit", "user", "--labels-are-public")


def test_reports_beside_an_open_fit(table, tmp_path):
    made = run(
        "complete", table, *FIT, "--test", 0.2, "--report", "--out", tmp_path / "model", "--quiet"
    )
    assert made.exit_code == 0, made.output
    found = read(tmp_path / "model" / "report.html")
    assert "Errors at held-out entries" in found.text
    assert sf.load(tmp_path / "model").rank_  # the page is a file of the model
    again = run("complete", table, *FIT, "--out", tmp_path / "model", "--quiet")
    assert again.exit_code == 0
    assert not (tmp_path / "model" / "report.html").exists()


def test_reports_beside_a_private_fit_are_two(table, tmp_path):
    out = tmp_path / "model"
    asked = (*FIT, *PRIVATE, "--public-units", 40, "--test", 0.2, "--report", "--out", out, "--quiet")
    made = run("complete", table, *asked, "--json")
    assert made.exit_code == 0, made.output
    written = json.loads(made.stdout)["written"]
    assert written[1:] == [str(out / "release/report.html"), str(out / "report-not-for-release.html")]
    released, mine = read(out / "release/report.html"), read(out / "report-not-for-release.html")
    assert "Not for release" not in released.text
    assert "Errors at held-out entries" in mine.text
    assert "expected" in mine.text
    assert sf.load(out).modes_[0].size == 40
    # Signed and recorded as any release; the holder's page stays where it is.
    assert run("report", out / "release", "--out", tmp_path / "again.html").exit_code == 0
    assert (tmp_path / "again.html").read_bytes() == (out / "release/report.html").read_bytes()
    assert sf.write_record(out, {"contact": "the reading room"}) is not None
    assert (out / "report-not-for-release.html").exists()
    assert sf.load(out).modes_[0].size == 40


def test_a_report_with_a_ledger_and_held_out_entries(table, tmp_path):
    ledger, out = tmp_path / "data.ledger", tmp_path / "model"
    asked = (*FIT, *PRIVATE, "--public-units", 40, "--ledger", ledger, "--out", out, "--quiet")
    assert run("complete", table, *asked).exit_code == 0
    page_of = tmp_path / "page.html"
    made = run("report", out, "--held-out", table, "--ledger", ledger, "--out", page_of)
    assert made.exit_code == 0, made.output
    found = read(page_of)
    assert {"ledger", "errors", "owners"} <= set(found.ids)
    assert found.text.count("The plan expected 0.") == 2  # of a model that was read from its folder
    assert "What came is" in found.text
    wrong = run("report", table, "--ledger", ledger)
    assert wrong.exit_code == 1


def test_reports_of_privatised_values(table, tmp_path):
    noisy = tmp_path / "noisy.csv"
    made = run("privatise", table, *FIT, "--epsilon", 3, "--report", "--out", noisy, "--quiet")
    assert made.exit_code == 0, made.output
    found = read(tmp_path / "noisy.csv.report.html")
    assert "Need not be trusted" in found.text
    assert privatised_page(noisy).for_release
    with pytest.raises(SettingError):
        privatised_page(table)


def test_a_report_of_several_tables(table, tmp_path):
    out = tmp_path / "model"
    columns = ("--modes", "a=user,item", "--value", "a=stars", "--test", "a=0.2")
    made = run("couple", f"a={table}", *columns, "--out", out, "--report", "--quiet")
    assert made.exit_code == 0, made.output
    assert "tables" in read(out / "report.html").text


def test_a_report_of_a_network_has_measures_for_its_holder_alone(tmp_path):
    network(tmp_path / "model")
    sf.load(tmp_path / "model").report(tmp_path / "page.html")
    assert "columns" in read(tmp_path / "page.html").text


# -- in notebooks and browsers ----------------------------------------------------------------------


def test_show_writes_a_page_and_opens_it(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = sf.show(sf.CP(2).fit(ratings()))
    read(path)
    assert opened == [path.as_uri()]
    with pytest.raises(SettingError):
        sf.show(3)
    shutil.rmtree(path.parent)


def test_a_notebook_shows_a_page_in_a_frame(monkeypatch):
    shown = []
    monkeypatch.setattr("sfumato.estimators.showing._notebook", lambda: shown.append)
    assert sf.show(sf.CP(2).fit(ratings())) is None
    frame = Page(shown[0]).of("iframe")[0]
    assert frame["sandbox"] == "allow-scripts allow-modals"
    Page(frame["srcdoc"]).check()


def test_notebooks_show_things_in_small(folders):
    model = sf.load(folders / "joint")
    plan = sf.CP(
        2, privacy=sf.Privacy(1.0, 1e-6, unit="entry", public=sf.Public(labels=True, entries=90))
    )
    for each in (
        model,
        model.guarantee_,
        model.guarantee_.odds(),
        sf.Ledger(sf.Entry()),
        ratings(),
        sf.CP(2).plan(ratings().modes),
        plan.plan(ratings().modes, bounds=(1, 5), entries=90),
    ):
        assert len(Page(each._repr_html_()).of("tr")) > 0


def test_what_was_drawn_is_a_part_of_the_guarantee(folders):
    for kind in KINDS:
        promise = sf.load(of_release(folders / kind)).guarantee_
        assert promise.draws
        assert sum(share for _, _, share in promise.draws) == pytest.approx(1, abs=1e-3) or all(
            share == 0 for _, _, share in promise.draws
        )
        assert sf.Guarantee.from_json(promise.to_json()) == promise


def test_models_beside_raw_data_are_their_owners_alone(table, tmp_path):
    noisy, out = tmp_path / "noisy.csv", tmp_path / "model"
    asked = ("privatise", table, *FIT, "--epsilon", 3, "--out", noisy, "--quiet")
    assert run(*asked).exit_code == 0
    made = run("complete", table, *FIT, "--others", noisy, "--report", "--out", out, "--quiet")
    assert made.exit_code == 0, made.output
    assert "as secret as they are" in read(out / "owner" / "report.html").text
    model = sf.load(out)
    with pytest.raises(ReleaseError):
        model.report(tmp_path / "page.html", release=True)
    assert "none: it can give away" in model._repr_html_()


def test_a_pipeline_of_scikit_learn_draws_itself_as_ever():
    from sklearn.pipeline import make_pipeline

    drawn = make_pipeline(sf.CP(2))._repr_html_()
    assert "CP(rank=2)" in drawn


def brightness(colour):
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_it_stands_on(place):
    """By the contrast that WCAG asks of text (4.5), and of lines (3)."""
    found = re.findall(r":root \{(.*?)\}", _asset("page.css"), re.DOTALL)[place]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", found))

    def contrast(front, back):
        low, high = sorted(brightness(colours[each]) for each in (front, back))
        return (high + 0.05) / (low + 0.05)

    for back in ("paper", "soft"):
        for front in ("ink", "quiet", "main", "other", "covered", "secret"):
            assert contrast(front, back) >= 4.5, (front, back)
        assert contrast("limit", back) >= 3
    for kind in ("covered", "secret"):
        assert contrast(kind, f"{kind}-soft") >= 4.5
    assert contrast("faint", "paper") >= 3


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.0},
        {"epsilon": 0.0, "delta": 0.0},
        {"epsilon": 1e4},
        {"epsilon": float("inf")},
        {"proven": False, "proof": "a paper", "curve": ()},
        {"seeded": True, "warnings": ("little is promised",)},
        {"kept": ("rows of user",), "owner": "user"},
        {"draws": (("sum", 3, 0.0),)},
        {"trust": Trust("each site", 3).in_words()},
        {"trust": Trust("secure shares", 5, 2).in_words()},
    ],
    ids=", ".join,
)
def test_promises_of_all_kinds_have_a_page(change):
    promise = replace(
        sf.Guarantee(
            epsilon=1.0,
            delta=1e-6,
            unit="one entry",
            neighbours="one entry is added or removed",
            released=("mean",),
            method="constant",
            proven=True,
            proof="proofs/x.md",
            exact=True,
            seeded=False,
            assumptions=(),
        ),
        **change,
    )
    found = Page(page(Shown("A promise", (), promise)).text)
    found.check()
    for sentence in (*promise.warnings, promise.unit, *promise.released):
        assert sentence.lower() in found.text.lower()
    assert found.data is None


def test_a_ledger_without_a_limit_and_with_doubtful_fits_has_a_page(tmp_path):
    ledger = tmp_path / "x.ledger"
    whole = ratings()
    for seed in (None, 1):
        privacy = sf.Privacy(
            1.0, 0.0, unit="value", public=sf.Public(entries=90), ledger=ledger, seed=seed
        )
        model = sf.Biases(sweeps=0, privacy=privacy).fit(whole)
    model.report(tmp_path / "page.html", ledger=ledger)
    assert "no total" in read(tmp_path / "page.html").text
