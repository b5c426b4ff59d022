"""Searches among private estimators: the score's bound, the cost, what is charged, kept and released."""

import json
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from sklearn.base import clone

import sfumato as sf
from sfumato.fit.search import HeldOutError
from sfumato.models.multilinear import CPModel
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import covers, epsilon_of
from sfumato.privacy.events import Composed, RepeatAndSelect
from sfumato.privacy.facts import Facts
from sfumato.sites.memory import Site

MODES = (
    sf.Mode("user", 6, np.array([f"u{n}" for n in range(6)], object)),
    sf.Mode("item", 5, np.array([f"i{n}" for n in range(5)], object)),
)
UNITS = ["value", "entry", "user", sf.UnitValues("user", 5)]


def planted(seed=0, shape=(60, 40), entries=1500, rank=1, biases=1.5):
    tensor = sf.synthetic.cp(
        shape, rank, entries=entries, snr=20, biases=biases, seed=seed, modes=["user", "item"]
    ).tensor
    return sf.prepare.clip(tensor, (-6, 6))


def privacy(**changes):
    settings = {
        "epsilon": 100.0,
        "delta": 1e-6,
        "unit": "entry",
        "method": "bias",
        "public": sf.Public(labels={"user": range(60), ...: True}, entries=1500),
        "seed": 1,
    }
    return sf.Privacy(**{**settings, **changes})


def search(candidates=None, repetitions=8, holdout=0.2, **changes):
    candidates = candidates or [sf.Biases(sweeps=0), sf.Biases()]
    return sf.PrivateSearch(candidates, privacy(**changes), repetitions=repetitions, holdout=holdout)


# -- the score ------------------------------------------------------------------------------------


def score_for(unit, local=None, entries=20):
    facts = Facts(Shape(MODES, (1, 1)), unit, (1.0, 5.0), entries, local=local)
    return HeldOutError.of(facts, 0.3)


def a_model(rng):
    model = CPModel.zeros((6, 5), 1, np.float64)
    for factor in model.factors:
        factor[:] = rng.normal(0, 2, factor.shape)
    return model.with_mean(3.0)


def statistic(score, model, cells, values):
    tensor = sf.SparseTensor(cells, values, MODES, (1, 5), _checked=True)
    return score.statistic(model, Site(tensor, 1))


def some_entries(rng):
    cells = np.stack([rng.integers(0, 6, 25), rng.integers(0, 5, 25)])
    cells[0, :8] = 0  # one user with many entries
    cells = cells[:, np.lexsort(cells[::-1])]
    return cells, rng.uniform(0, 6, 25)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["entry", "value", "user", "own rows", "values of a user"])
def test_neighbours_stay_within_the_bound(kind, seed):
    """No allowance for rounding: sums are exact."""
    rng = np.random.default_rng(seed)
    score = {
        "entry": score_for(sf.Entry()),
        "value": score_for(sf.Value()),
        "user": score_for(sf.Unit("user"), local=0),
        "own rows": score_for(sf.Entry(), local=0),
        "values of a user": score_for(sf.UnitValues("user", 3)),
    }[kind]
    (cells, values), model = some_entries(rng), a_model(rng)
    before = statistic(score, model, cells, values)
    for which in range(25):
        user = int(cells[0, which])
        kept, other, changed = np.arange(25) != which, model, values.copy()
        if kind == "value":
            kept, changed[which] = np.full(25, True), rng.choice([1.0, 5.0])
        elif kind == "values of a user":
            kept, mine = np.full(25, True), cells[0] == user
            changed[mine] = rng.choice([1.0, 5.0])
        elif kind == "user":
            kept = cells[0] != user
        elif kind == "own rows":  # the owner's row has been solved from other entries
            other = model.copy()
            other.factors[0][user] = rng.normal(0, 50)
        after = statistic(score, other, cells[:, kept], changed[kept])
        assert abs(before.numbers[0] - after.numbers[0]) <= before.l2 == before.l1


def test_the_bounds_are_reached():
    cells, model = np.array([[0, 0], [0, 1]]), CPModel.zeros((6, 5), 1, np.float64).with_mean(1.0)
    for score, bound in ((score_for(sf.Entry()), 0.5), (score_for(sf.Unit("user"), entries=1), 0.5)):
        none, some = (statistic(score, model, cells[:, :n], np.full(n, 5.0)) for n in (0, 1))
        assert some.numbers[0] - none.numbers[0] == some.l2 == bound
    for unit, local in ((sf.Entry(), 0), (sf.Value(), None), (sf.UnitValues("user", 2), None)):
        score = score_for(unit, local, entries=1)
        right, wrong = (statistic(score, model, cells[:, :1], np.full(1, x)) for x in (1.0, 5.0))
        assert wrong.numbers[0] - right.numbers[0] == wrong.l2 == 1.0


def test_many_entries_of_a_user_count_as_few():
    score, rng = score_for(sf.Unit("user")), np.random.default_rng(0)
    model, cells = a_model(rng), np.array([[0] * 5, range(5)])
    alike = [statistic(score, model, np.repeat(cells, n, axis=1), np.full(5 * n, 2.0)) for n in (1, 9)]
    assert alike[0].numbers[0] == pytest.approx(alike[1].numbers[0])


