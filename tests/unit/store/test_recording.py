"""Facts of people in folders: whole or not at all, and owners' rows belong to their release still."""

import json
import shutil

import pytest
from model_folders import as_of_format_1
from releases import PEOPLE, joint, ratings

import sfumato as sf
from sfumato.errors import ModelFileError, SettingError


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joint") / "model"
    joint(folder)
    return folder


@pytest.fixture
def folder(fitted, tmp_path):
    return shutil.copytree(fitted, tmp_path / "model")


def bytes_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_label_and_the_record_change(folder):
    before, predicted = bytes_of(folder), sf.load(folder).predict(ratings())
    assert sf.write_record(folder, PEOPLE) == ()
    after = bytes_of(folder)
    changed = {str(path) for path in before if before[path] != after[path]}
    assert set(after) == set(before)
    assert changed == {
        "release/LABEL.md",
        "release/deployment.yaml",
        "release/manifest.json",
        "owner/model.json",
        "owner/manifest.json",
    }
    assert (sf.load(folder).predict(ratings()) == predicted).all()
    assert (folder / "owner").stat().st_mode & 0o777 == 0o700
    sf.write_record(folder, {})  # and back
    assert bytes_of(folder) == before


def test_a_release_alone_is_filled_in(folder):
    sf.write_record(folder / "release", PEOPLE)
    assert PEOPLE["contact"] in (folder / "release" / "LABEL.md").read_text("utf-8")
    with pytest.raises(ModelFileError, match="another release"):
        sf.load(folder)
    with pytest.raises(ModelFileError, match="another release"):
        sf.write_record(folder, PEOPLE)


def test_a_signature_does_not_outlive_what_it_signed(folder, tmp_path):
    sf.new_key(tmp_path / "key")
    sf.sign(folder, tmp_path / "key")
    sf.write_record(folder, PEOPLE)
    assert not (folder / "release" / "signature.json").exists()
    sf.sign(folder, tmp_path / "key")
    sf.verify(folder, tmp_path / "key.pub")


def test_bad_facts_leave_everything_as_it_was(folder):
    before = bytes_of(folder)
    with pytest.raises(SettingError):
        sf.write_record(folder, {"name": 3})
    assert bytes_of(folder) == before


def test_an_earlier_release_gets_a_label_and_a_record(folder):
    release = folder / "release"
    from sfumato.store.manifest import manifest_of

    (release / "LABEL.md").unlink()
    (release / "deployment.yaml").unlink()
    (release / "guarantee.txt").write_text("promise ...")
    files = {path.name: path.read_bytes() for path in release.iterdir() if path.name != "manifest.json"}
    (release / "manifest.json").write_bytes(manifest_of(files))
    shutil.rmtree(folder / "owner")
    assert sf.load(folder).guarantee_ is not None
    sf.write_record(folder, PEOPLE)
    names = {path.name for path in release.iterdir()}
    assert {"LABEL.md", "deployment.yaml"} < names
    assert "guarantee.txt" not in names


def test_what_promises_nothing_has_no_record(folder, tmp_path):
    sf.CP(1).fit(ratings()).save(tmp_path / "open")
    for place in (tmp_path / "open", folder / "owner"):
        with pytest.raises(ModelFileError, match="promises nothing"):
            sf.write_record(place, PEOPLE)
        with pytest.raises(ModelFileError, match="promises nothing"):
            sf.conformance(place)


@pytest.mark.filterwarnings("ignore::sfumato.errors.OldFormatWarning")
def test_a_folder_without_a_manifest_is_not_touched(folder):
    as_of_format_1(folder / "release")
    with pytest.raises(ModelFileError, match="save it again"):
        sf.write_record(folder, PEOPLE)


# -- conformance ----------------------------------------------------------------------------------


