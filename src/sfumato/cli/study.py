"""``sfumato study``: fits between owners who do not pool their data.

One of them plans, which makes a folder for everybody. Each owner serves from its own; whoever leads asks
the rounds and gets the release.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import Command, command, example
from sfumato.cli.common import console, notes_unless, reading, save_or_rescue, say_what_was_written
from sfumato.cli.options import ModelName
from sfumato.cli.privacy import Promise, Release
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.data.shards import Shards
    from sfumato.data.tensor import Mode, SparseTensor
    from sfumato.owners.leading import Watch
    from sfumato.owners.study import Study

STUDY = "study"  # its file, in everybody's folder
MODEL, RELEASE = "model", "release"

KitFolder = Annotated[
    Path, typer.Argument(metavar="KIT", help="Your folder, as `sfumato study plan` made it.")
]
OwnFolder = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        callback=options.folder_for_files,
        help="Folder of yours: what goes on there is kept, and found again after a break.",
    ),
]


class TrustName(StrEnum):
    each = "each-site"
    shares = "secure-shares"
    owner = "one-owner"


# -- planning -------------------------------------------------------------------------------------


@command(
    "Plan a fit between owners, and make everybody's folder for it.",
    "sfumato study plan --modes user item --bounds 1 5 --epsilon 10 --delta 1e-6 --unit entry \\",
    "    --local user --public-labels item=items.txt --site north=2000 south=900 --out ratings-study",
    take_several=("--site",),
    page="docs/owners.md",
)
def plan(
    modes: Annotated[
        list[str], typer.Option(metavar="NAME...", help="Names of the modes: --modes user item.")
    ],
    site: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=N]...",
            help="Who takes part, with how many owners at most whose rows stay there: north=2000.",
        ),
    ],
    bounds: options.Bounds,
    promise: Promise,
    *,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", callback=options.folder_for_files, help="New folder for everybody's folders."
        ),
    ],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where sites reach whoever leads.")
    ] = "localhost:8443",
    trust: Annotated[
        TrustName,
        typer.Option(help="Who adds noise: every site all of it, or a share; or the leader, once."),
    ] = TrustName.each,
    tolerate: Annotated[
        int,
        typer.Option(metavar="N", help="Of secure shares: sites that may be lost or tell others."),
    ] = 1,
    sites_of_unit: Annotated[
        int, typer.Option(metavar="N", help="At how many sites one user may be, if users are protected.")
    ] = 1,
    bin: options.Bins = None,
    model: options.ModelKind = ModelName.cp,
    rank: Annotated[int | None, typer.Option(help="The most components; by default planned.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random start.")] = 0,
    days: Annotated[int, typer.Option(metavar="N", help="How long the folders are valid.")] = 365,
) -> None:
    """Plan a private fit over the data of several owners, without any of it.

    Makes a folder for whoever leads and one for every site, each with the study (the same for all: plan,
    noise, budget, public labels) and a certificate of its own. Hand each to its owner, and to nobody
    else: it is what a site is known by.
    """
    from sfumato.estimators.completion import CP, Tucker
    from sfumato.estimators.studies import make_study
    from sfumato.owners.kits import make_kits

    privacy = promise.settings(bounds, Release())
    if privacy is None or bounds is None:
        raise SettingError("a study between owners is private: give --epsilon, --unit and --bounds")
    names, owners = _sites(site)
    kind: Any = CP if model == ModelName.cp else Tucker
    asked = _with_trust(privacy, trust, len(names), tolerate, sites_of_unit)
    study = make_study(
        kind(rank, privacy=asked, seed=seed, unseen="bias"),
        _modes(modes, bin, privacy),
        owners or names,
        bounds=bounds,
        entries=promise.public_entries,
    )
    kits = make_kits(out, address, list(names), days=days)
    for kit in kits.values():
        study.save(kit / STUDY)
    screen = console()
    screen.print(study.in_words())
    say_what_was_written(screen, list(kits.values()))
    leader, first = list(kits.values())[:2]
    screen.print("next, everybody in their own place:", soft_wrap=True)
    screen.print(
        f"  sfumato study serve {first} DATA.csv --value COLUMN --out {first.name}", soft_wrap=True
    )
    screen.print(f"  sfumato study lead {leader} --out {leader.name}", soft_wrap=True)


def _sites(given: list[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Names of sites, and how many owners each has, where that is said of all of them."""
    pairs = [text.partition("=") for text in given]
    names = tuple(name for name, _, _ in pairs)
    numbered = [number for _, sign, number in pairs if sign]
    if numbered and (
        len(numbered) < len(pairs) or not all(n.isascii() and n.isdigit() for n in numbered)
    ):
        raise typer.BadParameter(
            "give every site its number of owners, as in north=2000 south=900, or none of them",
            param_hint="--site",
        )
    return names, dict(zip(names, map(int, numbered), strict=True)) if numbered else {}


