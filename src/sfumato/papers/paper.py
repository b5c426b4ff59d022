"""What a paper offers to ``sfumato reproduce``: its figures, tables or experiments by name.

An experiment says which jobs there are, does one of them, and makes tables and pictures of what came of
all. Running and keeping jobs is for ``runner``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sfumato.errors import SettingError
from sfumato.papers.runner import OVER_EPSILON, Done, Headings, Job, Point

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Experiment(ABC):
    """A figure, table or experiment of a paper, in full or in short: a record of its settings."""

    repetitions: int = field(kw_only=True)
    headings: ClassVar[Headings] = OVER_EPSILON

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is called beside the paper's name, such as ``figure 2``."""

    def with_options(self, **_options: str) -> Self:
        """The same under the options that the paper lets a caller choose."""
        return self

    @abstractmethod
    def jobs(self) -> list[Job]:
        """Repetition after repetition: an early end leaves whole ones."""

    @abstractmethod
    def do_job(self, job: Job) -> Sequence[Point]:
        """All fits of a job, by one thread."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that the results depend on."""

    @abstractmethod
    def shared_settings(self) -> dict[str, Any]:
        """What every fit depends on, beside its job. Where data are missing, this says so."""

    def complete(self, results: Sequence[Done]) -> list[Done]:
        """The results with what follows from them without a fit."""
        return list(results)

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:  # noqa: ARG002 - most have none
        """What the results say in a few numbers, such as a slope."""
        return {}

    @abstractmethod
    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        """For the terminal."""

    @abstractmethod
    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        """Write the pictures."""


@dataclass(frozen=True)
class Paper:
    """A paper's experiments by name.

    ``kind`` is what they are, and the option that asks for one: ``figure``, ``experiment`` or ``table``.
    Where a paper has a second kind, the names of those begin with it: ``figure 6.5`` beside table 6.5.
    ``options`` are further ones that the paper has, each with its values; the first is the default.
    """

    name: str
    kind: str
    full: Mapping[str, Experiment]
    quick: Mapping[str, Experiment]
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, list[str]]:
        """The names of the experiments of each kind."""
        found: dict[str, list[str]] = {self.kind: []}
        for key in self.full:
            kind, _, name = key.rpartition(" ")
            found.setdefault(kind or self.kind, []).append(name)
        return found

    def asked(self, given: Mapping[str, str]) -> tuple[str, str]:
        """The kind and the name of what is asked for; what is wrong with the options is said here."""
        kinds = self.kinds
        for name in given:
            if name not in kinds and name not in self.options:
                own = " and ".join(f"--{own}" for own in (*kinds, *self.options))
                raise SettingError(f"--{name} does not belong to {self.name}, which has {own}")
        named = [kind for kind in kinds if kind in given]
        if len(named) != 1:
            which = " or ".join(kinds)
            ways = " or ".join(f"--{kind}: {', '.join(names)}" for kind, names in kinds.items())
            raise SettingError(f"say which {which} of {self.name} with {ways}")
        kind, name = named[0], given[named[0]]
        if name not in kinds[kind]:
            raise SettingError(
                f"of {self.name} there are the {kind}s {', '.join(kinds[kind])}; got {name}"
            )
        for option, value in self.chosen(given).items():
            if value not in self.options[option]:
                raise SettingError(
                    f"--{option} is one of {', '.join(self.options[option])}, got {value!r}"
                )
        return kind, name

    def find(self, given: Mapping[str, str], *, quick: bool, repetitions: int | None) -> Experiment:
        """The experiment that is asked for."""
        kind, name = self.asked(given)
        found = (self.quick if quick else self.full)[name if kind == self.kind else f"{kind} {name}"]
        if repetitions is not None:
            found = replace(found, repetitions=repetitions)
        return found.with_options(**self.chosen(given))

    def chosen(self, given: Mapping[str, str]) -> dict[str, str]:
        """The further options: as given, or by default."""
        return {name: given.get(name, values[0]) for name, values in self.options.items()}
