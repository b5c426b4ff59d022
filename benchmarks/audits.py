"""Every method attacked: what is promised, what is accounted, what an attack shows. ``make audit``.

Five tables, written into ``docs/audit.md`` between its markers:

- grid: every method, unit, analysis and released set at epsilon 0.5, 1 and 4, on tiny data built for it;
- coupled: private fits of two relations at epsilon 0.5, 1 and 4, on tiny tables;
- network: a few steps of private networks at epsilon 0.5, 1 and 4, on a dozen examples;
- tight: how close the bound comes to the promise where all is in the attack's favour, 5,000 runs, of
  Gaussian noise 5,000 on each neighbour;
- ordinary: the same methods on data of paper W's kind.

A whole table raises a false alarm with probability 5% at most: each verdict takes its share.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.report import say
from sfumato.auditing import audit
from sfumato.processes import each_done
from sfumato.solvers.network.settings import Training

DOCS = Path(__file__).parents[1] / "docs" / "audit.md"
EPSILONS = (0.5, 1.0, 4.0)
GRID_RUNS, TIGHT_RUNS = 300, 5000
FALSE_ALARMS = 0.05  # of a whole table
Modes = tuple[sf.Mode, ...]


@dataclass(frozen=True)
class Case:
    """A method on a unit, with what of its release is looked at."""

    method: str
    unit: str
    make: Callable[[float], Any]
    data: Any
    canary: str
    released: str = "all factors"
    sees: tuple[str, ...] | None = None
    delta: float | None = None  # at which epsilon is measured, where not at the budget's
    runs: int | None = None

    @property
    def analysis(self) -> str:
        privacy = self.make(1.0).privacy
        return "paper" if _is_paper(privacy) else "proven"


def _is_paper(privacy: sf.Privacy) -> bool:
    return isinstance(privacy.method, sf.PaperInput | sf.PaperGradient | sf.PaperOutput)


def _named(*sizes: int) -> Modes:
    names = ("user", "item", "day", "place")
    return tuple(sf.Mode(name, size) for name, size in zip(names, sizes, strict=False))


CUBE, TABLE, WIDE = _named(6, 5, 5), _named(12, 12), _named(60, 60)
DELTA = 1e-5


def _whole_numbers(most: int) -> sf.SparseTensor:
    """Counts, or yes and no: half of the cells of a small table."""
    rng, modes = np.random.default_rng(0), _named(6, 8)
    cells = np.stack(np.unravel_index(rng.choice(48, 24, replace=False), (6, 8)))
    return sf.SparseTensor(cells, rng.integers(0, 2, 24).astype(float), modes, (0.0, float(most)))


COUNTS, ANSWERS = _whole_numbers(9), _whole_numbers(1)
LISTED = sf.Public(labels={"user": range(6), "item": range(8)})


def _fit(
    epsilon: float,
    unit: Any,
    method: Any,
    *,
    delta: float = 0.0,
    rank: int = 1,
    kind: Any = sf.CP,
    noise: str = "auto",
    local: str | None = "auto",
    plain: bool = False,
    loss: str = "squared",
    public: sf.Public | None = None,
) -> Any:
    said = {} if public is None else {"public": public}
    privacy = sf.Privacy(epsilon, delta, unit=unit, method=method, noise=noise, local=local, **said)
    settings = {"mean": False, "biases": False} if plain else {}
    return kind(rank, loss=loss, privacy=privacy, **settings)


def _case(
    method: str,
    unit: Any,
    solver: Any,
    data: Any,
    canary: str,
    *,
    released: str = "all factors",
    sees: tuple[str, ...] | None = None,
    at: float | None = None,
    runs: int | None = None,
    **settings: Any,
) -> Case:
    shown = {CAPPED: "user, at most 4", VALUES: "2 values of a user"}.get(unit, unit)
    make = partial(_fit, unit=unit, method=solver, **settings)
    return Case(method, shown, make, data, canary, released, sees, at, runs)


PASS = sf.PrivatePasses(passes=1)
STEPS = sf.PrivateSGD(passes=5)
SAMPLED = sf.PrivateSGD(passes=5, rate=0.5)
CAPPED, VALUES = sf.Unit("user", 4), sf.UnitValues("user", 2)
SWEEPS = sf.PrivateAlternating(sweeps=3)  # fewer than usual: more of each is seen, and runs are short
FEW = sf.SequentialSGD(passes=20)
TOGETHER = sf.PrivateSeen(levels=10)  # whatever the budget
JOINT = "all but users' rows"


def grid() -> list[Case]:
    """Every method and unit that the library offers, proven and as printed by paper W."""
    gaussian: dict[str, Any] = {"delta": DELTA}
    joint: dict[str, Any] = {"delta": DELTA, "local": "user", "released": JOINT}
    listed = {**joint, "public": LISTED}
    everything: dict[str, Any] = {"delta": DELTA, "local": None}
    return [
        _case("input, randomised response", "value", "input", TABLE, "edge", noise="response"),
        _case("input, Laplace", "value", "input", TABLE, "edge", noise="laplace"),
        _case("input, Gaussian", "value", "input", TABLE, "edge", noise="gaussian", **gaussian),
        _case("input", "entry", "input", CUBE, "edge", local=None),
        _case("input", CAPPED, "input", CUBE, "full", **everything),
        _case("input", VALUES, "input", TABLE, "most"),
        _case("gradient, residual, 1 pass", "value", PASS, CUBE, "least"),
        _case("gradient, residual, 2 passes", "value", "gradient", CUBE, "least", noise="residual"),
        _case("gradient, vector", "value", "gradient", CUBE, "least", noise="vector"),
        _case("gradient, residual, Tucker", "value", PASS, CUBE, "least", kind=sf.Tucker),
        _case("gradient, Gaussian", "value", STEPS, CUBE, "least", **gaussian),
        _case("gradient, Gaussian, sampled", "value", SAMPLED, CUBE, "least", **gaussian),
        _case("gradient, Gaussian", "entry", STEPS, CUBE, "least", **everything),
        _case("gradient, Gaussian", "entry", STEPS, CUBE, "least", **joint),
        _case("gradient, Gaussian, Tucker", "entry", STEPS, CUBE, "least", kind=sf.Tucker, **joint),
        _case("gradient, Gaussian", "user", STEPS, CUBE, "full", **everything),
        _case("gradient, Gaussian", "user", STEPS, CUBE, "full", **joint),
        _case("output", "value", "output", CUBE, "edge"),
        _case("output", "entry", "output", CUBE, "edge", **everything),
        _case("output", CAPPED, "output", CUBE, "full", **everything),
        _case("alternating", "value", SWEEPS, CUBE, "least", **gaussian),
        _case("alternating", "entry", SWEEPS, CUBE, "least", **everything),
        _case("alternating", "entry", SWEEPS, CUBE, "least", **joint),
        _case("alternating", "user", SWEEPS, CUBE, "full", **joint),
        _case("alternating, Tucker", "entry", SWEEPS, CUBE, "least", kind=sf.Tucker, **joint),
        _case("moments", "entry", "moments", TABLE, "least", rank=11, **joint),
        _case("moments", "user", "moments", TABLE, "full", rank=11, **joint),
        _case("moments, slopes alone", "entry", "moments", CUBE, "least", rank=2, **joint),
        _case("popularity", "entry", "popularity", TABLE, "least", loss="seen", **joint),
        _case("popularity", "user", "popularity", TABLE, "full", loss="seen", **joint),
        _case("seen together", "entry", TOGETHER, TABLE, "least", rank=4, loss="seen", **joint),
        _case("seen together", "user", TOGETHER, TABLE, "full", rank=4, loss="seen", **joint),
        _case("biases, counts", "entry", "bias", COUNTS, "least", loss="poisson", **listed),
        _case("biases, counts", "user", "bias", COUNTS, "full", loss="poisson", **listed),
        _case("biases, yes and no", "entry", "bias", ANSWERS, "least", loss="logistic", **listed),
        _case("biases, yes and no", "user", "bias", ANSWERS, "full", loss="logistic", **listed),
        _case("biases", "value", "bias", CUBE, "least"),
        _case("biases", VALUES, "bias", CUBE, "most"),
        _case("biases", "entry", "bias", CUBE, "least", **joint),
        _case("biases", "user", "bias", CUBE, "full", **joint),
        _case("constant", "value", "constant", CUBE, "least"),
        _case("constant", "entry", "constant", CUBE, "least", local=None),
        _case("constant", "user", "constant", CUBE, "full", local=None),
        *_printed(),
    ]


def _printed() -> list[Case]:
    """Paper W's three, with the released set as printed, and with the noisy factor alone."""
    noisy: dict[str, Any] = {"released": "the noisy factor C alone", "sees": ("factor_2",)}
    solvers = {
        "input": sf.PaperInput(descent=FEW),
        "gradient": sf.PaperGradient(descent=FEW),
        "output": sf.PaperOutput(descent=FEW),
    }
    cases = [
        _case(f"{name}, as printed", "value", solver, CUBE, "least", rank=2)
        for name, solver in solvers.items()
    ]
    return cases + [
        _case(f"{name}, as printed", "value", solvers[name], CUBE, "least", rank=2, **noisy)
        for name in ("gradient", "output")
    ]


