"""Entries that have passed channels, as a fit behind these walks over them."""

from __future__ import annotations

from sfumato.data.privatised import Privatised
from sfumato.sites.memory import Site


class ReceivedSite(Site):
    """A holder of what others have privatised, and perhaps of clean entries of its own."""

    def __init__(self, received: Privatised, threads: int) -> None:
        super().__init__(received.tensor, threads)
        self.received = received
