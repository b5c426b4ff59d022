"""A guarantee as it is written and read."""

import json
from dataclasses import replace

import pytest
from promised import PROMISED

import sfumato as sf


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("epsilon", "1"),
        ("epsilon", True),
        ("epsilon", -1.0),
        ("epsilon", float("nan")),
        ("delta", 1.0),
        ("delta", None),
        ("rho", -1),
        ("total_epsilon", float("nan")),
        ("released", "mean"),
        ("released", [1]),
        ("assumptions", None),
        ("proven", 1),
        ("exact", "true"),
        ("cap", "many"),
        ("fits", 1.5),
        ("unit", None),
        ("trust", None),
        ("trust", " "),
        ("trust", ["the holder"]),
        ("colour", "red"),
    ],
)
def test_a_guarantee_is_read_field_by_field(name, wrong):
    data = json.loads(json.dumps(PROMISED.to_json()))
    assert sf.Guarantee.from_json(data) == PROMISED
    with pytest.raises(sf.SettingError, match="not a guarantee"):
        sf.Guarantee.from_json({**data, name: wrong})
    for none in ({}, [], None, "proven", {**data, "unit": None}):
        with pytest.raises(sf.SettingError, match="not a guarantee"):
            sf.Guarantee.from_json(none)


def test_a_guarantee_says_who_is_trusted():
    lines = [" ".join(line.split()) for line in str(PROMISED).splitlines()]
    begin = lines.index("neighbours one entry is added or removed") + 1
    assert lines[begin].startswith("trusts whoever holds the data and runs the fit")
    assert PROMISED.to_json()["trust"] == PROMISED.trust
    other = replace(PROMISED, trust="nobody")
    assert "trusts         nobody" in str(other)
    assert sf.Guarantee.from_json(other.to_json()) == other


def test_a_guarantee_from_before_it_said_who_is_trusted_is_that_of_a_trusted_holder():
    data = PROMISED.to_json()
    del data["trust"]
    assert sf.Guarantee.from_json(data) == PROMISED
