"""Settings of the wrong type, out of range or absurd, to everything that sfumato offers.

A case takes settings that work, puts hostile values in place of one to three of them, and then
constructs, plans, fits a tiny tensor and predicts. It may work or be refused; that a private fit is
refused after something was charged for it is as bad as a traceback.
"""

from __future__ import annotations

import datetime
import io
import json
import random
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.fuzz.harness import Subject
from sfumato import diagnostics, metrics
from sfumato.solvers.protocol import DivergedError

MODES = ("user", "item", "day")
SHAPE = (6, 5, 4)
BOUNDS = (-3.0, 3.0)


class _Unprintable:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words for this")


# Numbers are either usual or far beyond what anything can be sized by: what is huge and valid would only
# take long.
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", "abc", "auto", "user", "1", "\x00", "ü" * 500, b"bytes"),
    *(0, 1, 2, -1, 3.0, 0.5, -0.5, 1.5, 2**63, -(2**63), 10**30, 10**400, -(10**5000)),
    *(1e-300, 1e300, -1e300, 5e-324, float("nan"), float("inf"), -float("inf"), 1j, Decimal("1.5")),
    *(
        np.int8(2),
        np.uint64(2**64 - 1),
        np.float32(0.5),
        np.float64("nan"),
        np.bool_(True),
        np.str_("a"),
    ),
    *(
        np.array(3),
        np.arange(3),
        np.array([]),
        np.array(["a", "b"]),
        np.array([[1.0, np.nan]]),
        np.float64,
    ),
    *([], [1, 2], [None], ["user", "item"], (1,), (0.2, 0.1), (1, 5), ("a", None), {}, {"user": 1}),
    *(
        {"user": "x", 3: None},
        {"x": [1]},
        {1, 2},
        range(3),
        slice(2),
        len,
        int,
        object(),
        _Unprintable(),
    ),
    *(datetime.date(2020, 1, 1), Path("nowhere"), Path(), sf.SettingError("no"), ...),
)


# -- data -----------------------------------------------------------------------------------------


@cache
def tensor() -> sf.SparseTensor:
    made = sf.synthetic.cp(SHAPE, 2, entries=70, seed=0, modes=MODES).tensor
    return sf.prepare.clip(made, BOUNDS)


@cache
def counts() -> sf.SparseTensor:
    return tensor().with_values(np.rint(np.abs(tensor().values)) + 1)


@cache
def side() -> sf.SparseTensor:
    return sf.synthetic.cp((5, 3), 1, entries=15, seed=1, modes=("item", "kind"), shift=9.0).tensor


@cache
def samples() -> Any:
    return np.random.default_rng(0).normal(size=(40, 5))


@cache
def cube() -> Any:
    vectors = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5))).Q
    return np.einsum("r,ri,rj,rk->ijk", [3.0, 2.0, 0, 0, 0], vectors, vectors, vectors)


# -- what is attacked -----------------------------------------------------------------------------


class Target(NamedTuple):
    """Settings that work, and what is done with them; ``paid`` where the folder's ledger is charged."""

    settings: dict[str, Any]
    use: Callable[..., Any]
    paid: bool = False
    hostile: tuple[Any, ...] = HOSTILE


def fitted(estimator: Any, data: Any = None) -> None:
    data = tensor() if data is None else data
    planned = estimator.plan(data.modes, bounds=data.bounds, entries=data.n_entries)
    planned.explain()
    estimator.fit(data)
    assert np.isfinite(estimator.predict(data)).all()


def of_estimator(kind: Any, **settings: Any) -> Target:
    usual = {"duplicates": "error", "unseen": "error", "dtype": None, "threads": 1, "progress": None}
    return Target({**usual, "privacy": None, **settings}, lambda **chosen: fitted(kind(**chosen)))


def of_solver(record: Any, data: Any = None, *, bare: bool = False, **settings: Any) -> Target:
    def use(**chosen: Any) -> None:
        plain = {"mean": False, "biases": False} if bare else {}
        fitted(sf.CP(2, solver=record(**chosen), threads=1, **plain), data)

    return Target(settings, use)


