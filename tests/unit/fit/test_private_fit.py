"""The way of a private fit: what is admitted, charged, kept and released."""

import json
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from on_grid import on_grid

import sfumato as sf
from sfumato.fit.admit import Protected, admit
from sfumato.fit.choose import open_ledger
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import rounded
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Gaussian
from sfumato.solvers.private.constant import ConstantQuery
from sfumato.solvers.protocol import DivergedError, Finished, Info, Silent, WholeQuery


@dataclass(frozen=True)
class MeansQuery(WholeQuery):
    """Ask for the sums of the centred values by level of a mode."""

    facts: Facts
    mode: int
    fail: bool

    def clipped(self, site):
        if self.fail:
            raise RuntimeError("a fault in the middle")
        tensor, half = site.tensor, self.facts.half
        centred = np.clip(tensor.values - self.facts.middle, -half, half)
        sums = np.bincount(tensor.coordinates[self.mode], centred, tensor.shape[self.mode])
        return on_grid(sums, np.inf, half)


@dataclass(frozen=True)
class NoisyMeans(Silent):
    """A small private solver: noisy sums of the centred values by level of each shared mode."""

    noise: float = 1.0
    fail: bool = False
    name: ClassVar[str] = "noisy means"
    proof: ClassVar[str] = "none, a test"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def check(self, facts):
        pass

    def shared(self, facts):
        return [m for m in range(len(facts.modes)) if m != facts.local]

    def charges(self, facts):
        return tuple(Charge(f"mode {m}", Gaussian(self.noise)) for m in self.shared(facts))

    def rounds(self, facts):
        return len(self.charges(facts))

    def assumes(self, facts):
        return ("nothing else",)

    def init(self, run, facts):
        return facts.shape.zeros().with_mean(facts.middle), self.shared(facts), facts

    def ask(self, state):
        _, modes, facts = state
        return MeansQuery(facts, modes[0], fail=self.fail and len(modes) == 1)

    def update(self, state, released):
        model, (mode, *modes), facts = state
        model.mode_biases[mode][:] = released.values / 1000
        return (model, modes, facts), Info(1)

    def finish(self, state):
        model, _, facts = state
        if facts.local is None:
            return Finished(model)
        prior = OwnPrior(mode=facts.local, precisions=np.ones(1), bias_precision=1.0, scatter=1.0)
        return Finished(model, own_prior=prior)


def ratings(values=(1.0, 2, 3, 4, 5, 9, 1, 2)):
    n = len(values)
    modes = (
        sf.Mode("user", 4, np.array(["ann", "bob", "cat", "dan"], object)),
        sf.Mode("item", 3, np.array(["x", "y", "z"], object)),
    )
    cells = np.array([np.arange(n) % 4, np.arange(n) % 3])
    return sf.SparseTensor(cells, np.array(values, float), modes, (1, 5))


PUBLIC = sf.Public(labels={"user": ["ann", "bob", "cat", "dan"], ...: True})


def privacy(**changes):
    settings = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "unit": "entry",
        "method": NoisyMeans(),
        "public": PUBLIC,
        "seed": 1,
    }
    return sf.Privacy(**{**settings, **changes})


def fitted(**changes):
    return sf.CP(1, privacy=privacy(**changes)).fit(ratings())


def test_values_beyond_the_bounds_are_clipped_in_silence():
    protected = Protected(sf.Entry(), sf.Public(labels=True))
    values = (1.0, 99, -7, np.nan, np.inf, 2, 3, 4)
    admitted = admit(ratings(values), protected, Entropy(0))
    assert sorted(admitted.values) == [1, 1, 2, 3, 3, 4, 5, 5]


def test_entries_with_labels_that_are_not_public_are_left_out():
    public = sf.Public(labels={"user": ["dan", "ann", "eve"], "item": ["x", "y", "z"]})
    admitted = admit(ratings(), Protected(sf.Entry(), public), Entropy(0))
    assert admitted.modes[0].labels.tolist() == ["dan", "ann", "eve"]
    assert set(admitted.coordinates[0]) == {0, 1}
    whole = ratings()
    for label, level in (("dan", 0), ("ann", 1)):
        mine = np.sort(admitted.values[admitted.coordinates[0] == level])
        theirs = whole.values[whole.coordinates[0] == whole.modes[0].labels.tolist().index(label)]
        np.testing.assert_array_equal(mine, np.sort(np.clip(theirs, 1, 5)))
    order = np.lexsort(admitted.coordinates[::-1])
    np.testing.assert_array_equal(order, np.arange(admitted.n_entries))


