"""A small study between owners, and its sites in this process."""

from contextlib import ExitStack
from functools import cache

import numpy as np

import sfumato as sf
from sfumato.estimators.studies import make_study
from sfumato.owners.hub import InProcess
from sfumato.owners.participant import Participant
from sfumato.privacy.entropy import Entropy

USERS, ITEMS, ENTRIES = 60, 12, 420
SITES = ("east", "north", "south", "west")


@cache
def ratings():
    """Planted ratings of numbered users and items."""
    rng = np.random.default_rng(0)
    cells = np.array(np.unravel_index(rng.permutation(USERS * ITEMS)[:ENTRIES], (USERS, ITEMS)))
    values = np.clip(3 + rng.normal(size=ITEMS)[cells[1]] + rng.normal(size=ENTRIES) / 2, 1, 5)
    modes = (sf.Mode("user", USERS), sf.Mode("item", ITEMS))
    return sf.SparseTensor(cells.astype(np.int32), values, modes, (1.0, 5.0))


def part(number, sites=4):
    """A site's entries, with the labels that its users have there."""
    whole = ratings()
    mine = whole.take(whole.coordinates[0] * sites // USERS == number)
    users = np.unique(mine.coordinates[0])
    modes = (sf.Mode("user", users.size, users.astype(np.int64)), whole.modes[1])
    cells = np.array([np.searchsorted(users, mine.coordinates[0]), mine.coordinates[1]], np.int32)
    return sf.SparseTensor(cells, mine.values, modes, (1.0, 5.0))


def trust_of(kind, sites=4, tolerate=1):
    return sf.Trust(kind, sites, tolerate if kind == "secure shares" else 0)


@cache
def study_of(kind="each site", unit="entry", *, listed=False, sites=SITES, tolerate=1):
    labels = {"item": range(ITEMS)} | ({"user": range(USERS)} if listed else {})
    public = sf.Public(labels=labels, entries=ENTRIES)
    asked = sf.Privacy(
        20.0,
        1e-5,
        unit=unit,
        method="bias",
        local="user",
        public=public,
        trust=trust_of(kind, len(sites), tolerate),
    )
    names = sites if listed else dict.fromkeys(sites, 20)
    return make_study(sf.CP(4, privacy=asked), ["user", "item"], names, bounds=(1.0, 5.0))


class Sites(ExitStack):
    """Participants of a study, which can be killed and started again."""

    def __init__(self, study, folder, *, seeded=True, entries=None):
        super().__init__()
        self.study, self.folder = study, folder
        self._seeded, self._entries = seeded, entries or {}
        self.running, self.starts = {}, 0
        for name in study.sites:
            self.start(name)

    def start(self, name):
        number = self.study.sites.index(name)
        self.starts += 1
        seed = Entropy(1000 * self.starts + number) if self._seeded else None
        entries = self._entries.get(name, part(number, len(self.study.sites)))
        trusted = self.study.facts.trust.kind == "one owner"
        made = Participant(
            self.study, name, entries, self.folder / name, entropy=seed, trust_leader=trusted
        )
        self.running[name] = self.enter_context(made)

    def kill(self, name):
        """As the system would: files are let go of, and nothing more is written."""
        self.running.pop(name).close()

    def handler(self, name):
        def handle(topic, message):
            if name not in self.running:
                raise ConnectionError
            return self.running[name](topic, message)

        return handle

    @property
    def hub(self):
        return InProcess({name: self.handler(name) for name in self.study.sites})