def privacy(folder: Path, **changes: Any) -> sf.Privacy:
    labels = {name: list(range(size)) for name, size in zip(MODES, SHAPE, strict=True)}
    usual = {"epsilon": 2.0, "delta": 1e-6, "unit": "value", "seed": 0, "ledger": folder / "ledger"}
    return sf.Privacy(**{**usual, "public": sf.Public(entries=70, labels=labels), **changes})


def of_private(record: Any, folder: Path, unit: Any = "value", **settings: Any) -> Target:
    def use(**chosen: Any) -> None:
        promise = privacy(folder, method=record(**chosen), unit=unit)
        fitted(sf.CP(2, privacy=promise, threads=1))

    return Target(settings, use, paid=True)


def of_paper(record: Any, folder: Path, **settings: Any) -> Target:
    def use(**chosen: Any) -> None:
        promise = privacy(folder, method=record(**chosen), delta=0.0, analysis="paper")
        fitted(sf.CP(2, privacy=promise, threads=1, mean=False, biases=False))

    usual = {"descent": sf.SequentialSGD(passes=2), "noise": 1.0}
    return Target({**usual, **settings}, use, paid=True)


def any_private(folder: Path, chance: random.Random) -> Target:
    """The settings of a privacy, with any unit and method."""
    unit = chance.choice(("value", "entry", "user", "values:user"))
    method = chance.choice(("auto", "alternating", "input", "gradient", "output", "bias", "constant"))
    usual = {
        **{"epsilon": 2.0, "delta": 1e-6, "unit": unit, "method": method, "analysis": "proven"},
        **{"noise": "auto", "local": "auto", "public": sf.Public(entries=70), "limit": None, "seed": 0},
        "max_entries": 20 if unit == "values:user" else None,
    }
    usual["public"] = privacy(folder).public

    def use(**chosen: Any) -> None:
        fitted(sf.CP(2, privacy=privacy(folder, **chosen), threads=1))

    return Target(usual, use, paid=True)


def of_public(folder: Path, chance: random.Random) -> Target:
    unit = chance.choice(("value", "entry", "user"))
    labels = privacy(folder).public.labels
    usual = {
        "entries": 70,
        "labels": labels,
        "spread": 1.0,
        "units": None,
        "step": None,
        "profile": None,
    }

    def use(**chosen: Any) -> None:
        promise = privacy(folder, unit=unit, public=sf.Public(**chosen))
        fitted(sf.CP(privacy=promise, threads=1))

    return Target(usual, use, paid=True)


def of_bounds(folder: Path, chance: random.Random) -> Target:
    """Public bounds of any size, and the clamp and public numbers that go with them."""
    method = chance.choice(("bias", "constant", "alternating", "input", "gradient", "output"))
    unit = chance.choice(("value", "entry"))

    def use(low: Any, high: Any, spread: Any) -> None:
        values = np.clip(tensor().values, 0, 1)
        data = sf.SparseTensor(tensor().coordinates, values, tensor().modes, (low, high))
        labels = privacy(folder).public.labels
        public = sf.Public(entries=70, labels=labels, spread=spread)
        fitted(
            sf.CP(2, privacy=privacy(folder, unit=unit, method=method, public=public), threads=1), data
        )

    sizes = [
        sign * 10.0**power for sign in (-1, 1) for power in (-305, -170, -80, -61, -59, 0, 15, 59, 61)
    ]
    hostile = (*HOSTILE, *sizes, 1e15, 1e15 + 2, 1e15 + 0.25, 2.0**60, 2.0**60 + 4096)
    return Target({"low": 0.0, "high": 1.0, "spread": None}, use, paid=True, hostile=hostile)


def of_search(folder: Path) -> Target:
    def use(**chosen: Any) -> None:
        search = sf.PrivateSearch(**chosen)
        search.plan(tensor().modes, bounds=BOUNDS, entries=70)
        search.fit(tensor())

    both = [sf.Biases(threads=1), sf.Biases(sweeps=0, threads=1)]
    usual = {"estimators": both, "privacy": privacy(folder), "repetitions": 2, "holdout": 0.3}
    return Target(usual, use, paid=True)


