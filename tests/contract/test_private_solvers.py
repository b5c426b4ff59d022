"""What holds for every private method and analysis. A new one passes by being listed here."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import sfumato as sf
from sfumato.estimators import base
from sfumato.privacy.accounting import covers, epsilon_of
from sfumato.privacy.ledger import Reservation

pytestmark = pytest.mark.usefixtures("few_starts")


@dataclass(frozen=True)
class Case:
    method: str
    unit: str
    delta: float = 1e-6
    noise: str = "auto"
    local: str | None = None
    analysis: str = "proven"
    max_entries: int | None = None

    def __str__(self):
        words = (
            self.method,
            self.unit,
            self.noise,
            self.local,
            "" if self.delta else "pure",
            self.analysis,
        )
        return "-".join(word for word in words if word and word != "proven")


CASES = [
    Case("constant", "value"),
    Case("constant", "user", 0.0),
    Case("bias", "value"),
    Case("bias", "values:user", max_entries=2),
    Case("bias", "entry", local="user"),
    Case("bias", "entry", 0.0),
    Case("bias", "user", local="user"),
    Case("bias", "user", 0.0, local="user"),
    Case("input", "value", 0.0, "response"),
    Case("input", "value", 0.0, "laplace"),
    Case("input", "value", noise="gaussian"),
    Case("input", "values:user", max_entries=2),
    Case("input", "entry"),
    Case("input", "user", max_entries=3),
    Case("gradient", "value"),
    Case("gradient", "value", 0.0, "residual"),
    Case("gradient", "value", 0.0, "vector"),
    Case("gradient", "entry", local="user"),
    Case("gradient", "entry"),
    Case("gradient", "user", local="user"),
    Case("gradient", "user"),
    Case("alternating", "value"),
    Case("alternating", "entry"),
    Case("alternating", "entry", local="user"),
    Case("alternating", "user", local="user"),
    Case("output", "value", 0.0),
    Case("output", "entry"),
    Case("output", "user", max_entries=3),
    Case("auto", "value"),
    Case("auto", "entry", local="user"),
    Case("auto", "user", local="user"),
    Case("input", "value", 0.0, analysis="paper"),
    Case("gradient", "value", 0.0, analysis="paper"),
    Case("output", "value", 0.0, analysis="paper"),
]
every = pytest.mark.parametrize("case", CASES, ids=str)
TUCKER = [
    case
    for case in CASES
    if (case.method, case.unit) in {("gradient", "entry"), ("output", "value"), ("bias", "value")}
    or case.method == "alternating"
    or (case.method, case.noise) in {("input", "laplace"), ("gradient", "residual")}
]


def ratings(seed=0, entries=200, shape=(12, 9, 5)):
    rng = np.random.default_rng(seed)
    cells = np.array(np.unravel_index(rng.permutation(np.prod(shape))[:entries], shape))
    modes = tuple(sf.Mode(name, n) for name, n in zip(("user", "item", "day"), shape, strict=True))
    return sf.SparseTensor(cells, rng.integers(1, 6, entries).astype(float), modes, (1, 5))


def estimator(case, epsilon=2.0, seed=1, kind=sf.CP):
    privacy = sf.Privacy(
        epsilon,
        case.delta,
        unit=case.unit,
        max_entries=case.max_entries,
        method=case.method,
        analysis=case.analysis,
        noise=case.noise,
        local=case.local,
        public=sf.Public(entries=200, labels={"user": range(12), ...: True}),
        seed=seed,
    )
    return kind(2, privacy=privacy)


@cache
def fitted(case, seed=1, kind=sf.CP):
    return estimator(case, seed=seed, kind=kind).fit(ratings())


def plan_of(case, epsilon=2.0, kind=sf.CP):
    return estimator(case, epsilon, kind=kind).plan(ratings().modes, bounds=(1, 5), entries=200)


@every
def test_the_plan_stays_within_its_budget_and_uses_it(case):
    for epsilon in (0.3, 2.0, 8.0):
        plan = plan_of(case, epsilon)
        assert covers(plan.budget, plan.event)
        assert epsilon_of(plan.event, case.delta) >= 0.9 * epsilon


@every
def test_less_budget_means_more_noise(case):
    last = [plan_of(case, epsilon).charges[-1].mechanism for epsilon in (0.3, 2.0, 8.0)]
    noise = [1 / m.epsilon if hasattr(m, "epsilon") else m.noise_multiplier for m in last]
    assert noise[0] > noise[1] > noise[2] > 0


@every
def test_noise_a_third_smaller_would_break_the_budget(case):
    plan = plan_of(case)
    assert not covers(plan.budget, plan._event_at(plan.task.noise * 2 / 3))


@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, sf.CP) for case in CASES), *((case, sf.Tucker) for case in TUCKER)],
    ids=str,
)
def test_every_charge_is_drawn_once_and_every_draw_is_charged(case, kind, monkeypatch):
    drawn = []
    ask = Reservation.ask

    def watched(self, question):
        def watching(draw):
            answer = question(draw)
            drawn.append(draw.used)
            return answer

        return ask(self, watching)

    monkeypatch.setattr(Reservation, "ask", watched)
    model = estimator(case, kind=kind).fit(ratings())
    assert drawn == [True] * len(plan_of(case, kind=kind).charges)
    predicted = model.predict(ratings(1))
    assert ((predicted >= 1) & (predicted <= 5)).all()
    assert np.isfinite(predicted).all()


@every
def test_a_seed_repeats_a_fit_and_another_changes_it(case):
    first, other = (fitted(case, seed).model_ for seed in (1, 2))
    same = estimator(case, seed=1).fit(ratings()).model_
    parts = [(m.mean, m.rows.tobytes(), m.biases.tobytes()) for m in (first, same, other)]
    assert parts[0] == parts[1]
    if case.noise not in ("response", "vector") and case.method != "output":
        assert parts[0] != parts[2]  # elsewhere heavy noise may leave the constant, which repeats


@every
def test_charges_depend_on_public_numbers_alone(case, monkeypatch):
    """The plan of a fit is the one that was made without data, whatever the data are."""
    without = plan_of(case).charges
    seen = []

    class Enough(Exception):
        """What is drawn does not matter here."""

    def watched(plan, *_, **__):
        seen.append(plan.charges)
        raise Enough

    monkeypatch.setattr(base, "carry_out_private", watched)
    with pytest.raises(Enough):
        estimator(case).fit(ratings(2).with_values(np.full(200, 5.0), (1, 5)))
    assert seen == [without]


@every
def test_the_guarantee_says_what_it_is(case):
    guarantee = fitted(case).guarantee_
    assert guarantee.proven == (case.analysis == "proven")
    assert guarantee.joint == (case.local is not None)
    assert guarantee.seeded
    assert guarantee.delta == case.delta
    assert guarantee.epsilon <= 2.0
    assert "proofs/" in guarantee.proof


@every
def test_local_rows_are_not_in_the_release(case, tmp_path):
    model = fitted(case)
    released = sf.load(model.release(tmp_path / "r", force=True)).model_
    shape = tuple(
        0 if name == case.local else n
        for name, n in zip(("user", "item", "day"), (12, 9, 5), strict=True)
    )
    assert released.shape == shape


@every
def test_what_owners_need_is_released_and_says_nothing_of_them(case, tmp_path):
    """A prior fits any number of owners, and with the release it gives the rows of the fit."""
    model, data = fitted(case), ratings()
    prior = model.own_prior_
    assert (prior is None) == (case.local is None)
    if prior is None:
        return
    assert prior.mode == model.local_ == 0
    prior.check((0, 9, 5), model.model_.ranks)
    assert not any(part and part[0] is not None for part in (prior.doubts, prior.row_noise))
    released = sf.load(model.release(tmp_path / "r", force=True))
    np.testing.assert_allclose(released.predict(data, own=data), model.predict(data), rtol=1e-9)


@every
def test_a_crowd_of_one_or_none_is_fitted(case):
    """Few or no entries are data: they must not show as an error."""
    few = 0 if not case.unit.startswith("value") else 1
    model = estimator(case).fit(ratings().take(np.arange(200) < few)).model_
    assert np.isfinite(model.mean)
    assert np.isfinite(model.rows).all()