def _with_trust(privacy: Any, trust: TrustName, sites: int, tolerate: int, of_unit: int) -> Any:
    from dataclasses import replace

    from sfumato.privacy.trust import Trust

    lost = tolerate if trust == TrustName.shares else 0
    return replace(privacy, trust=Trust(trust.value.replace("-", " "), sites, lost, of_unit))  # type: ignore[arg-type]


def _modes(names: list[str], bins: list[str] | None, privacy: Any) -> list[str | Mode]:
    """Modes by name; those of times say how these are cut."""
    from sfumato.data.tensor import Mode

    binned = options.bins_by_column(bins)
    listed = privacy.public
    for name in binned:
        if name not in names or not listed.lists(name):
            raise typer.BadParameter(
                f"list the times of {name}: --public-labels {name}=FILE", param_hint="--bin"
            )
    return [
        Mode(name, len(listed.listed(name)), None, binned[name]) if name in binned else name
        for name in names
    ]


# -- reading --------------------------------------------------------------------------------------


@command(
    "Say what a study asks for, and what it promises.",
    "sfumato study show ratings-study/north",
    page="docs/owners.md",
)
def show(kit: KitFolder) -> None:
    """Print the plan of a study, who takes part, and the promise that its release will carry.

    Read it before you serve: it says what your data are asked for, how much noise hides them, and whom
    you have to trust.
    """
    from sfumato.privacy.entropy import Entropy
    from sfumato.privacy.ledger import Ledger

    study = _study(kit)
    screen = console()
    screen.print(study.in_words())
    screen.print()
    screen.print(str(study.plan.guarantee(Ledger(study.facts.unit), Entropy())))


def _study(kit: Path) -> Study:
    from sfumato.owners.study import Study

    return Study.read(kit / STUDY if kit.is_dir() else kit)


# -- taking part ----------------------------------------------------------------------------------