RELATIONS = {"ratings": (_named(6, 5), 18), "tags": ((sf.Mode("user", 6), sf.Mode("tag", 4)), 15)}


def _tables() -> dict[str, sf.SparseTensor]:
    """Two relations that share their users."""
    rng = np.random.default_rng(0)

    def table(modes: Modes, entries: int) -> sf.SparseTensor:
        sizes = [mode.size for mode in modes]
        cells = np.unravel_index(rng.choice(np.prod(sizes), entries, replace=False), sizes)
        return sf.SparseTensor(np.stack(cells), rng.choice([-0.5, 0.5], entries), modes, (-1.0, 1.0))

    return {name: table(*about) for name, about in RELATIONS.items()}


def _fit_of_relations(epsilon: float, unit: str, method: Any, local: str | None) -> sf.Coupled:
    labels = {mode.name: range(mode.size) for modes, _ in RELATIONS.values() for mode in modes}
    relations = {name: sf.Public(entries=entries) for name, (_, entries) in RELATIONS.items()}
    public = sf.Public(labels=labels, relations=relations)
    privacy = sf.Privacy(epsilon, 1e-3, unit=unit, method=method, local=local, public=public)
    return sf.Coupled(2, privacy=privacy)


def coupled() -> list[Case]:
    """Private fits of two relations: one unit differs, in one of them or in both."""

    def case(method: Any, unit: str, canary: str, local: str | None, released: str) -> Case:
        name = "biases" if method == "bias" else "Langevin"
        make = partial(_fit_of_relations, unit=unit, method=method, local=local)
        return Case(name, unit, make, _tables(), canary, released)

    langevin, everything = sf.PrivateLangevin(passes=3, keep=1), "all factors"
    return [
        case("bias", "value", "ratings: least", None, everything),
        case("bias", "entry", "ratings: least", None, everything),
        case("bias", "entry", "tags: least", "user", JOINT),
        case("bias", "user", "ratings: full", "user", JOINT),
        case(langevin, "entry", "tags: least", None, everything),
        case(langevin, "user", "ratings: full", "user", JOINT),
    ]