# -- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("budget", [{"epsilon": 1.0}, {"epsilon": 8.0}, {"epsilon": 2.0, "delta": 0.0}])
def test_noise_of_all_candidates_fills_the_budget_and_less_of_it_would_not_do(unit, budget):
    method = sf.PrivateBiases(pure="delta" in budget)  # "bias" has two laws, and steps between them
    plan = search([sf.CP(1), sf.CP(2), sf.CP(3)], unit=unit, method=method, **budget).plan(
        MODES, bounds=(1, 5), entries=20
    )
    task, plans = plan.task, plan.task.plans
    assert plan.event == Composed((task.mechanism.event,))
    assert covers(plan.budget, task.mechanism.event)
    assert epsilon_of(task.mechanism.event, plan.budget.delta) > 0.999 * plan.budget.epsilon
    for candidate in range(3):
        fit = plans[candidate].task
        less = replace(plans[candidate], task=fit.with_noise(fit.noise * 2 / 3))
        others = (*plans[:candidate], less, *plans[candidate + 1 :])
        assert not covers(plan.budget, replace(task, plans=others).mechanism.event)


def test_a_fit_and_its_score_add_up_where_one_unit_is_in_both():
    apart, both = (
        search([sf.CP(1), sf.CP(2)], method=sf.PrivateBiases(), local=local)
        .plan(MODES, bounds=(1, 5))
        .task.mechanism
        for local in (None, "user")
    )
    for mechanism, disjoint, ratio in ((apart, True, 1.0), (both, False, 0.1)):
        assert mechanism.disjoint == disjoint
        for run in mechanism.runs:
            fit = sum(charge.mechanism.noise_multiplier**-2 for charge in run.fit)
            assert run.score.mechanism.noise_multiplier**-2 / fit == pytest.approx(ratio, rel=1e-3)
    (whole,) = both.event.events  # the candidates cost the same
    assert [part.noise_multiplier for part in whole.events][-1] == both.runs[
        0
    ].score.mechanism.noise_multiplier
    assert apart.runs[0].score.mechanism.event in apart.event.events


def test_more_repetitions_leave_less_for_each_run():
    plans = [search(repetitions=n).plan(MODES, bounds=(1, 5)) for n in (1, 4, 20)]
    runs = [plan.task.plans[0].budget.epsilon for plan in plans]
    assert runs[0] > runs[1] > runs[2]


# -- what it finds --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_the_better_candidate_is_found_where_noise_is_small(unit):
    """Eight runs leave biases out with a chance of 1.8%: three of three seeds fail once in 20,000."""
    assert (exp(4) - 1) / (exp(8) - 1) < 0.019
    best = [search(unit=unit, seed=seed).fit(planted(seed)).best_index_ for seed in range(3)]
    assert sum(best) >= 2


def test_the_better_rank_is_found_where_noise_is_small():
    """As above: at least three of four, which fails once in 500."""
    tensor = planted(shape=(60, 40), entries=2000, rank=2, biases=0.0)
    found = [
        search([sf.CP(1), sf.CP(2)], epsilon=300.0, method="gradient", seed=seed).fit(tensor)
        for seed in range(4)
    ]
    assert sum(one.best_index_ for one in found) >= 3
    assert found[0].best_estimator_.model_.ranks == (found[0].best_index_ + 1,) * 2


def test_own_rows_are_solved_from_all_entries_and_not_released(tmp_path):
    tensor = planted()
    made = search(unit="user", epsilon=50.0).fit(tensor)
    best = made.best_estimator_
    assert best.local_ == 0
    assert made.guarantee_.kept == ("rows of user",)
    assert (best.model_.mode_biases[0] != 0).all()
    assert made.rmse(tensor) == best.rmse(tensor) < tensor.values.std()
    folder = made.release(tmp_path / "release", force=True)
    described = json.loads((folder / "model.json").read_text())
    assert described["modes"][0]["size"] == 0
    loaded = sf.load(folder)
    assert loaded.guarantee_ == made.guarantee_


def test_nothing_of_the_runs_is_released_but_the_best(tmp_path):
    """Seeds that draw different numbers of runs give releases of the same fields and words."""
    released, words = set(), set()
    for seed in range(4):
        made = search([sf.Biases(), sf.Biases(ridge=7.0)], seed=seed, repetitions=3).fit(planted())
        folder = made.release(tmp_path / "release", force=True)
        released.add(tuple(json.loads((folder / "model.json").read_text())))
        words.add((folder / "LABEL.md").read_text())
    assert len(released) == len(words) == 1


# -- what is promised and charged -----------------------------------------------------------------


