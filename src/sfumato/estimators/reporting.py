"""Fitted estimators as pages and in notebooks: what a release holds, and what only holders may see."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import as_path, check_flag
from sfumato.data.tensor import Mode
from sfumato.errors import NotFittedError, ReleaseError, SettingError
from sfumato.estimators.lists import empty_places
from sfumato.markup import snippet
from sfumato.models.components import Components
from sfumato.models.coupled import CoupledModel
from sfumato.models.doubts import Errors
from sfumato.models.features import Columns
from sfumato.models.multilinear import CPModel, Multilinear
from sfumato.privacy.account import read_ledger
from sfumato.privacy.budgets import rounded_up
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.page.audited import audited
from sfumato.report.page.contents import Held, Levels, Part, Round, Shown
from sfumato.report.page.page import Page, check_place, page, write_page
from sfumato.solvers.protocol import Info
from sfumato.store import StoredModel, StoredNetwork
from sfumato.store.reading import SMALL, parse_json, read_file
from sfumato.surface import setting

_PathLike = str | PathLike[str]


class Reporting:
    """What fitted estimators say of themselves: a page, and a few lines in a notebook."""

    guarantee_: Guarantee | None

    @abstractmethod
    def _shown(self) -> Shown:
        """What a page may show; of a private model that is what its release holds."""

    def _held(self, held_out: Any) -> Held:
        """What only the holder may see; ``held_out`` are entries that were not fitted."""
        if held_out is not None:
            raise SettingError(
                f"errors of a {type(self).__name__} are not measured here: leave them out"
            )
        return Held()

    @abstractmethod
    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is anything to say."""

    def report(
        self,
        path: _PathLike,
        *,
        release: bool = False,
        force: bool = False,
        held_out: Any = None,
        ledger: _PathLike | None = None,
        audit: _PathLike | None = None,
    ) -> Path:
        """Write one page of HTML that needs no network and no other file; see ``docs/report.md``.

        Parameters
        ----------
        path : of the page.
        release : write what the guarantee covers and nothing else, so that the page can be handed out.
            By default a second part says what is known here of the data, and is marked not for release.
        force : with ``release``, hand out what is only claimed, or whose noise came from a seed.
        held_out : entries that were not fitted, to measure errors at.
        ledger, audit : files that a ledger and ``sfumato audit`` have written.
        """
        target = check_place(path)
        made = self._page(release=release, force=force, held_out=held_out, ledger=ledger, audit=audit)
        return write_page(target, made.text, private=not made.for_release)

    def _page(
        self,
        *,
        release: bool = False,
        force: bool = False,
        held_out: Any = None,
        ledger: _PathLike | None = None,
        audit: _PathLike | None = None,
        held: Held | None = None,
    ) -> Page:
        """The page itself; ``held`` is what else the holder knows."""
        check_flag(release=release, force=force)
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        shown = self._shown()
        if release:
            if any(each is not None for each in (held_out, ledger, audit, held)):
                raise SettingError(
                    "what is measured and charged at the data is not released: leave out "
                    f"{setting('release')}, or {setting('held_out')}, {setting('ledger')} and "
                    f"{setting('audit')}"
                )
            self._check_released(shown, force)
            return page(shown)
        mine = self._held(held_out)
        if held_out is not None:
            mine = replace(mine, at=f"the entries given with {setting('held_out')}")
        if held is not None:
            mine = _with(mine, held)
        account = None if ledger is None else read_ledger(ledger)
        return page(
            shown, replace(mine, account=account, audit=None if audit is None else read_audit(audit))
        )

    @staticmethod
    def _check_released(shown: Shown, force: bool) -> None:
        if shown.guarantee is None or shown.secret is not None:
            raise ReleaseError("this model is not private, and its report is not either: keep it")
        shown.guarantee.check_releasable(force)

    def _repr_html_(self) -> str:
        """For notebooks."""
        if not self.__sklearn_is_fitted__():
            return snippet(repr(self), [("state", "not fitted yet")])
        shown = self._shown()
        return snippet(shown.title, [*shown.facts, *told_of_promise(shown)])


def told_of_promise(shown: Shown) -> list[tuple[str, str]]:
    """What a notebook says of privacy."""
    promise = shown.guarantee
    if promise is None or shown.secret is not None:
        return [("privacy", "none: it can give away single entries")]
    amount = f"epsilon {rounded_up(promise.epsilon)}"
    amount += f", delta {rounded_up(promise.delta, 3)}" if promise.delta else ""
    status = "" if promise.releasable else ", claimed or seeded"
    return [("privacy", f"{amount}{status}"), ("protects", promise.unit)]