ITEMS = {"item": ["x", "y", "z"]}
OWNERS = {"user": ["ann", "bob", "cat", "dan", "eve"]}


@pytest.mark.parametrize(
    ("settings", "public", "match"),
    [
        ({"unit": "entry"}, {}, "which labels of user and item occur is protected too"),
        ({"unit": "user"}, {}, "which user occur is protected, and so is how many: say how many"),
        ({"unit": "user"}, {"labels": ITEMS}, r"at most, Public\(units=N\), with N"),
        ({"unit": "user"}, {"labels": True}, "and labels read off the data would show it"),
        ({"unit": "user"}, {"labels": {"user": True, ...: True}}, "and so is how many"),
        ({"unit": "user"}, {"units": 9}, "which labels of item occur"),
        (
            {"unit": "user"},
            {"labels": {**ITEMS, **OWNERS}, "units": 9},
            r"leave Public\(units=\.\.\.\) out",
        ),
        ({"unit": "user", "local": None}, {"labels": True}, "which user occur is what is protected"),
        ({"unit": "user", "local": None}, {"labels": ITEMS, "units": 9}, "all rows are released"),
        ({"unit": "entry", "local": "user"}, {"labels": True}, "and so is how many"),
        ({"unit": "entry"}, {"labels": True, "units": 9}, "all rows are released"),
        ({"unit": "value"}, {"units": 9}, "all rows are released"),
        ({"unit": "user"}, {"labels": {"planet": ["mars", "venus"]}}, "planet"),
        ({"unit": "user"}, {"labels": True, "units": 3}, "more levels of user than the public number"),
    ],
    ids=str,
)
def test_what_would_show_who_is_there_has_to_be_said(settings, public, match, tmp_path):
    ledger = tmp_path / "ledger"
    with pytest.raises(sf.SettingError, match=match):
        fitted(**settings, public=sf.Public(**public), ledger=ledger)
    assert not ledger.exists()


@pytest.mark.parametrize(
    ("settings", "public", "size"),
    [
        ({"unit": "user"}, {"labels": ITEMS, "units": 6}, 6),
        ({"unit": "user"}, {"labels": True, "units": 6}, 6),
        ({"unit": "user"}, {"labels": {**OWNERS, ...: True}}, 5),
        ({"unit": "user", "local": None}, {"labels": {**OWNERS, ...: True}}, 5),
        ({"unit": "entry", "local": "user"}, {"labels": True, "units": 6}, 6),
        ({"unit": "entry", "local": "user"}, {"labels": {**OWNERS, ...: True}}, 5),
        ({"unit": "value"}, {"labels": OWNERS}, 5),
    ],
    ids=str,
)
def test_sizes_are_the_public_ones_and_are_told(settings, public, size):
    model = fitted(**settings, public=sf.Public(**public))
    assert model.modes_[0].size == size
    text = " ".join(str(model.guarantee_).split())
    assert (f"user has at most {size} levels is public" in text) == ("units" in public)
    assert ("labels given for user" in text) == (size == 5 and settings["unit"] != "value")
    assert ("item are public, though they were read off" in text) == (
        settings["unit"] != "value" and public["labels"] is not ITEMS
    )
    for label in ("ann", "dan"):
        assert np.isfinite(model.predict(user=label, item="x"))


@pytest.mark.parametrize("method", ["bias", "gradient", "alternating"])
def test_whatever_the_caller_declared_is_listed_as_assumed(method):
    facts = {"labels": True, "units": 9, "entries": 8, "spread": 1.5, "profile": sf.Profile(biases=0.5)}
    for unit, local in (("user", "auto"), ("entry", "user")):
        settings = privacy(unit=unit, local=local, method=method, public=sf.Public(**facts))
        plan = sf.CP(1, privacy=settings).plan(ratings().modes, bounds=(1, 5))
        text = "\n".join(plan.task.promise.assumptions)
        for part in ("about 8, is public", "about 1.5, is public", "profile", "at most 9 levels"):
            assert part in text
        assert "rows of user are shown to their owners alone" in text
    assert "profile" not in str(fitted().guarantee_)


