"""Private networks under attack: theirs is not refuted, and one that is clipped in one layer alone is.

Seeds are fixed. All audits that must not be refuted raise a false alarm together in 5% of the cases at
most; what has to be refuted is refuted by far.
"""

import numpy as np
import pytest

import sfumato as sf
from sfumato.auditing import audit
from sfumato.errors import DataError, SettingError
from sfumato.kernels.numba import dense
from sfumato.solvers.network.settings import Training

pytestmark = pytest.mark.usefixtures("few_trees")
DELTA, RUNS = 1e-3, 120
FAIR = 1 - 0.05 / 3
GENERATOR = np.random.default_rng(0)
X = np.append(GENERATOR.uniform(-0.2, 0.2, (12, 3)), [[1.0, 1.0, -1.0]], axis=0)
Y = np.append(GENERATOR.integers(0, 2, 12), 1)
OWNERS = np.append(np.arange(12) // 3, 3)


def network(epsilon, *, unit="example", rate=1.0, hidden=(), clip=0.05, steps=3, centre=None):
    public = sf.Public(entries=12) if unit == "example" else sf.Public(units=4)
    training = Training(rate, steps, clip, 0.5, momentum=0.0, average=0.0, centre=centre)
    return sf.PrivateClassifier(
        hidden,
        privacy=sf.Privacy(epsilon, DELTA, unit=unit, public=public),
        classes=[0, 1],
        bounds=(-1, 1),
        training=training,
    )


def audited(estimator, *groups, confidence=FAIR):
    return audit(estimator, (X, Y, *groups), runs=RUNS, confidence=confidence, processes=1)


def test_a_private_network_is_not_refuted():
    found = audited(network(2.0, hidden=(4,), centre=1.0))
    assert found.promise.epsilon == pytest.approx(2.0, abs=0.01)
    assert not found.violated, str(found)


def test_nor_is_one_on_random_batches():
    found = audited(network(0.5, rate=0.5, steps=2))
    assert not found.violated, str(found)


def test_nor_is_one_that_protects_owners():
    found = audited(network(0.5, unit="patient"), OWNERS)
    assert "patient" in found.promise.unit
    assert not found.violated, str(found)


def test_the_attack_sees_what_there_is_to_see():
    """At a budget that hides next to nothing it finds the canary."""
    assert audited(network(30.0), confidence=0.95).measured > 1.5


@pytest.fixture
def clipped_in_the_first_layer_alone(monkeypatch):
    """Norms of one layer stand for those of all; and nothing looks after."""
    whole = dense._norms

    def of_the_first(passed, errors):
        return whole(passed._replace(into=passed.into[:1], squares=passed.squares[:1]), errors[:1])

    monkeypatch.setattr(dense, "_norms", of_the_first)
    monkeypatch.setattr(dense, "BELOW_ONE", np.inf)


@pytest.mark.usefixtures("clipped_in_the_first_layer_alone")
def test_a_network_that_is_clipped_in_one_layer_alone_is_refuted():
    found = audited(network(0.5, hidden=(4,)), confidence=0.999)
    assert found.violated, str(found)


def test_what_cannot_be_audited_is_said():
    with pytest.raises(DataError, match="takes"):
        audit(network(1.0), X, runs=40)
    with pytest.raises(DataError, match="as many rows"):
        audit(network(1.0), (X, Y[:-1]), runs=40)
    with pytest.raises(SettingError, match="canary"):
        audit(network(1.0), (X, Y), runs=40, canaries=["edge"])
    with pytest.raises(SettingError, match="sees"):
        audit(network(1.0), (X, Y), runs=40, sees=["mean"])
    with pytest.raises(SettingError, match="privacy"):
        audit(sf.PrivateClassifier(), (X, Y), runs=40)
