"""A guarantee as it is written and read."""

import json

import pytest

import sfumato as sf

PROMISED = sf.Guarantee(
    epsilon=1.0,
    delta=1e-6,
    unit="one entry",
    neighbours="one entry is added or removed",
    released=("mean", "rows of item"),
    method="noise on sums",
    proven=True,
    proof="proofs/biases.md",
    exact=True,
    seeded=False,
    assumptions=("the bounds are public",),
    kept=("rows of user",),
    owner="user",
    cap=20,
    fits=2,
    total_epsilon=float("inf"),
)


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
