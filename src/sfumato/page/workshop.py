"""What the page keeps while it runs: its folder, its fits, and the permits to spend."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sfumato.errors import BudgetError, SettingError
from sfumato.page.choices import Choices, Form
from sfumato.page.differences import differences
from sfumato.page.drafts import Drafts
from sfumato.page.expected import Expected, Spending, expected, spending_or_refusal
from sfumato.page.guard import Confirmations, Secrets
from sfumato.page.invented import preview
from sfumato.page.jobs import Job
from sfumato.page.opened import Folder, Table, look_at
from sfumato.page.wording import Places, Settings, words, write_labels

_BUSY = "another fit is running: wait until it has ended, or cancel it"
_STALE = (
    "this confirmation has been used, or the fit or its ledger has changed since it was shown. Nothing "
    "was spent. Look at the numbers again, and confirm again"
)
_NO_CHOICES = ("csrf", "nonce", "step", "at", "file", "rows")


@dataclass(frozen=True)
class Ordered:
    """A fit that was started, with what was asked for."""

    job: Job
    choices: Choices
    epsilon: float
    places: Places
    settings: Settings
    before: Spending | None  # None of a preview, which spends nothing
    told: Expected
    differs: tuple[str, ...] = ()  # the file, from what was said of it: for the holder alone

    @property
    def is_preview(self) -> bool:
        return self.before is None


@dataclass(frozen=True)
class Asked:
    """A form with the file that it is about, and how far it has been filled in well."""

    form: Form
    table: Table
    file: Path
    wrong: str | None  # the step that something is wrong with


@dataclass
class Workshop:
    """All that requests share."""

    folder: Folder
    ledger: Path | None
    known: Secrets = field(default_factory=Secrets)
    confirmations: Confirmations = field(default_factory=Confirmations)
    drafts: Drafts = field(default_factory=Drafts)
    ordered: dict[str, Ordered] = field(default_factory=dict)
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, raw: Mapping[str, str], upto: str | None) -> Asked:
        """The form, checked up to a step; None checks nothing."""
        name = raw.get("file", "")
        file = self.folder.find(name)
        table = look_at(file)
        fields = {key: value for key, value in raw.items() if key not in _NO_CHOICES}
        form = Form(name, table.names, fields)
        return Asked(form, table, file, None if upto is None else form.checked(upto))

    def ledger_of(self, file: Path) -> Path:
        """Where spending on a file is recorded: under its name, so that what is opened twice adds up."""
        return self.ledger or self.folder.kept / "ledgers" / f"{file.name}.ledger"

    def spending(self, asked: Asked, choices: Choices) -> Spending:
        return spending_or_refusal(choices, self.ledger_of(asked.file))

    @staticmethod
    def differs(asked: Asked) -> tuple[str, ...]:
        """What the file of a form that was checked holds other than was said of it."""
        return differences(asked.file, asked.form.choices())

    # -- fits -------------------------------------------------------------------------------------

    def confirmation(self, asked: Asked, choices: Choices, told: Expected, spent: Spending) -> str:
        """A permit for this fit, with the ledger as it is."""
        return self.confirmations.ask(self._about(asked, choices, told, spent))

    def _about(self, asked: Asked, choices: Choices, told: Expected, spent: Spending) -> str:
        places = Places(asked.file, Path("model"), spent.path, spent.new)
        listed = [known.labels for known in choices.known.values()]
        return json.dumps([words(choices, told.epsilon, places), listed, spent.charges])

    def start(self, asked: Asked, nonce: str) -> Ordered:
        """Begin a fit that was confirmed."""
        choices = asked.form.choices()
        told, spent, differs = expected(choices), self.spending(asked, choices), self.differs(asked)
        if spent.refused is not None:
            raise BudgetError(spent.refused)
        with self._starting:
            self._check_idle()
            if not self.confirmations.use(nonce, self._about(asked, choices, told, spent)):
                raise BudgetError(_STALE)
            folder = self._next_folder(asked.file)
            places = Places(asked.file, folder / "model", spent.path, spent.new)
            spent.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_labels(choices, places)
            (folder / "settings.json").write_text(self._settings(asked).text(), "utf-8")
            job = Job(words(choices, told.epsilon, places), folder)
            settings = self._settings(asked)
            return self._begun(
                Ordered(job, choices, told.epsilon, places, settings, spent, told, differs)
            )

    def start_preview(self, asked: Asked) -> Ordered:
        """Begin the same fit of invented data."""
        choices = asked.form.choices()
        told = expected(choices)
        with self._starting:
            self._check_idle()
            folder = self._invented
            said = preview(choices, told.epsilon, folder)
            places = Places(folder / "invented.csv", folder / "model")
            job = Job(said, folder)
            settings = self._settings(asked)
            return self._begun(Ordered(job, choices, told.epsilon, places, settings, None, told))

    def _begun(self, ordered: Ordered) -> Ordered:
        ordered.job.start()
        self.ordered[ordered.job.id] = ordered
        return ordered

    def _check_idle(self) -> None:
        if self.running is not None:
            raise SettingError(_BUSY)

    @property
    def _invented(self) -> Path:
        """Where invented data lie, apart from those of another page of this folder."""
        return self.folder.kept / f"preview-{os.getpid()}"

    @property
    def running(self) -> Ordered | None:
        return next((each for each in self.ordered.values() if each.job.state == "running"), None)

    def _next_folder(self, file: Path) -> Path:
        fits, number = self.folder.kept / "fits", 1
        while True:
            folder = fits / f"{file.stem}-{number}"
            try:
                folder.mkdir(parents=True, mode=0o700)
            except FileExistsError:
                number += 1
            else:
                return folder

    @staticmethod
    def _settings(asked: Asked) -> Settings:
        return Settings(asked.form.file, tuple(asked.form.columns), dict(asked.form.raw))

    def close(self) -> None:
        """End what runs, which nobody would see any more, and remove what was invented."""
        for each in self.ordered.values():
            each.job.cancel()
        shutil.rmtree(self._invented, ignore_errors=True)