def test_where_an_entry_is_protected_owners_take_places_at_random():
    """Every place is as likely for everyone, whoever else is there: 4,000 draws, 6 standard errors."""
    tensor, protected = ratings(), Protected(sf.Entry(), sf.Public(labels=True, units=5), local=0)
    for users in (4, 3):
        kept = tensor.take(tensor.coordinates[0] < users)
        modes = (sf.Mode("user", users, tensor.modes[0].labels[:users]), tensor.modes[1])
        fewer = sf.SparseTensor(kept.coordinates, kept.values, modes, (1, 5))
        taken = np.zeros((users, 5))
        for seed in range(4000):
            admitted = admit(fewer, protected, Entropy(seed))
            levels = admitted.modes[0].find(modes[0].labels)
            taken[np.arange(users), levels] += 1
        assert np.abs(taken / 4000 - 0.2).max() < 6 * np.sqrt(0.16 / 4000)
    entries = {
        (admitted.modes[0].label(u), i, v)
        for u, i, v in zip(*admitted.coordinates.tolist(), admitted.values.tolist(), strict=True)
    }
    assert len(entries) == fewer.n_entries
    assert entries == {
        (modes[0].labels[u], i, np.clip(v, 1, 5))
        for u, i, v in zip(*fewer.coordinates.tolist(), fewer.values.tolist(), strict=True)
    }


def test_somebody_called_nobody_is_somebody():
    tensor = ratings()
    users = np.array(["(nobody 1)", "bob", "(nobody' 1)", "dan"], object)
    modes = (sf.Mode("user", 4, users), tensor.modes[1])
    strange = sf.SparseTensor(tensor.coordinates, tensor.values, modes, (1, 5))
    protected = Protected(sf.Unit("user"), sf.Public(labels=True, units=7), local=0)
    admitted = admit(strange, protected, Entropy(0))
    found = admitted.modes[0].find(users)
    assert len(set(found.tolist())) == 4
    assert min(found) >= 0
    assert len(set(admitted.modes[0].labels)) == 7


@pytest.mark.parametrize(
    ("method", "kind"), [("bias", sf.CP), ("gradient", sf.CP), ("alternating", sf.Tucker)]
)
def test_how_many_owners_there_are_does_not_show(method, kind, tmp_path):
    """The same entries, with one and with four more owners who have none: the same release."""
    releases = []
    for more in (1, 4):
        users = np.array([f"u{number}" for number in range(4 + more)], object)
        modes = (sf.Mode("user", 4 + more, users), ratings().modes[1])
        tensor = sf.SparseTensor(ratings().coordinates, ratings().values, modes, (1, 5))
        public = sf.Public(labels={"item": ["x", "y", "z"]}, units=10)
        settings = privacy(unit="user", method=method, public=public)
        folder = kind(2, privacy=settings).fit(tensor).release(tmp_path / str(more), force=True)
        releases.append(
            [(folder / name).read_bytes() for name in ("model.safetensors", "guarantee.json")]
        )
    assert releases[0] == releases[1]


def test_labels_are_matched_letter_by_letter():
    modes = (sf.Mode("user", 2, np.array(["7", "07"], object)), ratings().modes[1])
    tensor = sf.SparseTensor(np.array([[0, 1], [0, 1]]), np.array([1.0, 2.0]), modes, (1, 5))
    protected = Protected(sf.Entry(), sf.Public(labels={"user": [6, 7], "item": ["x", "y"]}))
    assert admit(tensor, protected, Entropy(0)).values.tolist() == [1.0]


def test_bounds_are_needed_before_anything_is_drawn(tmp_path):
    tensor = ratings()
    open_ended = sf.SparseTensor(tensor.coordinates, tensor.values, tensor.modes)
    path = tmp_path / "ledger"
    with pytest.raises(sf.SettingError, match="bounds"):
        sf.CP(1, privacy=privacy(ledger=path)).fit(open_ended)
    assert not path.exists()