def test_the_guarantee_says_that_it_was_tuned_and_what_that_costs():
    made = search([sf.CP(1), sf.CP(2), sf.CP(3)], epsilon=2.0, repetitions=6).fit(planted())
    promised = made.guarantee_
    assert 1.99 < promised.epsilon <= 2
    assert promised.delta == 1e-6
    assert promised.proven
    assert "proofs/tuning.md" in promised.proof
    assert "proofs/biases.md" in promised.proof
    text = " ".join(str(promised).split())
    assert "best of 3 candidates" in text
    assert "6.01 on average" in text
    assert "includes what this costs" in text
    assert "trusts whoever holds the data and runs the fit" in text
    assert sf.Guarantee.from_json(json.loads(json.dumps(promised.to_json()))) == promised


def test_a_pure_budget_stays_pure():
    made = search(epsilon=20.0, delta=0.0).fit(planted())
    assert made.guarantee_.delta == 0
    assert 19.9 < made.guarantee_.epsilon <= 20


def test_the_whole_taskis_one_charge_before_the_first_draw(tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    seen = []

    def watch(number, rounds, info):
        seen.append(path.read_text().count('"fit"'))

    made = search([sf.Biases(progress=watch), sf.Biases(progress=watch)], ledger=path, seed=None)
    made.fit(planted())
    assert set(seen) == {1}
    ledger = sf.Ledger(sf.Entry(), path=path)
    (event,) = ledger.events
    assert isinstance(event, RepeatAndSelect)
    assert made.guarantee_.total_epsilon == pytest.approx(made.guarantee_.epsilon)
    made.fit(planted())
    assert made.guarantee_.fits == 2
    assert made.guarantee_.total_epsilon > 101


def test_a_limit_refuses_the_taskbefore_anything_is_drawn(tmp_path):
    path = tmp_path / "ledger"
    limit = sf.Budget(99.0, 1e-6)
    with pytest.raises(sf.BudgetError, match="Nothing was drawn"):
        search(ledger=path, limit=limit).fit(planted())
    assert sf.Ledger(sf.Entry(), path=path).events == []


@pytest.mark.parametrize(
    ("candidates", "changes", "match"),
    [
        ([sf.CP(1)], {}, "two candidates"),
        ([], {}, "two candidates"),
        (["CP", "Tucker"], {}, "estimators"),
        ([sf.CP(1), sf.CP(100)], {}, "rank"),
        ([sf.CP(1), sf.CP(2, privacy=privacy(seed=3))], {}, "seed"),
        ([sf.CP(1), sf.CP(2, privacy=privacy(unit="user"))], {}, "unit"),
        ([sf.CP(1), sf.CP(2, duplicates="mean")], {}, "duplicates"),
        ([sf.CP(1), sf.CP(2, starts=2)], {}, "one start"),
        ([sf.CP(1), sf.CP(2)], {"epsilon": None, "rho": 1.0}, "rho"),
        ([sf.CP(1), sf.CP(2)], {"unit": "value", "method": "input", "analysis": "paper"}, "paper"),
        ([sf.CP(1), sf.CP(2)], {"method": "gradient", "delta": 0.0}, "delta"),
        ([sf.CP(1), sf.CP(2)], {"unit": "planet"}, "planet"),
        (
            [
                sf.CP(1, privacy=privacy(unit="user", max_entries=9, method=sf.InputPerturbation())),
                sf.CP(2),
            ],
            {"unit": "user", "max_entries": 9},
            "owners",
        ),
    ],
)
def test_bad_candidates_are_errors_before_any_draw(candidates, changes, match, tmp_path):
    ledger = tmp_path / "ledger"
    for candidate in candidates:
        if isinstance(candidate, sf.TensorEstimator) and candidate.privacy is not None:
            candidate.privacy = replace(candidate.privacy, ledger=ledger)
    with pytest.raises(sf.SettingError, match=match):
        sf.PrivateSearch(candidates, privacy(ledger=ledger, **changes)).fit(planted())
    assert not ledger.exists()


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"holdout": 0.0}, "holdout"), ({"holdout": 1.0}, "holdout"), ({"repetitions": 0}, "repetitions")],
)
def test_bad_settings_are_errors(settings, match):
    with pytest.raises(sf.SettingError, match=match):
        search(**settings).fit(planted())


def test_candidates_may_differ_in_method():
    given = [sf.CP(1), sf.CP(1, privacy=privacy(method="constant"))]
    made = search(given).fit(planted())
    assert made.best_index_ == 0
    assert made.best_estimator_.privacy == privacy()


@pytest.mark.parametrize("unit", ["entry", "user"])
@pytest.mark.parametrize("holdout", [1e-9, 1 - 1e-9])
def test_that_a_part_is_empty_is_no_error(unit, holdout):
    """It would tell of the data."""
    made = search(unit=unit, holdout=holdout).fit(planted())
    assert np.isfinite(made.predict(planted())).all()


def test_it_is_an_estimator_to_scikit_learn():
    copy = clone(search(repetitions=5))
    assert copy.get_params()["repetitions"] == 5
    assert "repetitions=5" in repr(copy)
    with pytest.raises(sf.NotFittedError):
        copy.predict(planted())
    with pytest.raises(sf.SettingError, match="no setting"):
        copy.set_params(folds=3)