def _network(epsilon: float, unit: str, rate: float, hidden: tuple[int, ...]) -> sf.PrivateClassifier:
    public = sf.Public(entries=12) if unit == "example" else sf.Public(units=4)
    # A small clip: whatever the canary is, it pulls as hard as it may.
    training = Training(rate, 3, 0.05, 0.5, momentum=0.0, average=0.0, centre=2.0)
    privacy = sf.Privacy(epsilon, 1e-3, unit=unit, public=public)
    return sf.PrivateClassifier(
        hidden, privacy=privacy, classes=[0, 1], bounds=(-1, 1), training=training
    )


def network() -> list[Case]:
    """Private networks: one example differs, or all examples of one owner."""
    rng = np.random.default_rng(0)
    inputs = np.append(rng.uniform(-0.2, 0.2, (12, 3)), [[1.0, 1.0, -1.0]], axis=0)
    targets = np.append(rng.integers(0, 2, 12), 1)
    owners = np.append(np.arange(12) // 3, 3)

    def case(unit: str, rate: float, hidden: tuple[int, ...]) -> Case:
        make = partial(_network, unit=unit, rate=rate, hidden=hidden)
        data = (inputs, targets) if unit == "example" else (inputs, targets, owners)
        name = f"network, {'hidden layer' if hidden else 'linear'}, rate {rate:g}"
        return Case(name, unit, make, data, "last", "all parameters")

    return [
        case("example", 1.0, ()),
        case("example", 1.0, (4,)),
        case("example", 0.5, ()),
        case("patient", 1.0, ()),
        case("patient", 0.5, (4,)),
    ]


ONE_STEP = sf.PrivateSGD(passes=1, rate=1.0, levels_share=0.01, clip=0.05)


def tight() -> list[Case]:
    """Where all is in the attack's favour."""
    plain: dict[str, Any] = {"plain": True}
    return [
        _case("input, randomised response", "value", "input", WIDE, "edge", noise="response"),
        _case("input, Laplace", "value", "input", WIDE, "edge", noise="laplace"),
        _case("gradient, residual, 1 pass", "value", PASS, CUBE, "least", **plain),
        _case(
            "gradient, Gaussian, 1 step",
            "value",
            ONE_STEP,
            CUBE,
            "least",
            delta=DELTA,
            runs=2 * TIGHT_RUNS,
            **plain,
        ),
    ]


def ordinary() -> list[Case]:
    """Paper W's data: 20 x 20 x 20, rank 3, half of the cells, signal and noise of one size."""
    data = sf.synthetic.wei("cp", seed=1000).train
    data = data.with_values(data.values, (-1.0, 1.0))
    unnamed: dict[str, Any] = {"plain": True, "rank": 3}
    return [
        replace(case, data=data)
        for case in (
            _case("input, randomised response", "value", "input", data, "least", **unnamed),
            _case("gradient, residual, 1 pass", "value", PASS, data, "least", **unnamed),
            _case("gradient, Gaussian", "value", "gradient", data, "least", delta=DELTA, **unnamed),
            _case("alternating", "value", "alternating", data, "least", delta=DELTA, rank=3),
            _case(
                "gradient, as printed",
                "value",
                sf.PaperGradient(descent=FEW),
                data,
                "least",
                **unnamed,
            ),
            _case("output, as printed", "value", sf.PaperOutput(descent=FEW), data, "least", **unnamed),
        )
    ]


TABLES: dict[str, tuple[Callable[[], list[Case]], tuple[float, ...], int]] = {
    "grid": (grid, EPSILONS, GRID_RUNS),
    "coupled": (coupled, EPSILONS, GRID_RUNS),
    "network": (network, EPSILONS, GRID_RUNS),
    "tight": (tight, (1.0, 4.0), TIGHT_RUNS),
    "ordinary": (ordinary, (1.0, 4.0), 400),
}


def _audited(job: tuple[str, int, float, int]) -> dict[str, Any]:
    """One audit, as a row of its table."""
    table, number, epsilon, runs = job
    case = TABLES[table][0]()[number]
    begin = perf_counter()
    found = audit(
        case.make(epsilon),
        case.data,
        runs=runs,
        canaries=[case.canary],
        sees=case.sees,
        delta=case.delta,
        processes=1,
    )
    family = 1 - FALSE_ALARMS / (len(TABLES[table][0]()) * len(TABLES[table][1]))
    return {
        "table": table,
        "method": case.method,
        "unit": case.unit,
        "analysis": case.analysis,
        "released": case.released,
        "promised": epsilon,
        "refuted": found.measured_at(family) > found.promise.epsilon,
        "attack": found.strongest.attack,
        "seconds": perf_counter() - begin,
        **{k: v for k, v in found.to_json().items() if k not in ("findings", "verdict")},
    }


def run(tables: Sequence[str], runs: int | None, processes: int | None) -> list[dict[str, Any]]:
    jobs = [
        (table, number, epsilon, runs or case.runs or TABLES[table][2])
        for table in tables
        for number, case in enumerate(TABLES[table][0]())
        for epsilon in TABLES[table][1]
    ]
    rows: dict[int, dict[str, Any]] = {}
    for number, row in each_done(_audited, jobs, processes):
        rows[number] = row
        say(
            f"{len(rows)}/{len(jobs)} {row['method']}, {row['unit']}, {row['released']}, "
            f"epsilon {row['promised']:g}: >= {row['measured']:.2f}"
            f"{' REFUTED' if row['refuted'] else ''} ({row['seconds']:.0f} s, {row['attack']})"
        )
    return [rows[number] for number in range(len(jobs))]


# -- into the documentation -----------------------------------------------------------------------


def table_text(rows: Sequence[dict[str, Any]]) -> str:
    """A table in Markdown: one line for each method, one column for each epsilon."""
    epsilons = sorted({row["promised"] for row in rows})
    heads = [f"promised {epsilon:g}: audited" for epsilon in epsilons]
    lines = [
        f"| method | unit | analysis | released | accounted at {epsilons[-1]:g} | {' | '.join(heads)} |",
        "|" + "---|" * (5 + len(heads)),
    ]
    keys = list(dict.fromkeys(_key(row) for row in rows))
    for key in keys:
        mine = {row["promised"]: row for row in rows if _key(row) == key}
        accounted = mine[epsilons[-1]]["promise"]["accounted"]
        cells = [_cell(mine[epsilon]) for epsilon in epsilons]
        shown = "none" if accounted is None else f"{accounted:.3g}"
        lines.append(f"| {' | '.join(key[:4])}{key[4]} | {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    delta = row["promise"]["delta"]
    at = f"; at delta {delta:g}" if delta else ""
    return row["method"], row["unit"], row["analysis"], row["released"], at


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['measured']:.2f}"
    if row["gaussian"]:
        text += f" (Gaussian {row['gaussian']:.2f})"
    return f"**{text}: refuted**" if row["refuted"] else text


def write_docs(rows: Sequence[dict[str, Any]], path: Path) -> None:
    text = path.read_text("utf-8")
    for table in dict.fromkeys(row["table"] for row in rows):
        begin, end = f"<!-- {table}: made by make audit -->", f"<!-- end of {table} -->"
        head, _, tail = text.partition(begin)
        _, _, rest = tail.partition(end)
        made = table_text([row for row in rows if row["table"] == table])
        text = f"{head}{begin}\n\n{made}\n\n{end}{rest}"
    path.write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=[], help=f"of {', '.join(TABLES)}; all by default")
    parser.add_argument("--runs", type=int, help="fits for each audit")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--json", type=Path, help="also write all figures there")
    parser.add_argument("--dry", action="store_true", help="leave the documentation as it is")
    options = parser.parse_args()
    begin = perf_counter()
    rows = run(options.tables or list(TABLES), options.runs, options.processes)
    say(f"{len(rows)} audits in {(perf_counter() - begin) / 60:.1f} minutes")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), "utf-8")
    if not options.dry:
        write_docs(rows, DOCS)
    wrong = [row for row in rows if row["refuted"] and row["analysis"] == "proven"]
    if wrong:
        raise SystemExit(f"{len(wrong)} proven guarantees refuted")


if __name__ == "__main__":
    main()
