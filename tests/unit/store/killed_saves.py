"""Saves that are killed, each in a process of its own, before one step after another.

``python killed_saves.py NEW PLACE renames|exchange [OLD]`` saves NEW over OLD as PLACE/n/model, killed
before step n, and prints how many steps there are.
"""

import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path

from sfumato.data.io import folders
from sfumato.store import load_model, save_private

STEPS = (
    (os, "mkdir"),
    (Path, "write_bytes"),
    (os, "fsync"),
    (os, "rename"),
    (folders, "exchanged"),
    (shutil, "rmtree"),
)


def dying(function, numbers, step):
    def call(*args, **how):
        if next(numbers) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **how)

    return call


def save_and_die(stored, target, step):
    numbers = count()
    for owner, name in STEPS:
        setattr(owner, name, dying(getattr(owner, name), numbers, step))
    save_private(stored, target)


def main(new, place, how, old=None):
    os.fsync = lambda _handle: None  # takes long, and matters where the power fails
    if how == "renames":
        folders.exchanged = lambda *_: False
    stored = load_model(new)
    for step in count():
        here = Path(place, str(step))
        here.mkdir()
        if old is not None:
            shutil.copytree(old, here / "model")
        child = os.fork()
        if child == 0:
            save_and_die(stored, here / "model", step)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            print(step)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    main(*sys.argv[1:])