def test_the_guarantee_says_what_was_spent_and_on_what():
    guarantee = fitted(seed=None).guarantee_
    assert 0.99 < guarantee.epsilon <= 1.0
    assert guarantee.delta == 1e-6
    assert guarantee.released == ("mean", "rows and biases of user", "rows and biases of item")
    assert guarantee.exact
    assert not guarantee.seeded
    assert guarantee.releasable
    assert not guarantee.joint
    text = " ".join(str(guarantee).split())
    for part in ("one entry is added or removed", "proven", "stands alone", "nothing else"):
        assert part in text
    assert sf.Guarantee.from_json(json.loads(json.dumps(guarantee.to_json()))) == guarantee


def test_noise_is_what_was_calibrated():
    """64 fits of 7 sums: their variance has a relative error of 7%, so 20% off is 3 deviations."""
    model = sf.CP(1, privacy=privacy())
    plan = model.plan(ratings().modes, bounds=(1, 5))
    deviation = 2 * plan.task.noise
    centred = np.clip(ratings().values, 1, 5) - 3
    true = [
        np.bincount(levels, centred, size)
        for levels, size in zip(ratings().coordinates, (4, 3), strict=True)
    ]
    noise = []
    for seed in range(64):
        biases = sf.CP(1, privacy=privacy(seed=seed)).fit(ratings()).model_.mode_biases
        noise += [bias * 1000 - sums for bias, sums in zip(biases, true, strict=True)]
    assert np.std(np.concatenate(noise)) == pytest.approx(deviation, rel=0.2)


def test_seeded_noise_repeats_and_secret_noise_does_not():
    first, second = fitted(), fitted()
    np.testing.assert_array_equal(first.model_.biases, second.model_.biases)
    assert not np.array_equal(fitted(seed=None).model_.biases, fitted(seed=None).model_.biases)


def test_a_ledger_adds_up_over_fits_and_a_limit_ends_it(tmp_path):
    path = tmp_path / "ledger"
    limit = sf.Budget(2.0, 1e-6)
    first = fitted(ledger=path, limit=limit, seed=None).guarantee_
    second = fitted(ledger=path, limit=limit, seed=None).guarantee_
    assert (first.fits, second.fits) == (1, 2)
    assert first.epsilon == second.epsilon < second.total_epsilon < 2 * first.epsilon
    before = path.read_text()
    fitted(epsilon=0.3, ledger=path)
    before = path.read_text()
    with pytest.raises(sf.BudgetError, match="Nothing was drawn"):
        fitted(epsilon=1.5, ledger=path)
    assert path.read_text() == before


def test_what_fits_add_up_to_is_assumed_or_kept_by_the_limit(tmp_path):
    assumed = "the fits of this ledger were planned without looking at each other's releases"
    alone, both = (fitted(ledger=tmp_path / "open", seed=None).guarantee_ for _ in range(2))
    assert assumed not in alone.assumptions
    assert alone.odometer_epsilon is None
    assert both.assumptions[-1] == assumed
    assert json.loads(json.dumps(both.to_json()))["assumptions"][-1] == assumed
    assert both.total_epsilon < both.odometer_epsilon
    text = " ".join(str(both).split())
    assert f"{both.odometer_epsilon:.4g} if by each other's releases" in text
    assert assumed in text
    limited = {"ledger": tmp_path / "limited", "limit": sf.Budget(2.0, 1e-6), "seed": None}
    alone, both = (fitted(**limited).guarantee_ for _ in range(2))
    assert assumed not in both.assumptions
    assert both.ledger_limit == "epsilon 2, delta 1e-06"
    assert "whatever they are planned by, they stay within epsilon 2" in " ".join(str(both).split())
    assert sf.Guarantee.from_json(json.loads(json.dumps(both.to_json()))) == both
    assert any(assumed in line and "not the limit" in line for line in both.assumptions)
    assert "if planned in advance" in " ".join(str(both).split())
    assert "in advance" not in str(alone)


