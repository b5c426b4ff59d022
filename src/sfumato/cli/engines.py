"""Where the entries of a fit lie, and who answers for them: a file, shards on disk, a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.options import Columns, Duplicates
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from sfumato.data.shards import Shards
    from sfumato.engines.ray import Ray

DEFAULT_WORKERS = 2


class EngineName(StrEnum):
    disk = "disk"
    ray = "ray"


@dataclass(frozen=True)
class Engines:
    """Who answers for the entries, as asked for on the command line."""

    engine: Annotated[
        EngineName | None,
        typer.Option(
            help="Who holds the entries: disk, as shards lie there (their default), or workers of a Ray "
            "cluster; by default a file is held in memory."
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help=f"Of --engine ray; by default {DEFAULT_WORKERS}."),
    ] = None
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Of a Ray cluster that runs already; by default one is begun here."
        ),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="That a worker of --engine ray has for one answer."),
    ] = None

    def settings(self, file: Path, shards: Shards | None, threads: int | None) -> Ray | None:
        """The cluster to fit on, if any; ``shards`` is what FILE is, where it is a folder of some."""
        if self.engine != EngineName.ray:
            self._refuse_without_ray()
            if self.engine == EngineName.disk and shards is None:
                raise SettingError(
                    f"--engine disk goes through shards, and {file} is none: cut it with "
                    f"`sfumato shard {file}`, or leave --engine out"
                )
            return None
        from sfumato.engines.ray import Ray

        given = {"address": self.ray_address, "timeout": self.timeout, "threads": threads}
        more = {name: value for name, value in given.items() if value is not None}
        made = Ray(self.workers or DEFAULT_WORKERS, **more)  # type: ignore[arg-type]
        made.check()
        return made

    def _refuse_without_ray(self) -> None:
        given = {
            "--workers": self.workers,
            "--ray-address": self.ray_address,
            "--timeout": self.timeout,
        }
        for flag, value in given.items():
            if value is not None:
                raise SettingError(f"{flag} says how a Ray cluster is used: give --engine ray as well")


# -- shards -----------------------------------------------------------------------------------------


def shards_in(folder: Path) -> Shards | None:
    """The shards in a folder; None of what is no such folder."""
    if not folder.is_dir():
        return None
    from sfumato.data.io.shard_files import HEADER
    from sfumato.data.shards import Shards

    return Shards(folder) if (folder / HEADER).is_file() else None


def check_order(
    shards: Shards, columns: Columns, *, test: float | None, duplicates: Duplicates, tunes: bool
) -> None:
    """Refuse what would change shards, before they are read: they are fitted as they lie there."""
    for flag, value in columns.given.items():
        if value is not None:
            raise SettingError(
                f"{shards.folder} holds shards, whose modes, values and bounds are settled: leave "
                f"{flag} out, or make them anew with `sfumato shard`"
            )
    if test is not None:
        raise SettingError(
            "--test would take entries out of shards, which are fitted as they lie on disk: leave it "
            "out, and the training error is reported. To measure errors at held-out rows, keep these "
            "out of the tables before `sfumato shard`, and compare them with `sfumato predict`"
        )
    if duplicates != Duplicates.error:
        raise SettingError(
            f"--duplicates {duplicates.value} would change what lies on disk: merge them before "
            "`sfumato shard`"
        )
    if tunes:
        raise SettingError(
            "--tune-rank holds entries out and fits in memory, and these are shards: leave it out"
        )


def check_bounds(shards: Shards) -> None:
    """Refuse a private fit of shards that were made without bounds."""
    if shards.bounds is None:
        raise SettingError(
            f"a private fit needs public bounds of the values, and {shards.folder} has none: make the "
            "shards anew with `sfumato shard --bounds LOW HIGH`"
        )
