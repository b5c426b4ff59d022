"""What a private fit of several relations is shown: nothing of it may depend on who else is there."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.estimators.coupled_private import prepared
from sfumato.privacy.entropy import Entropy
from sfumato.solvers.protocol import Run


def table(rows, *names, bounds=(0.0, 5.0)):
    columns = {name: [row[k] for row in rows] for k, name in enumerate(names)}
    columns["value"] = [float(row[-1]) for row in rows]
    import pandas as pd

    return sf.read(pd.DataFrame(columns), modes=list(names), value="value", bounds=bounds)


def ready(tensors, unit="user", relations=None, seed=0, **rest):
    labels = rest.pop("labels")
    public = sf.Public(labels=labels, relations=relations or {}, **rest.pop("public", {}))
    privacy = sf.Privacy(3.0, 1e-6, unit=unit, method="bias", public=public, **rest)
    structures = dict.fromkeys(tensors, "cp")
    return prepared(tensors, structures, privacy, None, Run(0, 1), Entropy(seed))


RATINGS = table([("a", "x", 3), ("a", "y", 4), ("b", "y", 1)], "user", "item")
SHOPS = table([("a", "s1", 3), ("b", "SECRET", 2)], "user", "shop")
TAGS = table([("x", "t1", 1), ("y", "t2", 2)], "item", "tag")
LABELS = {"item": ["x", "y", "z"], "shop": ["s1", "s2", "s3"], "tag": ["t1", "t2"]}


@pytest.mark.parametrize("unit", ["user", "entry"])
@pytest.mark.parametrize("order", [("ratings", "shops"), ("shops", "ratings")])
def test_listed_labels_are_those_of_every_relation(unit, order):
    both = {"ratings": RATINGS, "shops": SHOPS}
    labels = {name: LABELS[name] for name in ("item", "shop")}
    found = ready(
        {name: both[name] for name in order}, unit, labels=labels, local="user", public={"units": 10}
    )
    shops = found.tensors["shops"]
    assert shops.modes[1].labels.tolist() == LABELS["shop"]
    assert shops.n_entries == 1  # what has no public label is left out
    assert found.tensors["ratings"].modes[1].labels.tolist() == LABELS["item"]
    users = [tensor.modes[0] for tensor in found.tensors.values()]
    assert users[0] == users[1]
    assert users[0].size == 10


@pytest.mark.parametrize("order", [("tags", "ratings"), ("ratings", "tags")])
def test_the_number_of_owners_is_the_public_one_whichever_relation_comes_first(order):
    both = {"ratings": RATINGS, "tags": TAGS}
    labels = {name: LABELS[name] for name in ("item", "tag")}
    found = ready(
        {name: both[name] for name in order}, "entry", labels=labels, local="user", public={"units": 10}
    )
    assert found.tensors["ratings"].modes[0].size == 10
    facts = dict(zip(found.plan.task.facts.names, found.plan.task.facts.parts, strict=True))
    assert facts["ratings"].sizes == (10, 3)


def test_listed_owners_are_those_of_every_relation():
    labels = {**LABELS, "user": ["a", "b", "c", "d"]}
    labels.pop("tag")
    found = ready({"ratings": RATINGS, "shops": SHOPS}, labels=labels)
    for tensor in found.tensors.values():
        assert tensor.modes[0].labels.tolist() == ["a", "b", "c", "d"]


def test_labels_of_a_mode_that_no_relation_has_are_refused():
    with pytest.raises(sf.SettingError, match="no modes"):
        ready({"ratings": RATINGS, "shops": SHOPS}, labels={**LABELS, "colour": ["red", "blue"]})


# -- newcomers ------------------------------------------------------------------------------------


def many(newcomer):
    g = np.random.default_rng(0)
    users = [f"u{n:02}" for n in range(20)]
    rows = [(u, f"i{g.integers(6)}", g.integers(1, 6)) for u in users for _ in range(3)]
    public = [(u, f"p{k}", 1 + (n * k) % 4) for n, u in enumerate(users) for k in range(5)]
    if newcomer:
        rows = [("a new one", "i1", 5), *rows]
    rows = list({row[:2]: row for row in rows}.values())
    return {
        "ratings": table(rows, "user", "item"),
        "people": table(public, "user", "place"),
    }


@pytest.mark.parametrize("unit", ["user", "entry"])
def test_what_public_tables_say_of_a_user_does_not_depend_on_newcomers(unit):
    features = []
    for newcomer in (False, True):
        found = ready(
            many(newcomer),
            unit,
            relations={"ratings": sf.Public(entries=60), "people": True},
            labels={"item": [f"i{k}" for k in range(6)], "place": [f"p{k}" for k in range(5)]},
            local="user",
            public={"units": 30},
        )
        (mine,) = [each for each in found.plan.task.solver.features if each.mode == 0]
        labels = found.tensors["ratings"].modes[0].labels.tolist()
        features.append({label: mine.columns[row] for row, label in enumerate(labels)})
    for user, row in features[0].items():
        if user.startswith("u"):
            assert np.array_equal(row, features[1][user])
    assert not features[1]["a new one"].any()


def test_owners_are_at_random_places_whatever_the_unit():
    """Of many owners some places are asked: in the order of labels a newcomer would shift them all."""
    places = []
    for seed in range(3):
        found = ready(
            many(False),
            relations={"ratings": sf.Public(entries=60), "people": True},
            labels={"item": [f"i{k}" for k in range(6)], "place": [f"p{k}" for k in range(5)]},
            public={"units": 30},
            seed=seed,
        )
        labels = found.tensors["ratings"].modes[0].labels.tolist()
        places.append([labels.index(f"u{n:02}") for n in range(20)])
    assert all(each != sorted(each) for each in places)
    assert places[0] != places[1] != places[2]
