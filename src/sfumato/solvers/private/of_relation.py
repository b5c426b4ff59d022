"""A private question about one of several relations that lie together."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.privacy.clipping import Clipped
from sfumato.records import record
from sfumato.sites.several import RelationSites
from sfumato.solvers.protocol import SumQuery


@record
@dataclass(frozen=True)
class OfRelation(SumQuery):
    """What is asked of a relation by itself."""

    part: int
    query: SumQuery

    def clipped(self, site: RelationSites) -> Clipped:
        return self.query.clipped(site.parts[self.part])