def of_power(folder: Path, chance: random.Random) -> Target:
    what = chance.choice(("tensor", "stream", "once", "private tensor", "private stream"))
    promise = {
        "private tensor": privacy(folder, unit=sf.TensorEntry(0.1)),
        "private stream": privacy(folder, unit=sf.Sample(2.0)),
    }.get(what)
    usual = {
        **{"n_components": 2, "restarts": 2, "iterations": 2, "symmetric": True, "whiten": False},
        **{"moment": "samples", "order": 3, "samples": 4 if what == "once" else None, "average": True},
        **{"privacy": promise, "seed": 0, "threads": 1, "progress": None},
    }

    def use(**chosen: Any) -> None:
        method = sf.PowerMethod(**chosen)
        if "tensor" in what:
            method.fit(cube())
        else:
            method.fit_stream(samples(), reuse=what != "once")

    return Target(usual, use, paid=True)


def of_coupled() -> Target:
    def use(**chosen: Any) -> None:
        model = sf.Coupled(**chosen)
        relations = sf.Relations({"counts": counts(), "side": side()})
        model.plan(relations).explain()
        model.fit(relations)
        assert np.isfinite(model.predict("counts", counts())).all()

    solver = sf.Multiplicative(sweeps=2)
    usual = {"rank": 2, "solver": solver, "starts": 1, "seed": 0, "dtype": np.float64, "threads": 1}
    return Target({**usual, "progress": None}, use)


def of_relations() -> Target:
    def use(**chosen: Any) -> None:
        repr(sf.Relations(**chosen))

    usual = {"structure": "cp", "divergence": 1.0, "dispersion": 1.0, "absent": "missing"}
    return Target({"tensors": {"counts": counts(), "side": side()}, **usual}, use)


def of_langevin() -> Target:
    def use(**chosen: Any) -> None:
        poisson = isinstance(chosen["model"], str) and chosen["model"] == "poisson"
        data, p = {"data": counts() if poisson else tensor()}, 1.0 if poisson else 0.0
        sf.Coupled(2, sf.Langevin(**chosen), threads=1).fit(
            sf.Relations(data, divergence=p, dispersion=None)
        )

    usual = {
        **{"model": "normal", "samples": 3, "burn_in": 2, "thin": 1, "chains": 2, "batch": None},
        **{"step": None, "offset": None, "decay": 0.55, "preconditioner": "curvature"},
        **{
            "prior_shape": 1.0,
            "prior_mean": 1.0,
            "prior_precision": None,
            "precision_prior": (1.0, 1.0),
        },
        **{"noise_prior": (1.0, 0.01), "by_component": True, "dispersion": None, "start_scale": 0.3},
    }
    return Target(usual, use)


def of_predict() -> Target:
    """What a fitted model is asked."""
    model = _model()
    own = {"X": tensor(), "own": None, "own_mode": None, "own_value": None, "unseen": None}
    return Target(own, model.predict)


@cache
def _model() -> sf.CP:
    return sf.CP(2, solver=sf.ALS(sweeps=1), threads=1).fit(tensor())


def of_questions(chance: random.Random) -> Target:
    model = _model()
    return chance.choice(
        [
            Target({"user": 1, "item": 2, "day": 3}, model.predict),
            Target({"mode": "item", "k": 2, "user": 1, "day": 2}, model.top),
            Target({"X": tensor(), "y": None}, model.rmse),
            Target(
                {"X": tensor(), "y": None}, lambda **c: sf.CP(2, solver=sf.ALS(1), threads=1).fit(**c)
            ),
        ]
    )


def of_synthetic(chance: random.Random) -> Target:
    noise = {"snr": 1.0, "zipf": None, "seed": 0, "dtype": np.float64, "missing": None, "entries": 20}
    line = {"biases": 0.1, "scale": 1.0, "shift": 0.0, "modes": None}
    modes = [sf.Mode("user", 5), sf.Mode("item", 4)]
    links = {"relations": {"a": ("user", "item"), "b": ("item", "kind")}}
    few = {"n_users": 5, "n_items": 4, "n_days": 3, "entries": 20, "seed": 0}
    wei = {"size": 4, "rank": 2, "missing": 0.5, "scaling": "magnitude", "order": 3, "seed": 0}
    typical = {"modes": modes, "entries": 9, "profile": None, "people": 0, "half": 2.0, "seed": 0}
    return chance.choice(
        [
            Target({"shape": (5, 4), "rank": 2, **noise, **line}, sf.synthetic.cp),
            Target({"shape": (5, 4), "ranks": (2, 2), **noise, **line}, sf.synthetic.tucker),
            Target(
                {**links, "sizes": {"user": 5, "item": 4, "kind": 3}, "rank": 2, **noise, "entries": 9},
                sf.synthetic.coupled,
            ),
            Target({"kind": "cp", **wei}, sf.synthetic.wei),
            Target(few, sf.synthetic.ratings_like),
            Target(typical, sf.synthetic.typical),
        ]
    )


