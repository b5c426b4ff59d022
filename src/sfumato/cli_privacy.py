"""Options of the command line that ask for a private fit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfumato.data.tensor import Mode
    from sfumato.privacy.settings import Privacy


class MethodName(StrEnum):
    auto = "auto"
    alternating = "alternating"
    input = "input"
    gradient = "gradient"
    output = "output"
    bias = "bias"
    constant = "constant"


class Analysis(StrEnum):
    proven = "proven"
    paper = "paper"


Epsilon = Annotated[
    float | None,
    typer.Option(help="Fit privately within this budget."),
]
Delta = Annotated[
    float | None,
    typer.Option(help="Second part of the budget; without it epsilon is pure."),
]
UnitName = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT",
        help="What is protected: value, entry, a mode (all entries of one user), or values:MODE.",
    ),
]
MaxEntries = Annotated[
    int | None,
    typer.Option(help="Entries of one level that are used, or values that may change."),
]
Method = Annotated[
    MethodName,
    typer.Option(help="Where the noise goes; auto picks by public numbers."),
]
AnalysisName = Annotated[
    Analysis,
    typer.Option(help="A proven guarantee, or the paper's own, claimed."),
]
NoiseLaw = Annotated[
    str,
    typer.Option(metavar="LAW", help="Law of the noise, where a method has several."),
]
Local = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        help="Mode whose rows stay with their owners, or none; auto: the unit's own mode.",
    ),
]
PublicEntries = Annotated[
    int | None,
    typer.Option(metavar="N", help="About how many entries there are, if that is public."),
]
PublicLabels = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODE=FILE...",
        help="Labels that everyone knows, one per line: --public-labels item=items.txt.",
    ),
]
PublicUnits = Annotated[
    int | None,
    typer.Option(metavar="N", help="At most how many owners there are whose rows stay with them."),
]
LabelsArePublic = Annotated[
    bool,
    typer.Option("--labels-are-public", help="The labels in FILE are public."),
]
PublicSpread = Annotated[
    float | None,
    typer.Option(metavar="S", help="About how far values lie from their mean, if that is public."),
]
PublicStep = Annotated[
    float | None,
    typer.Option(metavar="S", help="Distance of possible values: 1 for whole stars."),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="FILE", help="Record spending there; it adds up over fits."),
]
LedgerLimit = Annotated[
    float | None,
    typer.Option(metavar="E", help="Epsilon that a new ledger may reach."),
]
TuneRank = Annotated[
    list[int] | None,
    typer.Option(
        metavar="INT...",
        help="Choose among these ranks by private errors, within the budget: --tune-rank 2 4 8.",
    ),
]
NoiseSeed = Annotated[
    int | None,
    typer.Option(metavar="INT", help="Repeatable noise, for experiments only."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Release what is only claimed, or seeded; it is marked so."),
]


@dataclass(frozen=True)
class PrivacyOrder:
    """How private the fit is to be, as asked for on the command line."""

    epsilon: float | None
    delta: float | None
    unit: str | None
    max_entries: int | None
    method: MethodName
    analysis: Analysis
    noise: str
    local: str
    entries: int | None
    labels: list[str] | None
    labels_are_public: bool
    spread: float | None
    units: int | None
    step: float | None
    ledger: Path | None
    ledger_limit: float | None
    seed: int | None
    force: bool

    def settings(self, bounds: tuple[float, float] | None) -> Privacy | None:
        """The privacy asked for; whatever is wrong with it is said before the file is read."""
        from sfumato.privacy.budget import Budget
        from sfumato.privacy.settings import Privacy
        from sfumato.privacy.unit import Public

        if self.epsilon is None:
            self._refuse_without_epsilon()
            return None
        if self.unit is None:
            raise SettingError(
                "--epsilon needs --unit: value, entry, or the mode whose levels are people (--unit user)"
            )
        if bounds is None:
            raise SettingError("a private fit needs --bounds LOW HIGH: public ones, not the data's")
        if not self.force and (self.analysis == Analysis.paper or self.seed is not None):
            what = "only claimed by the paper" if self.analysis == Analysis.paper else "seeded"
            raise SettingError(
                f"a result whose privacy is {what} is not released: leave it out, or say --force"
            )
        delta = self.delta or 0.0
        limit = None if self.ledger_limit is None else Budget(self.ledger_limit, delta)
        return Privacy(
            epsilon=self.epsilon,
            delta=delta,
            unit=self.unit,
            max_entries=self.max_entries,
            method=self.method.value,
            analysis=self.analysis.value,
            noise=self.noise,
            local=None if self.local == "none" else self.local,
            public=Public(
                entries=self.entries,
                labels=self.labels_are_public or self._read_labels(),
                spread=self.spread,
                units=self.units,
                step=self.step,
            ),
            ledger=self.ledger,
            limit=limit,
            seed=self.seed,
        )

    def _refuse_without_epsilon(self) -> None:
        given: dict[str, object] = {
            "--delta": self.delta,
            "--unit": self.unit,
            "--max-entries": self.max_entries,
            "--ledger": self.ledger,
            "--noise-seed": self.seed,
            "--noise": None if self.noise == "auto" else self.noise,
            "--local": None if self.local == "auto" else self.local,
            "--public-entries": self.entries,
            "--public-labels": self.labels,
            "--public-spread": self.spread,
            "--public-units": self.units,
            "--public-step": self.step,
            "--labels-are-public": self.labels_are_public or None,
            "--ledger-limit": self.ledger_limit,
            "--force": self.force or None,
        }
        named = [flag for flag, value in given.items() if value is not None]
        if named or self.method != MethodName.auto or self.analysis != Analysis.proven:
            raise SettingError(f"{', '.join(named) or 'a private method'} needs --epsilon")

    def _read_labels(self) -> dict[str, list[str]]:
        pairs = [text.partition("=") for text in self.labels or []]
        if not all(mode and file for mode, _, file in pairs):
            raise typer.BadParameter(
                "give a mode and a file, as in item=items.txt", param_hint="--public-labels"
            )
        return {mode: Path(file).read_text(encoding="utf-8").splitlines() for mode, _, file in pairs}


def public_shape(modes: Sequence[Mode], privacy: Privacy | None) -> list[int]:
    """Sizes that default settings may depend on: as public labels give them, not the file."""
    from sfumato.fit.methods import local_mode
    from sfumato.privacy.unit import parse_unit

    assert privacy is not None
    unit = parse_unit(privacy.unit, [mode.name for mode in modes], privacy.max_entries)
    local, labels = local_mode(privacy, unit, modes), privacy.public.labels
    given = {} if isinstance(labels, bool) or not unit.hides_presence else labels
    sizes = [len(given.get(mode.name, range(mode.size))) for mode in modes]
    if local is not None and unit.hides_presence and privacy.public.units is not None:
        sizes[local] = privacy.public.units
    return sizes
