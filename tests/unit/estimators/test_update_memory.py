"""What updates remember: how well each level is known, so that periods add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfumato as sf
from sfumato.errors import SettingError
from sfumato.fit.choose import choose
from sfumato.models.shape import Shape
from sfumato.models.told import LevelsTold, OwnScales, Told
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.events import GaussianEvent, Repeated
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit
from sfumato.records import same
from sfumato.solvers.private.bias_state import Learnt, with_guess
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.moments.solver import PrivateMoments
from sfumato.solvers.private.shrinkage import Guess

USERS, ITEMS, PERIODS = 80, 40, 6
_rng = np.random.default_rng(11)
USER_BIAS, ITEM_BIAS = 0.4 * _rng.normal(size=USERS), 0.6 * _rng.normal(size=ITEMS)
MODES = (sf.Mode("user", USERS), sf.Mode("item", ITEMS))
LISTED = sf.Public(labels={"user": range(USERS), "item": range(ITEMS)})


def periods(*, structure: float = 1.0, seed: int = 0) -> tuple[list[sf.SparseTensor], sf.SparseTensor]:
    """Ratings that come in over time, and some of all that were held out; popular items have most."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(USERS * ITEMS)
    user, item = np.divmod(cells[rng.random(cells.size) < 0.9 / (1 + cells % ITEMS / 15)], ITEMS)
    values = 3.3 + structure * (USER_BIAS[user] + ITEM_BIAS[item]) + 0.6 * rng.normal(size=user.size)
    coordinates, values = np.array([user, item], np.int32), np.clip(values, 1, 5)
    part = np.arange(user.size) % (PERIODS + 1)
    made = [
        sf.SparseTensor(coordinates[:, part == p], values[part == p], MODES, (1.0, 5.0))
        for p in range(PERIODS + 1)
    ]
    return made[:-1], made[-1]


def so_far(parts: list[sf.SparseTensor]) -> sf.SparseTensor:
    cells = np.hstack([part.coordinates for part in parts])
    return sf.SparseTensor(cells, np.concatenate([part.values for part in parts]), MODES, (1.0, 5.0))


def asked(epsilon: float, unit: str, **more: Any) -> sf.Privacy:
    return sf.Privacy(epsilon, 1e-6, unit=unit, public=LISTED, **more)


def part_of(total: float) -> float:
    noise = calibrate(lambda noise: Repeated(GaussianEvent(noise), PERIODS), Budget(total, 1e-6))
    return epsilon_of(GaussianEvent(noise), 1e-6)


def followed(
    folder: Path,
    data: tuple[list[sf.SparseTensor], sf.SparseTensor],
    epsilon: float,
    unit: str,
    seed: int,
) -> list[float]:
    """Errors of updates after each period, owners solving their rows from all of their ratings."""
    parts, test = data
    first = asked(epsilon, unit, ledger=folder / f"{unit}-{seed}", period="0", seed=10 * seed)
    model, errors = sf.CP(privacy=first), []
    for number, part in enumerate(parts):
        model.partial_fit(part, period=str(number), privacy=replace(first, seed=10 * seed + number))
        own = so_far(parts[: number + 1]) if model.local_ is not None else None
        told = model.predict(test, own=own, unseen="bias")
        errors.append(float(np.sqrt(np.mean((told - test.values) ** 2))))
    return errors


def test_periods_add_up_to_a_fit_of_all_of_them_with_the_same_total(tmp_path: Path) -> None:
    """Entries lie in one period: six updates have together as little noise as the last fit anew."""
    parts, test = periods()
    updated, anew = [], []
    for seed in range(3):
        updated.append(followed(tmp_path, (parts, test), 4.0, "entry", seed))
        again = sf.CP(privacy=asked(part_of(4.0), "entry", seed=100 + seed)).fit(so_far(parts))
        anew.append(again.rmse(test))
    assert np.mean(updated, axis=0)[-1] < 1.01 * np.mean(anew)
    assert np.mean(updated, axis=0)[-1] < 0.9 * np.mean(updated, axis=0)[0]


@pytest.mark.parametrize(
    ("unit", "epsilon", "structure", "most"),
    [
        ("entry", 1.0, 0.0, 1.02),
        ("entry", 1.0, 1.0, 1.0),
        ("user", 3.0, 0.0, 1.06),
        ("user", 3.0, 1.0, 1.0),
    ],
)
def test_no_period_is_worse_than_the_private_constant(
    tmp_path: Path, unit: str, epsilon: float, structure: float, most: float
) -> None:
    """Of all ratings so far with the same budget in one fit, in the mean of three seeds.

    Where there is nothing to learn, own rows of three entries a period follow some of these by chance.
    """
    parts, test = periods(structure=structure)
    updated, constant = [], []
    for seed in range(3):
        updated.append(followed(tmp_path, (parts, test), epsilon, unit, seed))
        whole = (so_far(parts[: number + 1]) for number in range(PERIODS))
        privacy = asked(epsilon, unit, seed=100 + seed)
        constant.append([sf.Biases(sweeps=0, privacy=privacy).fit(each).rmse(test) for each in whole])
    ratios = np.mean(updated, axis=0) / np.mean(constant, axis=0)
    assert (ratios < most).all(), ratios