def of_preparation(chance: random.Random) -> Target:
    data, prepare = {"tensor": tensor()}, sf.prepare
    return chance.choice(
        [
            Target({**data, "bounds": (0, 1)}, prepare.clip),
            Target({**data, "policy": "mean"}, prepare.merge_duplicates),
            Target({**data, "mode": "user", "max_entries": 3, "seed": 0}, prepare.cap),
            Target({**data, "mode": "user", "k": 1, "seed": 0}, prepare.leave_out),
            Target({**data, "test": 0.2, "by": None, "seed": 0}, prepare.split),
            Target({**data, "test": 0.2, "seed": 0}, prepare.split_by_label),
            Target({**data, "k": 3, "seed": 0}, lambda **chosen: list(prepare.folds(**chosen))),
            Target(data, prepare.check_values),
            Target(data, prepare.check_modes),
            Target(data, sf.scaling.Centre.fit),
            Target({**data, "to": (0, 1)}, sf.scaling.MinMax.fit),
            Target({**data, "slices": "day", "iterations": 2}, sf.scaling.BiScale.fit),
            Target({"mean": 1.0}, sf.scaling.Centre),
            Target({"low": 0.0, "high": 1.0, "to": (0.0, 1.0)}, sf.scaling.MinMax),
        ]
    )


def of_reading() -> Target:
    table = {"user": ["a", "b", "a"], "item": ["x", "x", "y"], "value": [1.0, 2.0, 3.0]}
    import pyarrow as pa

    usual = {"source": pa.table(table), "modes": ["user", "item"], "value": "value", "bounds": (1, 5)}
    return Target({**usual, "bins": None, "variable": None}, sf.read)


def of_tensor(chance: random.Random) -> Target:
    mode = {"name": "user", "size": 3, "labels": None, "bin": None}
    whole = {"coordinates": tensor().coordinates, "values": tensor().values, "modes": tensor().modes}
    return chance.choice([Target(mode, sf.Mode), Target({**whole, "bounds": None}, sf.SparseTensor)])


def of_judging(chance: random.Random) -> Target:
    both = {"observed": [0.0, 1.0, 1.0], "predicted": [0.1, 0.9, 0.4]}
    vectors = {"found": cube()[0], "reference": cube()[0]}
    quick = sf.CP(2, solver=sf.ALS(sweeps=1), threads=1)
    ranks = {"ranks": [1, 2], "solver": sf.Variational(sweeps=2), "starts": 1, "seed": 0, "threads": 1}
    return chance.choice(
        [
            Target(both, metrics.rmse),
            Target(both, metrics.auc),
            Target(both, metrics.poisson_log_likelihood),
            Target({**both, "deviation": 1.0}, metrics.normal_log_likelihood),
            Target({"k": 2, **both, "groups": None}, metrics.precision_at),
            Target({"draws": samples().T}, diagnostics.split_rhat),
            Target({"draws": samples().T, "ranks": False}, diagnostics.effective_size),
            Target(vectors, sf.match_components),
            Target({"estimator": quick, "tensor": tensor(), "folds": 2, "seed": 0}, sf.cross_validate),
            Target({"relations": {"counts": counts()}, **ranks}, sf.choose_rank),
        ]
    )


def of_audit(folder: Path, chance: random.Random) -> Target:
    promise = privacy(folder, method=sf.PrivateConstant(), ledger=None)
    usual = {
        **{"estimator": sf.CP(1, privacy=promise, threads=1), "data": (5, 4), "delta": None},
        **{"confidence": 0.9, "bounds": (-1.0, 1.0), "seed": 0, "whole_fits": False, "processes": 1},
    }
    if chance.random() < 0.5:
        return Target({**usual, "canaries": 10, "references": 2, "tell": print}, _audited_once)
    kept = {"out": folder / "runs", "sees": None, "canaries": ["least"], "tell": print}
    return Target({**usual, "runs": 40, **kept}, _audited)