def test_of_a_release_nothing_is_said_but_what_it_says(folder):
    page = sf.conformance(folder / "release")
    assert page.for_release
    known = " ".join(str(sf.load(folder / "release").guarantee_).split())
    for block in page.blocks:
        for each in block.answers:
            if each.source == "guarantee" and "warning follows" not in each.answer:
                parts = [part for part in each.answer.split("; ") if part in known]
                assert (
                    parts
                    or "cap" in each.answer
                    or "nothing" in each.answer
                    or "no setting" in each.answer
                    or each.answer.startswith("Central")
                )
    assert str(page) == str(sf.conformance(folder))
    for secret in ({"audit": "audit.json"}, {"ledger": "data.ledger"}):
        with pytest.raises(SettingError, match="says more of the data"):
            sf.conformance(folder / "release", **secret)


def test_what_is_not_known_is_unanswered(folder):
    bare, told = sf.conformance(folder), sf.conformance(folder, PEOPLE)
    assert "Was the implementation attacked, and did the promise hold?" in bare.open
    assert set(told.open) < set(bare.open)
    assert f"{PEOPLE['justification']} [people]" in str(told)
    assert str(bare).count("unanswered") == len(bare.open)
    assert json.loads(json.dumps(told.to_json()))["open"] == list(told.open)
    assert [block.name for block in bare.blocks] == [
        "Privacy parameters and unit",
        "Algorithms and their correctness",
        "Utility and bias",
        "Trust, access and side channels",
        "Data collection and exposure",
    ]


def audit_of(folder, tmp_path, **changes):
    guarantee = sf.load(folder).guarantee_
    names = "unit", "neighbours", "method", "epsilon", "delta"
    about = {name: getattr(guarantee, name) for name in names}
    found = {"verdict": "consistent with epsilon = 1", "promise": {**about, **changes}}
    (tmp_path / "audit.json").write_text(json.dumps(found))
    return tmp_path


def test_an_audit_and_a_ledger_make_it_a_page_for_the_holder(folder, tmp_path):
    ledger = tmp_path / "data.ledger"
    privacy = sf.Privacy(
        1.0,
        1e-6,
        unit="entry",
        local=None,
        method="bias",
        ledger=ledger,
        public=sf.Public(labels=True, entries=100),
    )
    sf.Biases(privacy=privacy).fit(ratings())
    page = sf.conformance(folder, audit=audit_of(folder, tmp_path), ledger=ledger)
    assert not page.for_release
    assert "consistent with epsilon = 1 [audit]" in str(page)
    assert "1 fit, protects " in " ".join(str(page).split())
    assert "not to be handed out" in str(page)


def test_a_ledger_of_something_else_is_refused(tmp_path):
    public = sf.Public(labels=True, entries=100)
    settings = {"unit": "entry", "local": None, "method": "bias", "public": public}
    for name, epsilon in (("mine", 1.0), ("other", 0.5)):
        privacy = sf.Privacy(epsilon, 1e-6, ledger=tmp_path / name, **settings)
        sf.Biases(privacy=privacy).fit(ratings()).save(tmp_path / f"model-{name}")
    model = tmp_path / "model-mine"
    assert "1 fit, protects " in " ".join(str(sf.conformance(model, ledger=tmp_path / "mine")).split())
    with pytest.raises(SettingError, match="does not hold the charges"):
        sf.conformance(model, ledger=tmp_path / "other")


def test_an_audit_of_something_else_is_refused(folder, tmp_path):
    with pytest.raises(SettingError, match="another promise"):
        sf.conformance(folder, audit=audit_of(folder, tmp_path, method="output"))
    with pytest.raises(SettingError, match="another promise"):
        sf.conformance(folder, audit=audit_of(folder, tmp_path, epsilon=20.0))
    (tmp_path / "audit.json").write_text("[]")
    with pytest.raises(ModelFileError, match="damaged"):
        sf.conformance(folder, audit=tmp_path / "audit.json")


def test_a_signature_is_told(folder, tmp_path):
    assert "not signed" in str(sf.conformance(folder))
    sf.new_key(tmp_path / "key")
    print_of_key = sf.sign(folder, tmp_path / "key")
    assert f"signed by {print_of_key}" in " ".join(str(sf.conformance(folder)).split())
