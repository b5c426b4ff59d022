"""What commands that fit privately are asked for as regards privacy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli import options
from sfumato.cli.options import AUTO, Analysis
from sfumato.errors import DataError, SettingError

if TYPE_CHECKING:
    from sfumato.fit.request import Privacy

_MOST_LABELS = 10_000_000  # in a range


@dataclass(frozen=True)
class Spending:
    """How what a private fit spends is recorded, and what it may release."""

    ledger: options.LedgerFile = None
    ledger_limit: options.LedgerLimit = None
    noise_seed: options.NoiseSeed = None
    sampler: options.SamplerOption = options.SamplerName.sfumato
    force: options.Force = False

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say after Ctrl-C that what was charged by then stands."""
        try:
            yield
        except KeyboardInterrupt:
            if self.ledger is not None:
                typer.echo(
                    f"what was charged to {self.ledger} until now stands: sfumato ledger {self.ledger}",
                    err=True,
                )
            raise


@dataclass(frozen=True)
class Release(Spending):
    """The same of one table, whose rank may be chosen on the data, and which may be updated later."""

    tune_rank: options.TuneRank = None
    period: options.Period = None

    def of_period(self, privacy: Privacy | None) -> Privacy | None:
        """The privacy of a fit that is charged under the name of its period."""
        if self.period is None:
            return privacy
        if privacy is None or self.tune_rank:
            raise SettingError("--period is of one private fit: give --epsilon, and no --tune-rank")
        return replace(privacy, period=self.period)


@dataclass(frozen=True)
class Protection:
    """What is to be protected, within which budget, and what is public: of one table or of several."""

    epsilon: options.Epsilon = None
    delta: options.Delta = None
    unit: options.UnitName = None
    max_entries: options.MaxEntries = None
    local: options.Local = "auto"
    public_labels: options.PublicLabels = None
    labels_are_public: options.LabelsArePublic = False
    public_units: options.PublicUnits = None

    def asked(self, release: Spending) -> dict[str, Any]:
        """Settings of a :class:`Privacy`, without its method and what is public of the tables."""
        from sfumato.privacy.budgets import Budget

        delta = self.delta or 0.0
        if release.ledger_limit is not None and not 0 < release.ledger_limit < inf:
            raise SettingError(f"--ledger-limit must be a number above zero, got {release.ledger_limit}")
        return {
            "epsilon": self.epsilon,
            "delta": delta,
            "unit": self.unit,
            "max_entries": self.max_entries,
            "local": None if self.local == "none" else self.local,
            "ledger": release.ledger,
            "limit": None if release.ledger_limit is None else Budget(release.ledger_limit, delta),
            "seed": release.noise_seed,
            "sampler": release.sampler.value,
        }

    def check_unit(self) -> None:
        if self.unit is None:
            raise SettingError(
                "--epsilon needs --unit: value, entry, or the mode whose levels are people (--unit user)"
            )

    def given(self, release: Spending) -> dict[str, object]:
        """What was asked for, by flags; None where it was not."""
        return {
            "--delta": self.delta,
            "--unit": self.unit,
            "--max-entries": self.max_entries,
            "--ledger": release.ledger,
            "--noise-seed": release.noise_seed,
            "--sampler": None if release.sampler == options.SamplerName.sfumato else release.sampler,
            "--local": None if self.local == "auto" else self.local,
            "--public-labels": self.public_labels,
            "--public-units": self.public_units,
            "--labels-are-public": self.labels_are_public or None,
            "--ledger-limit": release.ledger_limit,
            "--force": release.force or None,
        }

    def labels(self) -> dict[Any, list[str] | bool]:
        """Those listed in files or as a range; elsewhere the data's, if these are public."""
        return {...: self.labels_are_public, **labels_by_mode(self.public_labels, "--public-labels")}


def check_releasable(what: str | None, release: Spending) -> None:
    """Refuse a result whose privacy is no more than ``what``, unless that is meant."""
    if what is not None and not release.force:
        raise SettingError(
            f"a result whose privacy is {what} is not released: leave it out, or say --force"
        )


def refuse_without_epsilon(given: Mapping[str, object], private_method: bool) -> None:
    """Refuse what makes sense of private fits alone."""
    named = [flag for flag, value in given.items() if value is not None]
    if named or private_method:
        raise SettingError(f"{', '.join(named) or 'a private method'} needs --epsilon")


@dataclass(frozen=True)
class Promise(Protection):
    """How private the fit of one table is to be, as asked for on the command line."""

    method: options.Method = AUTO
    analysis: options.AnalysisName = Analysis.proven
    noise: options.NoiseLaw = "auto"
    public_entries: options.PublicEntries = None
    public_spread: options.PublicSpread = None
    public_step: options.PublicStep = None
    intervals: options.Intervals = False

    def settings(self, bounds: tuple[float, float] | None, release: Spending) -> Privacy | None:
        """The privacy asked for; whatever is wrong with it is said before the file is read."""
        from sfumato.fit.request import Privacy
        from sfumato.privacy.units import Public

        printed = self.analysis == Analysis.paper
        if self.epsilon is None:
            refuse_without_epsilon(self.given(release), self.method != AUTO or printed)
            return None
        self.check_unit()
        if bounds is None:
            raise SettingError("a private fit needs --bounds LOW HIGH: public ones, not the data's")
        seeded = None if release.noise_seed is None else "seeded"
        check_releasable("only claimed by the paper" if printed else seeded, release)
        return Privacy(
            **self.asked(release),
            method=self.method.value,
            analysis=self.analysis.value,
            noise=self.noise,
            intervals=self.intervals,
            public=Public(
                entries=self.public_entries,
                labels=self.labels(),
                spread=self.public_spread,
                units=self.public_units,
                step=self.public_step,
            ),
        )

    def given(self, release: Spending) -> dict[str, object]:
        return {
            **super().given(release),
            "--noise": None if self.noise == "auto" else self.noise,
            "--public-entries": self.public_entries,
            "--public-spread": self.public_spread,
            "--public-step": self.public_step,
            "--intervals": self.intervals or None,
        }


def labels_by_mode(given: list[str] | None, flag: str) -> dict[str, list[str]]:
    """Labels of modes, listed in files or as a range."""
    pairs = [text.partition("=") for text in given or []]
    if not all(mode and listed for mode, _, listed in pairs):
        raise typer.BadParameter(
            "give a mode and a file, or a range of numbers, as in item=items.txt or user=1..6040",
            param_hint=flag,
        )
    if len({mode for mode, _, _ in pairs}) < len(pairs):
        raise typer.BadParameter("a mode is named twice", param_hint=flag)
    return {mode: _listed(listed, flag) for mode, _, listed in pairs}


def _listed(text: str, flag: str) -> list[str]:
    """Labels from a range of whole numbers, or one by line from a file."""
    from sfumato.data.io.files import lines_of

    ends = re.fullmatch(r"(\d{1,10})\.\.(\d{1,10})", text)
    if ends is None:
        try:
            return lines_of(text)
        except DataError as error:
            raise SettingError(f"{flag} lists labels, one in each line: {error}") from error
    first, last = int(ends[1]), int(ends[2])
    if not first < last < first + _MOST_LABELS:
        raise typer.BadParameter(
            f"{text}: a range goes from a whole number to a larger one, of {_MOST_LABELS:,} at most",
            param_hint=flag,
        )
    return [str(number) for number in range(first, last + 1)]
