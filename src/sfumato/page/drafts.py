"""What was typed on the page, kept while it runs: so that what a form leads to can be come back to."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

_MOST = 100  # drafts that are kept: the oldest goes first
_SECRET = ("csrf", "nonce")


@dataclass(frozen=True)
class Draft:
    """The fields of a form as they were sent, with what was wrong beyond what the form itself tells."""

    fields: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Drafts:
    """Drafts by addresses of their own.

    None is ever changed: each form that is sent makes another, so that tabs do not mix.
    """

    _kept: dict[str, Draft] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, draft: Draft) -> str:
        fields = {name: said for name, said in draft.fields.items() if name not in _SECRET}
        with self._lock:
            name = secrets.token_urlsafe(12)
            self._kept[name] = Draft(fields, draft.errors)
            while len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]
            return name

    def find(self, name: str) -> Draft | None:
        with self._lock:
            return self._kept.get(name)