def _audited(**chosen: Any) -> None:
    sf.audit(**_alone(chosen)).to_json()


def _audited_once(**chosen: Any) -> None:
    sf.audit_one_run(**_alone(chosen)).to_json()


def _alone(chosen: dict[str, Any]) -> dict[str, Any]:
    """Without processes of its own, which the harness's child may not have."""
    wanted = chosen["processes"]
    usable = isinstance(wanted, int | np.integer | None) and (wanted is None or 1 <= wanted <= 4096)
    return {**chosen, "processes": 1} if usable else chosen


def of_records(chance: random.Random) -> Target:
    profile = {"biases": 0.3, "interactions": 0.2, "decay": 0.7, "components": 3, "skew": (0.5, 0.5)}
    return chance.choice(
        [
            Target({"epsilon": 1.0, "delta": 1e-6}, sf.Budget),
            Target({"rho": 1.0}, sf.ZCDP),
            Target({"delta": 1e-6}, sf.ZCDP(1.0).epsilon),
            Target({"mode": "user", "max_entries": 3}, sf.Unit),
            Target({"mode": "user", "max_entries": 3}, sf.UnitValues),
            Target({"change": 1.0, "printed": False}, sf.TensorEntry),
            Target({"norm": 1.0}, sf.Sample),
            Target({**profile, "times": 0.1}, sf.Profile),
            Target({"unit": sf.Entry(), "limit": sf.Budget(1.0), "path": None}, sf.Ledger),
        ]
    )


def of_keeping(folder: Path, chance: random.Random) -> Target:
    model, cells = _model(), tensor().coordinates
    whole = {"coordinates": cells, "values": tensor().values, "modes": tensor().modes}
    factors = {"factors": model.model_.factors, "modes": model.modes_, "format": "csv", "biases": None}
    return chance.choice(
        [
            Target({"folder": model.save(folder / "model")}, sf.load),
            Target({"path": folder / "cells.csv", **whole, "value_name": "v"}, sf.write_completed),
            Target({"directory": folder / "factors", **factors}, sf.write_factors),
        ]
    )