def _with(mine: Held, more: Held) -> Held:
    """The same with what a command knows besides."""
    said = {name: value for name, value in vars(more).items() if value}
    if "facts" in said:
        said["facts"] = (*mine.facts, *more.facts)
    return replace(mine, **said)


def read_audit(path: _PathLike) -> Any:
    """The record of an audit: its file, or the folder that it is in."""
    given = as_path("audit", path)
    file = given / "audit.json" if given.is_dir() else given
    return audited(parse_json(read_file(file, 64 * SMALL), file))


# -- models of tables -----------------------------------------------------------------------------


def part_of(stored: StoredModel, name: str = "", *, predicts: bool = True) -> Part:
    """What can be looked at of one table."""
    model = stored.model
    products = predicts and isinstance(model, CPModel) and model.order == 2
    return Part(
        name,
        levels_of(model, stored.modes, stored.errors, stored.local),
        model.mean if products else None,
        stored.bounds,
    )


def levels_of(
    model: Multilinear, modes: Sequence[Mode], errors: Errors | None, local: int | None = None
) -> tuple[Levels, ...]:
    """Of all modes that have some; of owners those who are there, and not the places nobody has."""
    found = []
    for m, mode in enumerate(modes):
        counts = None if errors is None else errors.doubts.counts[m]
        counts = counts if counts is not None and counts.size == mode.size else None
        if mode.size:
            rows, biases = model.factors[m], model.mode_biases[m]
            levels = Levels(mode.name, mode.label, rows, biases, counts)
            found.append(_without(levels, empty_places(mode)) if m == local else levels)
    return tuple(found)


def _without(levels: Levels, empty: NDArray[np.bool_]) -> Levels:
    """The same without some places, which are counted alone."""
    there, label = np.flatnonzero(~empty), levels.label
    return replace(
        levels,
        label=lambda n: label(int(there[n])),
        rows=levels.rows[there],
        biases=None if levels.biases is None else np.asarray(levels.biases)[there],
        counts=None if levels.counts is None else np.asarray(levels.counts)[there],
        empty=int(empty.sum()),
    )


def sizes_told(modes: Sequence[Mode], local: int | None = None) -> str:
    """Modes with their sizes; of owners nothing but that they keep their rows."""
    return " \u00d7 ".join(
        f"{mode.name} (rows stay with each)" if m == local else f"{mode.size:,} {mode.name}"
        for m, mode in enumerate(modes)
    )


def rank_told(model: Multilinear) -> str:
    ranks = [model.ranks[0]] if isinstance(model, CPModel) else model.ranks
    return " \u00d7 ".join(map(str, ranks))


def shared_parts(model: CoupledModel, modes: Sequence[Mode]) -> tuple[Part, ...]:
    """Factors of modes that several tables share, of an open fit."""
    levels = tuple(Levels(mode.name, mode.label, model.factor(d)) for d, mode in enumerate(modes))
    return (Part("", levels),)


def component_parts(found: Components) -> tuple[Part, ...]:
    """Vectors of components: their places are all the labels there are."""
    names = ["place"] if found.symmetric else [f"mode {m + 1}" for m in range(found.order)]
    levels = tuple(
        Levels(name, int, vectors.T) for name, vectors in zip(names, found.vectors, strict=True)
    )
    return (Part("", levels),)


def rounds_of(history: Sequence[Info]) -> tuple[Round, ...]:
    return tuple(Round(info.completed, info.train_rmse, info.objective) for info in history)


# -- networks -------------------------------------------------------------------------------------


def network_facts(stored: StoredNetwork) -> tuple[tuple[str, str], ...]:
    """What a network is shown, what it is made of, and what it says."""
    features, made = stored.features, stored.network.architecture
    layers = " \u2192 ".join(map(str, (made.inputs, *made.hidden, made.outputs)))
    facts = [("layers", layers), ("parameters", f"{made.parameters:,}")]
    if isinstance(features, Columns):
        facts.append(("columns", ", ".join(column.name for column in features.columns)))
    else:
        facts.append(("pictures", f"{features.height} \u00d7 {features.width}"))
    kind = "classes" if made.loss == "classes" else "between"
    return (*facts, (kind, ", ".join(map(str, stored.targets))))
