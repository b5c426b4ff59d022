"""Searches among networks: paid for as one charge, by errors that a unit can hardly change."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.errors import SettingError
from sfumato.fit.network import Learnt
from sfumato.fit.network_search import misses
from sfumato.models.features import Column, Columns
from sfumato.models.network import Architecture, Network
from sfumato.sites.examples import Examples

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-1, 1, (2000, 3))
Y = (X[:, 0] * X[:, 1] > 0).astype(int)  # which no linear classifier can tell
SETTINGS = {"classes": [0, 1], "bounds": (-1, 1), "steps": 60}
CANDIDATES = [
    sf.PrivateClassifier(**SETTINGS),
    sf.PrivateClassifier(hidden=(32,), **SETTINGS),
]


def privacy(**settings):
    return sf.Privacy(
        epsilon=3, delta=1e-5, unit="example", public=sf.Public(entries=2000), seed=1, **settings
    )


def test_the_better_network_is_found_within_the_budget(tmp_path):
    ledger = tmp_path / "data.ledger"
    search = sf.PrivateSearch(CANDIDATES, privacy(ledger=ledger)).fit(X, Y)
    assert search.best_index_ == 1
    assert search.score(X, Y) > 0.85
    assert search.guarantee_.epsilon <= 3
    assert "best of 2 candidates" in search.guarantee_.tuning
    assert len(ledger.read_text().splitlines()) == 2  # what it is about, and one charge
    assert search.best_estimator_.guarantee_ == search.guarantee_
    assert all(not hasattr(each, "network_") for each in CANDIDATES)


def test_candidates_are_of_one_kind():
    with pytest.raises(SettingError, match="of one kind"):
        sf.PrivateSearch([CANDIDATES[0], sf.CP(2)], privacy()).fit(X, Y)


@pytest.mark.parametrize("loss", ["classes", "numbers"])
@pytest.mark.parametrize("owned", [False, True])
def test_a_unit_changes_the_error_by_half_at_most(loss, owned):
    """By taking out every unit in turn."""
    random = np.random.default_rng(1)
    features = Columns(tuple(Column(name, (-1.0, 1.0)) for name in "ab"))
    rows = features.rows([random.uniform(-1, 1, 40) for _ in "ab"])
    architecture = Architecture(2, 2 if loss == "classes" else 1, loss=loss)
    network = Network(architecture, random.normal(0, 9, architecture.parameters).astype(np.float32))
    learnt = Learnt(network, (), np.zeros(2))
    targets = random.integers(0, 2, 40) if loss == "classes" else random.uniform(-1, 1, (40, 1))
    owners = random.integers(0, 8, 40) if owned else None
    examples = Examples(rows, targets, owners)
    whole = misses(learnt, features, examples)
    assert whole.l2 == 0.5
    for unit in range(examples.units):
        less = misses(learnt, features, examples.of(np.arange(examples.units) != unit))
        assert abs(whole.numbers - less.numbers) <= 0.5


def test_units_are_learnt_from_or_held_out():
    """All examples of an owner lie on one side, and none is lost."""
    random = np.random.default_rng(2)
    owners = np.unique(random.integers(0, 9, 40), return_inverse=True)[1]
    examples = Examples(np.arange(40, dtype=np.int16)[:, None], owners, owners)
    coins = random.random(examples.units) < 0.5
    learnt, held = examples.of(~coins), examples.of(coins)
    assert not set(learnt.targets) & set(held.targets)
    assert sorted([*learnt.inputs[:, 0], *held.inputs[:, 0]]) == list(range(40))