@command(
    "Take part in a study with your data.",
    "sfumato study serve ratings-study/north ratings.csv --value rating --out north",
    page="docs/owners.md",
)
def serve(
    kit: KitFolder,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Your entries: a file, or a folder of shards.")
    ],
    *,
    value: options.Value = None,
    separator: options.Separator = None,
    variable: options.Variable = None,
    date_format: options.DateFormat = None,
    out: OwnFolder,
    ledger: options.LedgerFile = None,
    ledger_limit: options.LedgerLimit = None,
    ledger_delta: Annotated[
        float, typer.Option(metavar="D", help="The delta at which a new ledger's limit is kept.")
    ] = 1e-6,
    trust_leader: Annotated[
        bool,
        typer.Option(
            "--trust-leader",
            help="Has to be said where the leader adds all noise: sums then leave without any.",
        ),
    ] = False,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Answer the rounds of a study with your entries, until its leader is done.

    What leaves is what the study says: sums of clipped contributions with noise, as whole numbers.
    Spending is recorded in a ledger of yours (OUT/ledger.jsonl, or --ledger) before anything is drawn.
    Stopped or killed, start it again with the same words: it goes on where it was, and draws no noise
    twice. At the end OUT/model holds the release and the rows of your own owners, which stay with you.
    """
    from sfumato.estimators.studies import take_part
    from sfumato.kernels.numba.threads import available_threads
    from sfumato.owners.cells import serve as serve_cells
    from sfumato.owners.kits import Kit
    from sfumato.owners.participant import LEDGER
    from sfumato.privacy.budgets import Budget
    from sfumato.report.progress import FitProgress
    from sfumato.solvers.protocol import Info

    identity, study, notes = Kit.read(kit), _study(kit), notes_unless(quiet)
    identity.check_role("site")
    limit = None if ledger_limit is None else Budget(ledger_limit, ledger_delta)
    reader = options.Columns(
        [mode.name for mode in study.modes],
        value,
        study.facts.bounds,
        [f"{mode.name}={mode.bin}" for mode in study.modes if mode.bin],
        variable,
        separator,
        date_format,
    )
    notes.print(study.in_words(), soft_wrap=True)
    if ledger is None and study.facts.trust.kind != "one owner" and not (out / LEDGER).exists():
        notes.print(
            f"spending is recorded in {out / LEDGER}, which knows of this study alone: with --ledger "
            "FILE it adds up over all that is fitted to these data",
            soft_wrap=True,
        )
    entries = _entries(data, reader, notes)
    notes.print(f"{identity.name}: waiting for {identity.leader} at {identity.address}")
    with FitProgress(notes) as progress:
        progress.begin("rounds")
        made = take_part(
            study,
            identity.name,
            entries,
            lambda handler: serve_cells(identity, handler),
            out,
            ledger=ledger,
            limit=limit,
            threads=threads or available_threads(),
            trust_leader=trust_leader,
            tell=lambda done, rounds: progress(done, rounds, Info(done)),
        )
    if made is None:
        raise SettingError(
            "the leader has stopped before the study was done: what was charged stays charged. Start "
            "again with the same words when it is led again, and it goes on where it was"
        )
    save_or_rescue(made.save, out / MODEL)
    say_what_was_written(console(), [out / MODEL])


def _entries(data: Path, reader: options.Columns, notes: Console) -> SparseTensor | Shards:
    from sfumato.data.io.shard_files import is_shards
    from sfumato.data.shards import Shards

    if is_shards(data):
        return Shards(data)
    with reading(data.name, notes):
        return reader.read(data)


# -- leading --------------------------------------------------------------------------------------


@command(
    "Lead a study over its sites.",
    "sfumato study lead ratings-study/leader --out leader",
    page="docs/owners.md",
)
def lead(
    kit: KitFolder,
    *,
    out: OwnFolder,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for all sites to be there.")
    ] = 3600.0,
    lost: Annotated[
        float, typer.Option(metavar="SECONDS", help="After how long without an answer a site is lost.")
    ] = 600.0,
    least: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sites that have to answer a round; by default all of them."),
    ] = None,
    ledger: options.LedgerFile = None,
    noise_seed: options.NoiseSeed = None,
    quiet: options.Quiet = False,
) -> None:
    """Ask the rounds of a study, add up what sites answer, and write the release to OUT/release.

    Stopped or killed, start it again with the same words: it goes on where it was. A site that is lost
    ends it, unless --least says how many are enough; what was charged stays charged.
    """
    from sfumato.estimators.studies import lead as lead_study
    from sfumato.owners.cells import CellHub
    from sfumato.owners.kits import Kit
    from sfumato.owners.leading import Patience
    from sfumato.privacy.ledger import Ledger
    from sfumato.report.progress import FitProgress

    identity, study, notes = Kit.read(kit), _study(kit), notes_unless(quiet)
    identity.check_role("leader")
    if study.facts.trust.kind != "one owner" and (ledger is not None or noise_seed is not None):
        raise SettingError("noise and ledgers are the sites' own: leave out --ledger and --noise-seed")

    def missing(names: tuple[str, ...]) -> None:
        notes.print(f"waiting for {', '.join(names)}")

    def late(watch: Watch) -> None:
        notes.print(f"round {watch.round} of {watch.rounds}: waiting for {', '.join(watch.waiting)}")

    with CellHub(identity) as hub, FitProgress(notes) as progress:
        hub.wait(wait, missing)
        progress.begin(f"{len(study.sites)} sites")
        made = lead_study(
            study,
            hub,
            out,
            patience=Patience(lost=lost, least=least),
            ledger=None if ledger is None else Ledger(study.facts.unit, path=ledger),
            seed=noise_seed,
            progress=progress,
            watch=late,
        )
    forced = noise_seed is not None
    save_or_rescue(lambda folder: made.release(folder, force=forced), out / RELEASE)
    screen = console()
    screen.print(str(made.guarantee_))
    say_what_was_written(screen, [out / RELEASE])


_EXAMPLES = (
    "sfumato study plan --modes user item --bounds 1 5 --epsilon 10 --delta 1e-6 --unit entry \\",
    "    --local user --public-labels item=items.txt --site north=2000 south=900 --out ratings-study",
    "sfumato study serve ratings-study/north ratings.csv --value rating --out north",
    "sfumato study lead ratings-study/leader --out leader",
)


class _Whole(Command):
    """What `sfumato study --help` ends with: an example, as that of each command does."""

    def register(self, app: typer.Typer) -> None:
        app.callback(epilog=f"More: {self.page}\n\n{example(*self.examples)}")(self.function)


def _whole() -> None:
    """Fits between owners who do not pool their data."""


COMMANDS = (_Whole(_whole, "", _EXAMPLES, page="docs/owners.md"), plan, show, serve, lead)