@pytest.mark.parametrize("unit", ["entry", "user"])
def test_a_folder_remembers_and_an_earlier_one_need_not(tmp_path: Path, unit: str) -> None:
    parts, test = periods()
    first = asked(4.0, unit, ledger=tmp_path / "ledger", period="0", seed=1)
    model = sf.CP(privacy=first).partial_fit(parts[0])
    kept = (tmp_path / "ledger").read_bytes()
    loaded = sf.load(model.save(tmp_path / "model", force=True))
    assert loaded.told_ is not None
    assert same(loaded.told_, model.told_)
    forgetful = sf.load(tmp_path / "model")
    forgetful.told_ = None  # as a folder of an earlier version
    errors = []
    for each in (model, loaded, forgetful):
        (tmp_path / "ledger").write_bytes(kept)
        each.partial_fit(parts[1], period="1", privacy=replace(first, seed=2))
        errors.append(each.rmse(test))
    assert errors[0] == errors[1]
    assert np.isfinite(errors[2])


def test_slopes_on_biases_are_made_anew_and_not_added(tmp_path: Path) -> None:
    """Users' slopes on items' biases and counts: two columns however many periods there were."""
    parts, _ = periods()
    first = asked(4.0, "user", ledger=tmp_path / "ledger", period="0", seed=1, method="moments")
    model = sf.CP(2, privacy=first).partial_fit(parts[0])
    for number in (1, 2):
        model.partial_fit(parts[number], period=str(number), privacy=replace(first, seed=number))
    assert model.model_.ranks == (2, 2)
    assert model.told_ is not None
    assert model.told_.free == (0, 1)
    told = model.told_.levels[1]
    assert told is not None
    np.testing.assert_allclose(told.biases, model.model_.mode_biases[1])


def test_what_is_well_known_moves_little() -> None:
    """By hand: of two levels with the same new sums one is known ten times as well as these tell it."""
    size, counts = 40, Guess(np.full(40, 10.0), np.zeros(40))
    modes = (sf.Mode("user", 5), sf.Mode("item", size))
    before = np.where(np.arange(size) < 20, 0.0, 1.0)  # precisions over those of the new sums
    facts = Facts(Shape(modes, (1, 1)), Entry(), (1.0, 5.0), 400, 1.0)
    variances = 4.0 + facts.scatter * counts.means
    told = LevelsTold(np.zeros(size), np.zeros(size), 10 * before * counts.means**2 / variances, before)
    known = Known(replace(facts, before=Told(mean_error=0.1, levels=(None, told))), 1.0, pure=False)
    level = Learnt(counts=counts, sums=20.0 * (-1.0) ** np.arange(size), noise=np.full(size, 4.0))
    guess = with_guess(known, 1, level).biases
    assert guess is not None
    new, old = guess.means[:20], guess.means[20:]
    assert (np.sign(old) == np.sign(new)).all()
    assert (np.abs(old) < 0.25 * np.abs(new)).all()
    assert (np.abs(old) > 0.05 * np.abs(new)).all()
    assert (guess.variances[20:] < 0.3 * guess.variances[:20]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_error": -1.0},
        {"mean_error": np.nan},
        {"own": OwnScales(1.0, np.inf, 1.0, 1.0)},
        {"levels": (None,)},
        {"levels": (LevelsTold(*np.zeros((4, 3))), None)},
        {"levels": (None, LevelsTold(*np.zeros((4, 2))))},
        {"levels": (None, LevelsTold(*-np.ones((4, 3))))},
        {"free": (2,)},
    ],
)
def test_what_is_not_of_a_model_is_refused(wrong: dict[str, Any]) -> None:
    good = Told(mean_error=0.1, spread=1.0, levels=(None, LevelsTold(*np.ones((4, 3)))), free=(0,))
    good.check((5, 3), (2, 2), 0)
    again = Told.from_parts(good.to_json(), good.tensors(), 2)
    assert same(again, good)
    with pytest.raises(SettingError):
        replace(good, **wrong).check((5, 3), (2, 2), 0)


@pytest.mark.parametrize("unit", [Entry(), Unit("user")])
def test_charges_of_an_update_do_not_depend_on_what_was_told(unit: Any) -> None:
    """Which draws there are, and with which noise, is fixed by public numbers: so they compose."""
    local = 0 if isinstance(unit, Unit) else None
    facts = Facts(Shape(MODES, (2, 2)), unit, (1.0, 5.0), None, None, local, part=True)
    made = []
    for scale in (0.01, 1.0, 5.0):
        told = Told(
            periods=2,
            mean_error=scale,
            spread=scale,
            own=OwnScales(*[scale] * 4),
            levels=(None, LevelsTold(*np.full((4, ITEMS), scale))),
        )
        known = replace(facts, before=told)
        choice = choose(known, Budget(1.0, 1e-6))
        made.append((choice, PrivateBiases(2.0).charges(known), PrivateMoments(2.0).charges(known)))
    assert made[0] == made[1] == made[2]
    assert made[0][1] != PrivateBiases(2.0).charges(facts)
