"""Engines that send everything: queries, what they are answered with, and what is released."""

import pickle

from sfumato.engines.local import Local
from sfumato.privacy.trust import ONE_OWNER
from sfumato.wire import from_wire, to_wire


def by_wire(plain):
    return from_wire(to_wire(plain))


def by_pickle(plain):
    return pickle.loads(pickle.dumps(plain))


POSTS = {"wire": by_wire, "pickle": by_pickle}


class Posted(Local):
    """A local engine between which and the solver all goes through ``post``, both ways."""

    def __init__(self, post, *sites):
        super().__init__(*sites)
        self.post = post

    def answer(self, query):
        return self.post(super().answer(self.post(query)))

    def released(self, query, draw, trust=ONE_OWNER):
        return self.post(super().released(self.post(query), PostedDraw(self.post, draw), trust))


class PostedDraw:
    """The right to draw, to which clipped statistics are sent."""

    def __init__(self, post, draw):
        self._post, self._draw = post, draw

    def release(self, clipped):
        return self._draw.release(self._post(clipped))

    def __getattr__(self, name):
        return getattr(self._draw, name)