KINDS: dict[str, Callable[[Path, random.Random], Target]] = {
    "CP": lambda *_: of_estimator(
        sf.CP, rank=2, solver=sf.ALS(sweeps=1), mean=True, biases=True, starts=1, seed=0
    ),
    "Tucker": lambda *_: of_estimator(
        sf.Tucker, ranks=(2, 2, 2), solver=sf.ALS(sweeps=1), mean=True, biases=True, starts=1, seed=0
    ),
    "Biases": lambda *_: of_estimator(sf.Biases, ridge=5.0, sweeps=1),
    "ALS": lambda *_: of_solver(
        sf.ALS,
        sweeps=1,
        ridge=1.0,
        ridge_per_entry=0.0,
        bias_ridge=5.0,
        core_ridge=1.0,
        prior_mean=None,
        init_scale=0.3,
        tolerance=None,
    ),
    "SGD": lambda *_: of_solver(sf.SGD, **_PASSES, decay=0.9),
    "MinibatchSGD": lambda *_: of_solver(sf.MinibatchSGD, **_PASSES, batch=None, momentum=0.9),
    "SequentialSGD": lambda *_: of_solver(sf.SequentialSGD, **_PASSES),
    "Multiplicative": lambda *_: of_solver(
        sf.Multiplicative,
        counts(),
        bare=True,
        sweeps=2,
        divergence=1.0,
        prior_shape=None,
        prior_mean=None,
        tolerance=1e-6,
    ),
    "Variational": lambda *_: of_solver(
        sf.Variational,
        counts(),
        bare=True,
        sweeps=2,
        prior_shape=1.0,
        prior_mean=1.0,
        learn_prior=True,
        tolerance=1e-6,
    ),
    "Langevin": lambda *_: of_langevin(),
    "Privacy": any_private,
    "Public": of_public,
    "bounds": of_bounds,
    "PrivateConstant": lambda folder, _: of_private(sf.PrivateConstant, folder, noise=1.0, pure=False),
    "PrivateBiases": lambda folder, _: of_private(
        sf.PrivateBiases, folder, "entry", noise=1.0, pure=False, sweeps=1
    ),
    "InputPerturbation": lambda folder, _: of_private(
        sf.InputPerturbation,
        folder,
        noise=1.0,
        noise_law="laplace",
        step=None,
        clamp=None,
        sweeps=2,
        starts=1,
    ),
    "PrivateAlternating": lambda folder, chance: of_private(
        sf.PrivateAlternating,
        folder,
        chance.choice(("value", "entry", "user")),
        noise=1.0,
        sweeps=2,
        held_sweeps=1,
        last_step=0.5,
        residual_clip=2.0,
        feature_clip=1.5,
        unit_clip=0.6,
        bias_weight=1.0,
        bias_share=0.3,
        growth=0.0,
        prior_mean=None,
    ),
    "PrivateSGD": lambda folder, chance: of_private(
        sf.PrivateSGD,
        folder,
        chance.choice(("value", "entry", "user")),
        noise=1.0,
        passes=2,
        rate=1.0,
        clip=1.0,
        step=0.3,
        last_step=0.1,
        levels_share=0.3,
        bias_share=0.2,
        typical=4.0,
        prior_mean=None,
        start=None,
    ),
    "PrivatePasses": lambda folder, _: of_private(
        sf.PrivatePasses,
        folder,
        passes=2,
        clip=0.5,
        step=0.4,
        ridge=0.02,
        init_scale=0.4,
        noise_law="residual",
        prior_mean=None,
        noise=1.0,
    ),
    "PrivateOutput": lambda folder, _: of_private(
        sf.PrivateOutput,
        folder,
        others=sf.InputPerturbation(sweeps=2, starts=1, noise_law="laplace"),
        mode=None,
        noise_law="vector",
        output_noise=1.0,
        noise=1.0,
    ),
    "PaperInput": lambda folder, _: of_paper(sf.PaperInput, folder, clamp=None),
    "PaperGradient": lambda folder, _: of_paper(sf.PaperGradient, folder, mode=None, clip=0.1),
    "PaperOutput": lambda folder, _: of_paper(sf.PaperOutput, folder, mode=None, clip=0.1),
    "PrivateSearch": lambda folder, _: of_search(folder),
    "PowerMethod": of_power,
    "Coupled": lambda *_: of_coupled(),
    "Relations": lambda *_: of_relations(),
    "predict": lambda *_: of_predict(),
    "questions": lambda _, chance: of_questions(chance),
    "synthetic": lambda _, chance: of_synthetic(chance),
    "preparation": lambda _, chance: of_preparation(chance),
    "read": lambda *_: of_reading(),
    "tensors": lambda _, chance: of_tensor(chance),
    "judging": lambda _, chance: of_judging(chance),
    "audit": of_audit,
    "records": lambda _, chance: of_records(chance),
    "keeping": of_keeping,
}
_PASSES: dict[str, Any] = {
    **{"passes": 2, "step": 0.02, "ridge_per_entry": 0.06, "ridge": 0.0, "bias_ridge": 0.02},
    **{"core_ridge": 0.001, "prior_mean": None, "init_scale": 0.2, "tolerance": None},
}
_CALLED = ("progress", "tell")  # a function of the wrong kind is the caller's own error


def attempt(kind: str, seed: int, folder: Path) -> None:
    """One case: settings of a kind, some of them hostile, put to use."""
    chance = random.Random(f"{kind} {seed}")
    if kind == COMMANDS:
        run_command(folder, chance)
        return
    target = KINDS[kind](folder, chance)
    chosen = dict(target.settings)
    for name in chance.sample(list(chosen), min(len(chosen), chance.choice((1, 1, 2, 3)))):
        hostile = [value for value in target.hostile if not (name in _CALLED and callable(value))]
        likely = chance.random() < 0.5
        chosen[name] = _edge(chosen[name], chance) if likely else chance.choice(hostile)
    with redirect_stdout(io.StringIO()):
        try:
            target.use(**chosen)
        except Exception as error:
            # A paper's descent as printed has nothing that keeps noise from throwing it off.
            printed = kind.startswith("Paper") and isinstance(error, DivergedError)
            if target.paid and charged(folder / "ledger") and not printed:
                raise RuntimeError("budget was spent on a fit that failed") from error
            raise


