"""What people say: a template that asks, and a reader that takes nothing it was not asked for."""

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from releases import PEOPLE

from sfumato.errors import SettingError
from sfumato.standards.people import FACTS, check_people, missing, read_people, template


def written(tmp_path, text):
    path = tmp_path / "people.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_template_asks_for_everything_and_says_nothing(tmp_path):
    text = template()
    assert set(tomllib.loads(text)) == {f.name for f in FACTS} - {"data_curators", "evidence_sources"}
    assert read_people(written(tmp_path, text)) == {}
    filled = (
        text.replace("# [", "[")
        .replace("# data_c", "data_c")
        .replace("# ev", "ev")
        .replace("# misc", "misc")
    )
    assert {f.name for f in FACTS} == set(tomllib.loads(filled))


def test_what_is_said_is_read(tmp_path):
    assert check_people(PEOPLE) == PEOPLE
    assert missing(PEOPLE) == ()
    lines = 'name = "A"\npublication_date = 2026-03-31\nutility = ""\n'
    assert read_people(written(tmp_path, lines)) == {"name": "A", "publication_date": "2026-03-31"}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("name = 3", "name: has to be text"),
        ("nam = 'x'", "'nam' is not asked for"),
        ("publication_date = '31.3.2026'", "publication_date: has to be a date"),
        ("publication_date = '2026-02-30'", "publication_date: has to be a date"),
        ("publication_date = 2026-03-31T10:00:00Z", "publication_date: has to be a date"),
        ("data_product_sector = 'Books'", "has to be one of Technology"),
        ("data_curators = ['me']", "data_curators.0: has to be a table"),
        ("[[data_curators]]\ndata_curator_name = 'me'", "data_curators.0.data_curator_type: is missing"),
        ("number_of_privacy_units = true", "has to be a whole number"),
        ("number_of_privacy_units = 0", "one or more: got 0"),
        ("number_of_privacy_units = -5", "one or more: got -5"),
        ("registry_authors = [1]", "registry_authors.0: has to be text"),
        ("name = 'MISSING: what'", "say it, or leave it empty"),
        ("name = ", "is no file of TOML"),
        (b"\xff\xfe", "is no file of TOML"),
        ("[evidence_sources.a]\nother = 1", "evidence_sources.a: is not of exactly one"),
        ("x = " + "[" * 5000, "is no file of TOML"),
        ("#" * (1 << 20) + "#", "is larger than"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, said, wanted):
    with pytest.raises(SettingError, match=wanted):
        read_people(written(tmp_path, said))


def test_letters_that_no_file_can_hold_are_refused():
    with pytest.raises(SettingError, match="contact has a letter that cannot be written"):
        check_people({"contact": "\ud800"})


@pytest.mark.parametrize("place", ["", "nowhere.toml"])
def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path, place):
    with pytest.raises(SettingError, match="cannot be read"):
        read_people(tmp_path / place)


NAMES = st.one_of(st.sampled_from([fact.name for fact in FACTS]), st.text(max_size=5))
VALUES = st.recursive(
    st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.booleans(), st.none(), st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(VALUES, st.dictionaries(NAMES, VALUES, max_size=4)))
def test_whatever_is_said_is_taken_or_refused(said):
    try:
        taken = check_people(said)
    except SettingError:
        return
    assert set(taken) <= {fact.name for fact in FACTS}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=40), st.integers(0, 400), st.integers(0, 40))
def test_damaged_files_are_refused_or_read(tmp_path_factory, bytes_in, place, cut):
    text = template().encode()
    path = written(tmp_path_factory.mktemp("people"), text[:place] + bytes_in + text[place + cut :])
    try:
        taken = read_people(path)
    except SettingError:
        return
    assert set(taken) <= {fact.name for fact in FACTS}


def test_tables_within_tables_without_end_are_refused(tmp_path):
    path = written(tmp_path, ".".join(["actors", *["a"] * 800]).encode() + b" = 1\n")
    with pytest.raises(SettingError, match="tables within tables"):
        read_people(path)