def test_a_total_without_a_bound_is_none_and_is_said(tmp_path):
    """A Gaussian fit and then a pure one: at delta 0 there is no total, and no Infinity in the JSON."""
    ledger = tmp_path / "ledger"
    fitted(ledger=ledger, seed=None)
    pure = fitted(ledger=ledger, seed=None, delta=0.0, method="bias").guarantee_
    assert pure.total_epsilon is None
    assert "no total can be given" in " ".join(str(pure).split())
    json.loads(json.dumps(pure.to_json(), allow_nan=False))


def test_one_fit_may_spend_all_of_a_ledgers_limit(tmp_path):
    exact = {"ledger": tmp_path / "ledger", "limit": sf.Budget(1.0, 1e-6), "seed": None}
    assert fitted(**exact).guarantee_.epsilon <= 1.0
    with pytest.raises(sf.BudgetError, match="Nothing was drawn"):
        fitted(**{**exact, "epsilon": 0.1})


@dataclass(frozen=True)
class Quiet(NoisyMeans):
    """Sums that cost a multiple of what its name and settings show."""

    times: int = field(default=1, repr=False, compare=False)

    def charges(self, facts):
        return tuple(Charge("sum", Gaussian(self.noise / self.times)) for _ in super().charges(facts))


@dataclass(frozen=True)
class Fickle(NoisyMeans):
    """One that charges more each time it is asked."""

    calls: list = field(default_factory=list, repr=False, compare=False)

    def charges(self, facts):
        self.calls.append(None)
        noise = self.noise / (1 + 0.01 * len(self.calls))
        return tuple(Charge("sum", Gaussian(noise)) for _ in super().charges(facts))


@pytest.mark.parametrize("asked", [{}, {"epsilon": None, "delta": 0.0, "rho": 0.02}])
def test_noise_is_sized_by_what_is_charged_and_not_by_a_name(asked, tmp_path):
    for times in (1, 10):
        for where in ({}, {"ledger": tmp_path / f"ledger{times}"}):
            solver = Quiet(times=times)
            promised = fitted(method=solver, **asked, **where).guarantee_
            assert promised.epsilon <= 1.0 or promised.rho <= 0.02
            assert promised.epsilon > 0.5


def test_a_solver_that_charges_more_than_it_said_is_refused(tmp_path):
    for asked in ({}, {"epsilon": None, "delta": 0.0, "rho": 0.02}):
        with pytest.raises(sf.BudgetError, match="not within"):
            fitted(method=Fickle(), ledger=tmp_path / "ledger", **asked)
    assert not (tmp_path / "ledger").exists()


def test_without_a_file_the_budget_is_the_limit():
    ledger = open_ledger(privacy(epsilon=None, delta=0.0, rho=0.02), sf.Entry())
    assert ledger.limit == sf.ZCDP(0.02)
    with pytest.raises(sf.BudgetError, match="Nothing was drawn"):
        ledger.reserve([Charge("sum", Gaussian(4.9))], Entropy(None)).__enter__()
    with ledger.reserve([Charge("sum", Gaussian(5.0))], Entropy(None)):
        pass


def test_a_total_with_seeded_or_claimed_fits_in_it_is_not_given(tmp_path):
    path = tmp_path / "ledger"
    assert fitted(ledger=path).guarantee_.total_epsilon is None
    later = fitted(ledger=path, seed=None).guarantee_
    assert later.total_epsilon is None
    assert "no total" in " ".join(str(later).split())


def test_a_crash_in_the_middle_leaves_the_charge_standing(tmp_path):
    path = tmp_path / "ledger"
    with pytest.raises(RuntimeError, match="fault"):
        fitted(ledger=path, method=NoisyMeans(fail=True))
    assert len(path.read_text().splitlines()) == 1 + 2
    assert sf.Ledger(sf.Entry(), path=path).epsilon(1e-6) > 0.9


def test_folds_of_a_cross_validation_add_up(tmp_path):
    path = tmp_path / "ledger"
    model = sf.CP(1, privacy=privacy(ledger=path))
    sf.cross_validate(model, ratings(), folds=3)
    assert sf.Ledger(sf.Entry(), path=path).fits == 3


