"""Private pairs: budget, noise, what they find, and that they leave alone what is not there."""

from math import sqrt

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.admit import with_labels_of
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.pairs.queries import LevelSumsQuery, PairSumsQuery
from sfumato.solvers.private.pairs.settings import columns
from sfumato.solvers.private.pairs.solver import PrivatePairs
from sfumato.solvers.protocol import Run

BOUNDS, SIZES = (1.0, 5.0), (40, 30, 6)
PURE = pytest.mark.parametrize("pure", [False, True], ids=["gaussian", "pure"])
WHOSE = pytest.mark.parametrize(
    ("unit", "local"),
    [(Entry(), None), (Entry(), 0), (Unit("user"), 0)],
    ids=["released", "entry", "user"],
)


def planted(alike, seed=0, entries=1500):
    """Two entries or so at each of some pairs; of their variance pairs make up a share."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(SIZES[0] * SIZES[1])[: entries // 2]
    cells = np.repeat(np.stack(np.unravel_index(pairs, SIZES[:2])), SIZES[2], 1)
    cells = np.vstack([cells, np.tile(np.arange(SIZES[2]), pairs.size)])
    cells = cells[:, rng.permutation(cells.shape[1])[:entries]]
    effects = rng.normal(size=SIZES[:2])
    values = 3 + 0.3 * rng.normal(size=SIZES[0])[cells[0]] + sqrt(alike) * effects[cells[0], cells[1]]
    values = np.clip(values + sqrt(1 - alike) * rng.normal(size=entries), *BOUNDS)
    modes = tuple(Mode(name, n) for name, n in zip(("user", "place", "tag"), SIZES, strict=True))
    return SparseTensor(cells, values, modes, BOUNDS)


def facts_of(tensor, unit, local):
    facts = Facts(Shape.of(tensor.modes, (1,) * 3, "cp"), unit, BOUNDS, tensor.n_entries, None, local)
    return Facts(facts.shape.with_rank(columns(facts)), unit, BOUNDS, tensor.n_entries, None, local)


def fit(solver, facts, site, seed=0):
    """What was made, and by draw the query, the answer and what it would be without noise."""
    state, answers = solver.init(Run(), facts), []
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(seed)) as reservation:
        for _ in range(solver.rounds(facts)):
            query = solver.ask(state)
            released = reservation.ask(lambda draw, query=query: Local(site).released(query, draw))
            answers.append((query, released, query.clipped(site)))
            state, _ = solver.update(state, released)
    return solver.finish(state), answers


ALIKE, APART = planted(0.8), planted(0.0)


@PURE
@WHOSE
def test_all_draws_together_cost_what_one_with_this_noise_costs(unit, local, pure):
    facts = facts_of(ALIKE, unit, local)
    for noise in (0.3, 2.0):
        solver = PrivatePairs(noise, pure)
        event = Composed(tuple(charge.mechanism.event for charge in solver.charges(facts)))
        if pure:
            assert epsilon_of(event, 0.0) == pytest.approx(1 / noise)
        else:
            assert epsilon_of(event, 1e-6) == pytest.approx(epsilon_of(GaussianEvent(noise), 1e-6))
        assert solver.rounds(facts) == len(solver.charges(facts)) == len(solver.plan(facts))


def noise_of(unit, local, pure):
    """Noise of the questions about pairs, 1500 numbers of each, over what it should be by hand."""
    facts, solver, site, ratios = (
        facts_of(ALIKE, unit, local),
        PrivatePairs(0.02, pure),
        Site(ALIKE, 1),
        [],
    )
    answers = fit(solver, facts, site)[1]
    charges = solver.charges(facts)
    for step, charge, (query, _, clipped) in zip(solver.plan(facts), charges, answers, strict=True):
        if step.asks == "biases":
            continue
        spread, number = query.known.facts.spread, len(SIZES) - (local == 0)
        bound = {
            "alike": 3 * spread**2 * (number if pure else sqrt(number)),
            "sums": 1.3 * spread,
            "weight": 2.0 if pure else sqrt(2),
            "own alike": 1.5 * number if pure else sqrt(1.25 * number),
        }[step.asks]
        if unit.mode is not None:
            bound = number if pure else sqrt(number / 2)
        scale = bound * (sqrt(2) * 0.02 / step.share if pure else 0.02 / sqrt(step.share))
        for seed in range(-(-1500 // clipped.values.size)):
            noise = charge.mechanism.release(clipped, Entropy(seed)).values - clipped.numbers
            ratios.append(noise / scale)
    return np.concatenate(ratios)


@PURE
@WHOSE
def test_noise_is_what_is_charged_for_no_less_and_no_more(unit, local, pure):
    """False alarms in one of a million runs (4.9 standard deviations)."""
    ratios = noise_of(unit, local, pure)
    allowed = 4.9 * sqrt((5 if pure else 2) / ratios.size)  # squares of Laplace's law vary by five
    assert abs(np.mean(ratios**2) - 1) < allowed
    assert abs(np.mean((ratios * 2 / 3) ** 2) - 1) > allowed
    assert abs(np.mean((ratios * 3 / 2) ** 2) - 1) > allowed


def test_pairs_are_asked_for_where_they_are_alike_and_else_levels_once_more():
    solver = PrivatePairs(0.1, True)
    for tensor, kind in ((ALIKE, PairSumsQuery), (APART, LevelSumsQuery)):
        facts = facts_of(tensor, Entry(), None)
        made, answers = fit(solver, facts, Site(tensor, 1))
        assert [type(query) for query, _, _ in answers].count(kind) == 1
        assert bool(any(factor.any() for factor in made.model.factors)) == (kind is PairSumsQuery)
        if kind is PairSumsQuery:
            (asked,) = (query for query, _, _ in answers if isinstance(query, kind))
            assert asked.pair == (1, 0)


def error(tensor, method, unit, local, epsilon=10.0, **rest):
    errors = []
    for seed in range(3):
        train, test = tensor.split(0.2, seed=seed)
        public = with_labels_of(train.modes, sf.Public(entries=train.n_entries))
        privacy = sf.Privacy(
            epsilon, 1e-5, unit=unit, local=local, public=public, method=method, seed=seed
        )
        model = sf.CP(threads=1, privacy=privacy, **rest).fit(train)
        errors.append(model.rmse(test))
    return np.mean(errors), model


@pytest.mark.parametrize(("unit", "local"), [("entry", None), ("entry", "user"), ("user", "user")])
def test_the_plan_takes_them_and_gains_where_pairs_are_alike(unit, local):
    found, model = error(ALIKE, "auto", unit, local)
    assert model.method_ == "pairs"
    assert found < 0.9 * error(ALIKE, "bias", unit, local)[0]
    assert error(APART, "auto", unit, local)[0] < 1.01 * error(APART, "bias", unit, local)[0]


def test_the_plan_takes_biases_where_noise_would_hide_pairs_or_the_rank_is_too_small():
    assert error(ALIKE, "auto", "entry", None, epsilon=0.3)[1].method_ == "bias"
    assert error(ALIKE, "auto", "entry", "user", rank=4)[1].method_ == "bias"


def test_what_pairs_cannot_be_of_is_refused():
    flat = (Mode("user", 9), Mode("item", 8))
    wrong = [
        Facts(Shape.of(flat, (8, 8), "cp"), Entry(), BOUNDS, 100),
        facts_of(ALIKE, Value(), None),
        facts_of(ALIKE, Unit("user"), None),
    ]
    for facts in wrong:
        with pytest.raises(SettingError, match="three modes"):
            PrivatePairs().check(facts)
    small = Shape.of(ALIKE.modes, (5, 5, 5), "cp")
    with pytest.raises(SettingError, match="rank of 36"):
        PrivatePairs().check(Facts(small, Entry(), BOUNDS, 100, None, 0))


def test_where_data_lie_in_parts_the_plan_takes_what_adds_up(tmp_path):
    public = with_labels_of(ALIKE.modes, sf.Public(entries=ALIKE.n_entries))
    privacy = sf.Privacy(10.0, 1e-5, unit="entry", public=public, seed=0)
    shards = sf.make_shards(ALIKE, tmp_path / "parts", by="user", shards=2)
    assert len(shards) == 2
    assert sf.CP(privacy=privacy).fit(ALIKE).method_ == "pairs"
    assert sf.CP(privacy=privacy).fit(shards).method_ == "bias"
