"""What ``complete`` and ``audit`` are asked for as regards privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from sfumato.cli import options
from sfumato.cli.options import Analysis, MethodName
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfumato.data.tensor import Mode
    from sfumato.privacy.settings import Privacy


@dataclass(frozen=True)
class Release:
    """How what a private fit spends is recorded, and what it may release."""

    ledger: options.LedgerFile = None
    ledger_limit: options.LedgerLimit = None
    tune_rank: options.TuneRank = None
    noise_seed: options.NoiseSeed = None
    force: options.Force = False


@dataclass(frozen=True)
class Promise:
    """How private the fit is to be, as asked for on the command line."""

    epsilon: options.Epsilon = None
    delta: options.Delta = None
    unit: options.UnitName = None
    max_entries: options.MaxEntries = None
    method: options.Method = MethodName.auto
    analysis: options.AnalysisName = Analysis.proven
    noise: options.NoiseLaw = "auto"
    local: options.Local = "auto"
    public_entries: options.PublicEntries = None
    public_labels: options.PublicLabels = None
    labels_are_public: options.LabelsArePublic = False
    public_spread: options.PublicSpread = None
    public_units: options.PublicUnits = None
    public_step: options.PublicStep = None

    def settings(self, bounds: tuple[float, float] | None, release: Release) -> Privacy | None:
        """The privacy asked for; whatever is wrong with it is said before the file is read."""
        from sfumato.privacy.budget import Budget
        from sfumato.privacy.settings import Privacy
        from sfumato.privacy.unit import Public

        if self.epsilon is None:
            self._refuse_without_epsilon(release)
            return None
        if self.unit is None:
            raise SettingError(
                "--epsilon needs --unit: value, entry, or the mode whose levels are people (--unit user)"
            )
        if bounds is None:
            raise SettingError("a private fit needs --bounds LOW HIGH: public ones, not the data's")
        if not release.force and (self.analysis == Analysis.paper or release.noise_seed is not None):
            what = "only claimed by the paper" if self.analysis == Analysis.paper else "seeded"
            raise SettingError(
                f"a result whose privacy is {what} is not released: leave it out, or say --force"
            )
        delta = self.delta or 0.0
        limit = None if release.ledger_limit is None else Budget(release.ledger_limit, delta)
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
                entries=self.public_entries,
                labels=self.labels_are_public or self._read_labels(),
                spread=self.public_spread,
                units=self.public_units,
                step=self.public_step,
            ),
            ledger=release.ledger,
            limit=limit,
            seed=release.noise_seed,
        )

    def _refuse_without_epsilon(self, release: Release) -> None:
        given: dict[str, object] = {
            "--delta": self.delta,
            "--unit": self.unit,
            "--max-entries": self.max_entries,
            "--ledger": release.ledger,
            "--noise-seed": release.noise_seed,
            "--noise": None if self.noise == "auto" else self.noise,
            "--local": None if self.local == "auto" else self.local,
            "--public-entries": self.public_entries,
            "--public-labels": self.public_labels,
            "--public-spread": self.public_spread,
            "--public-units": self.public_units,
            "--public-step": self.public_step,
            "--labels-are-public": self.labels_are_public or None,
            "--ledger-limit": release.ledger_limit,
            "--force": release.force or None,
        }
        named = [flag for flag, value in given.items() if value is not None]
        if named or self.method != MethodName.auto or self.analysis != Analysis.proven:
            raise SettingError(f"{', '.join(named) or 'a private method'} needs --epsilon")

    def _read_labels(self) -> dict[str, list[str]]:
        from sfumato.data.files import lines_of

        pairs = [text.partition("=") for text in self.public_labels or []]
        if not all(mode and file for mode, _, file in pairs):
            raise typer.BadParameter(
                "give a mode and a file, as in item=items.txt", param_hint="--public-labels"
            )
        return {mode: lines_of(file) for mode, _, file in pairs}


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