def _edge(value: Any, chance: random.Random) -> Any:
    """A value of the right type, perhaps of an absurd size."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((1, 2, 3, np.int64(2), 5))
    if isinstance(value, float) or value is None:
        return chance.choice(
            (1.0, 0.5, 0.999, 10 ** chance.uniform(-62, 62), -(10 ** chance.uniform(-9, 9)))
        )
    if isinstance(value, tuple) and all(isinstance(part, float) for part in value):
        return tuple(sorted(_edge(part, chance) for part in value))
    return value


def charged(ledger: Path) -> bool:
    """Whether a ledger holds more than its head."""
    return ledger.exists() and len(ledger.read_text().splitlines()) > 1


# -- the command line -----------------------------------------------------------------------------

COMMANDS = "command line"
WORDS = (
    *("", " ", "abc", "0", "1", "-1", "1.5", "nan", "inf", "-inf", "1e400", "1e-400", "9" * 40, "true"),
    *(
        "user",
        "item=",
        "=day",
        "a=b=c",
        "user=nowhere.csv",
        "--",
        "-",
        "ü",
        "\x00",
        "'",
        "%s",
        "{}",
        "[]",
    ),
    *("/dev/null", "/nowhere/at/all", ".", "..", "ratings.csv", "auto", "values:user", "0x10", "1_0"),
)


def run_command(folder: Path, chance: random.Random) -> None:
    """A command with words out of place: it ends with 0, 1 or 2, and never with a traceback."""
    from typer.testing import CliRunner

    from sfumato.cli import app

    rows = [f"u{i % 7},i{i % 5},{1 + i % 5}" for i in range(35)]
    file = folder / "ratings.csv"
    file.write_text("\n".join(["user,item,rating", *rows]))
    words = [str(word) for word in _command(file, folder, chance)]
    for _ in range(chance.choice((1, 1, 2, 3))):
        place = chance.randrange(1, len(words))
        words[place : place + chance.choice((0, 1, 1, 1))] = [chance.choice(WORDS)]
    errors = io.StringIO()
    with redirect_stderr(errors):
        ended = CliRunner().invoke(app, words)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise RuntimeError(json.dumps(words)) from ended.exception
    if ended.exit_code not in (0, 1, 2) or "Traceback" in ended.output + errors.getvalue():
        raise RuntimeError(f"{json.dumps(words)} ended with {ended.exit_code}: {ended.output}")


def _command(file: Path, folder: Path, chance: random.Random) -> list[Any]:
    columns = ["--modes", "user", "item", "--value", "rating", "--bounds", "1", "5"]
    quick = ["--rank", "2", "--rounds", "2", "--threads", "1", "--seed", "0", "--quiet"]
    budget = ["--epsilon", "2", "--delta", "1e-6", "--unit", "value"]
    noise = ["--method", "bias", "--noise-seed", "0", "--force"]
    public = ["--public-entries", "35", "--public-spread", "1", "--ledger", folder / "ledger"]
    paper = ["--duplicates", "mean", "--test", "0.2", "--json"]
    out = ["--out", folder / "model"]
    return chance.choice(
        [
            ["complete", file, *columns, *quick, *paper, *out],
            ["complete", file, *columns, *budget, *noise, *public, "--duplicates", "mean", *out],
            ["describe", file, *columns, "--rank", "2", "--json"],
            ["plan", "--shape", "60", "40", "--entries", "900", *budget, "--rank", "2", "--json"],
            ["predict", folder / "model", file, "--out", folder / "filled.csv", "--unseen", "bias"],
            ["explain", folder / "model", "--json"],
            [
                "couple",
                f"a={file}",
                "--modes",
                "a=user,item",
                "--value",
                "a=rating",
                "--rank",
                "2",
                *out,
            ],
            [
                "audit",
                "--shape",
                "5",
                "4",
                *budget,
                "--method",
                "constant",
                "--runs",
                "40",
                "--processes",
                "1",
            ],
        ]
    )


SUBJECT = Subject("settings", (*KINDS, COMMANDS), attempt)