def test_a_release_holds_nothing_of_the_owners_rows(tmp_path):
    model = fitted(unit="user", seed=None)
    assert model.guarantee_.joint
    folder = model.save(tmp_path / "out")
    assert sorted(path.name for path in folder.iterdir()) == ["owner", "release"]
    released = b"".join(path.read_bytes() for path in (folder / "release").iterdir())
    for name in (b'"ann"', b'"bob"', b'"cat"', b'"dan"', b"factor_0", b"bias_0"):
        assert name not in released
    assert b"rows and biases of item" in released
    assert (folder / "owner" / "NOT-FOR-RELEASE.txt").is_file()


def test_predictions_use_release_and_owner_where_they_are(tmp_path):
    model = fitted(unit="user", seed=None)
    folder = model.save(tmp_path / "out")
    both, alone = sf.load(folder), sf.load(folder / "release")
    assert both.predict(user="ann", item="x") == pytest.approx(model.predict(user="ann", item="x"))
    released = model.model_.mean + model.model_.mode_biases[1][0]
    assert alone.predict(user="anyone", item="x") == pytest.approx(np.clip(released, 1, 5))
    with pytest.raises(sf.UnknownLabelError):
        alone.predict(user="anyone", item="no such")
    assert both.guarantee_ == alone.guarantee_ == model.guarantee_
    other = both.release(tmp_path / "again")
    assert b"ann" not in (other / "model.json").read_bytes()


def test_what_is_not_covered_is_not_released(tmp_path):
    open_model = sf.CP(1).fit(sf.prepare.clip(ratings(), (1, 5)))
    with pytest.raises(sf.ReleaseError, match="not private"):
        open_model.release(tmp_path / "a")
    seeded = fitted()
    with pytest.raises(sf.ReleaseError, match="seed"):
        seeded.release(tmp_path / "a")
    with pytest.raises(sf.ReleaseError, match="seed"):
        seeded.save(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    seeded.release(tmp_path / "a", force=True)
    assert sf.load(tmp_path / "a").guarantee_.seeded
    assert "seeded" in (tmp_path / "a" / "LABEL.md").read_text()

    claimed = fitted(seed=None)
    claimed.guarantee_ = replace(claimed.guarantee_, proven=False)
    with pytest.raises(sf.ReleaseError, match="claimed"):
        claimed.release(tmp_path / "b")
    claimed.release(tmp_path / "b", force=True)
    assert "CLAIMED" in (tmp_path / "b" / "LABEL.md").read_text()


def test_the_cap_is_enforced_at_the_data():
    tensor = sf.SparseTensor(
        np.array([[0] * 6 + [1, 2], [0, 1, 2, 0, 1, 2, 0, 1]]), np.full(8, 5.0), ratings().modes, (1, 5)
    )
    model = sf.CP(1, privacy=privacy(unit=sf.Unit("user", max_entries=2))).fit(tensor)
    # Each entry lies 2 above the middle, and the test's solver keeps n / (n + 1) of their mean.
    assert model.model_.mode_biases[0] == pytest.approx([4 / 3, 1, 1, 0], abs=0.1)
    assert model.guarantee_.cap == 2


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"delta": -0.1}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"unit": ""}, "protected"),
        ({"method": "magic"}, "magic"),
        ({"analysis": "hoped"}, "hoped"),
        ({"unit": "planet"}, "planet"),
        ({"unit": "entry", "max_entries": 3}, "cap"),
        ({"unit": "user", "max_entries": 0}, "max_entries"),
        ({"unit": "values:user"}, "cap"),
        ({"unit": "user", "local": "item"}, "user"),
        ({"unit": "value", "local": "user"}, "presence"),
        ({"public": sf.Public(labels={"planet": ["a", "b"]})}, "planet"),
    ],
)
def test_bad_settings_are_errors_before_any_draw(wrong, match, tmp_path):
    path = tmp_path / "ledger"
    with pytest.raises(sf.SettingError, match=match):
        fitted(ledger=path, **wrong)
    assert not path.exists()


def test_a_limit_needs_a_ledger():
    with pytest.raises(sf.SettingError, match="ledger"):
        privacy(limit=sf.Budget(1))


def test_a_private_fit_computes_in_double_precision():
    single = ratings().astype(np.float32)
    assert sf.CP(1, privacy=privacy()).fit(single).model_.dtype == np.float64
    with pytest.raises(sf.SettingError, match="float64"):
        sf.CP(1, dtype="float32", privacy=privacy()).fit(single)


def test_input_perturbation_leaves_no_rows_with_owners():
    with pytest.raises(sf.SettingError, match="no mode can stay"):
        fitted(local="user", method="input")


def test_a_private_fit_has_one_start_and_no_open_solver():
    for settings in ({"starts": 2}, {"solver": "sgd"}):
        with pytest.raises(sf.SettingError, match="private fit"):
            sf.CP(1, privacy=privacy(), **settings).fit(ratings())


def test_duplicates_are_entries_of_their_own_where_presence_is_protected():
    tensor = sf.SparseTensor(
        np.array([[0, 0, 1], [0, 0, 1]]), np.array([5.0, 5.0, 1.0]), ratings().modes, (1, 5)
    )
    quiet = privacy(epsilon=1e6, delta=0.5)
    sums = sf.CP(1, privacy=quiet).fit(tensor).model_.mode_biases[0] * 1000
    assert sums[0] == pytest.approx(4, abs=0.1)
    with pytest.raises(sf.DataError, match="more than once"):
        sf.CP(1, privacy=privacy(unit="value")).fit(tensor)


def test_zcdp_budgets_are_told_as_both():
    guarantee = fitted(epsilon=None, rho=0.05, delta=0.0).guarantee_
    assert guarantee.rho <= 0.05
    assert guarantee.rho == pytest.approx(0.05, rel=1e-3)
    assert guarantee.epsilon <= sf.ZCDP(0.05).epsilon(guarantee.delta)
    assert "rho 0.05" in str(guarantee)


def test_a_plan_explains_itself_without_data():
    plan = sf.CP(1, privacy=privacy()).plan(ratings().modes, bounds=(1, 5))
    text = plan.explain()
    assert "noisy means" in text
    assert "one entry" in text
    assert f"{plan.task.noise:.3g}" in text


def test_splitting_by_label_moves_no_other_entry():
    tensor = sf.synthetic.ratings_like()
    less = tensor.take(np.arange(tensor.n_entries) != 17)
    (train, test), (train_less, test_less) = (sf.prepare.split_by_label(t, 0.3) for t in (tensor, less))
    assert abs(test.n_entries / tensor.n_entries - 0.3) < 0.03
    missing = train.n_entries - train_less.n_entries, test.n_entries - test_less.n_entries
    assert sorted(missing) == [0, 1]
    cells = {tuple(cell) for cell in train.coordinates.T} - {tuple(c) for c in train_less.coordinates.T}
    assert len(cells) <= 1


def test_a_fit_whose_arithmetic_breaks_down_has_diverged(monkeypatch):
    # A search catches that and nothing else: another error would end it, and tell of a run that lost.
    def broken(*_):
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(sf.PrivateBiases, "update", broken)
    tensor = sf.synthetic.ratings_like(20, 15, 4, 300)
    privacy = sf.Privacy(1.0, 1e-6, unit="entry", method="bias", public=sf.Public(300, labels=True))
    with pytest.raises(DivergedError, match="Singular"):
        sf.CP(2, privacy=privacy).fit(tensor)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sums_that_left_the_range_are_not_released(value, monkeypatch):
    """As whole numbers they would be anything."""
    drawn, release = [], Draw.release
    monkeypatch.setattr(Draw, "release", lambda *given: drawn.append(release(*given)))
    monkeypatch.setattr(ConstantQuery, "clipped", lambda *_: rounded(np.array([value]), 1.0))
    tensor = sf.synthetic.ratings_like(20, 15, 4, 300)
    privacy = sf.Privacy(1.0, 1e-6, unit="entry", method="bias", public=sf.Public(300, labels=True))
    with pytest.raises(DivergedError, match="nothing was drawn"):
        sf.CP(2, privacy=privacy).fit(tensor)
    assert not drawn
