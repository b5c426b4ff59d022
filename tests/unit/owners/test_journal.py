"""Journals: what stands after any break, and that nothing else is taken for it."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import DataError
from sfumato.owners import journal as journals
from sfumato.owners.journal import Journal
from sfumato.owners.messages import Open, Round
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import same

ENTRIES = [
    Open(1, ("a", "b")),
    Round(2, 0, (Noisy(np.arange(5.0), 1.5), Noisy(np.zeros((2, 2)), 0.5)), "ab"),
    Open(3, ("a",)),
]


def written(path):
    with Journal(path) as journal:
        for entry in ENTRIES:
            journal.append(entry)
    return path.read_bytes()


def test_entries_come_back(tmp_path):
    written(tmp_path / "j")
    with Journal(tmp_path / "j") as journal:
        assert same(journal.entries, ENTRIES)
        assert journal.of(Open) == [ENTRIES[0], ENTRIES[2]]
        journal.append(Open(4, ()))
    with Journal(tmp_path / "j") as journal:
        assert len(journal.entries) == 4
    assert (tmp_path / "j").stat().st_mode & 0o077 == 0


def test_a_journal_that_was_cut_off_anywhere_has_what_was_whole(tmp_path):
    content = written(tmp_path / "j")
    whole = 0
    for end in range(len(content) + 1):
        (tmp_path / "k").write_bytes(content[:end])
        with Journal(tmp_path / "k") as journal:
            assert same(journal.entries, ENTRIES[: len(journal.entries)])
            assert len(journal.entries) >= whole  # never fewer with more of it there
            whole = len(journal.entries)
            journal.append(ENTRIES[0])
        with Journal(tmp_path / "k") as journal:
            assert len(journal.entries) == whole + 1
    assert whole == len(ENTRIES)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_noticed(tmp_path_factory, data):
    """A changed byte is never taken for a write that was cut off, wherever it is."""
    path = tmp_path_factory.mktemp("journal") / "j"
    content = bytearray(written(path))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged|is no journal"):
        Journal(path)
    assert path.read_bytes() == content  # and left as it is


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_foreign_files_are_left_alone(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("journal") / "j"
    path.write_bytes(content)
    if journals._MAGIC[: len(content)] == content:
        Journal(path).close()
        return
    with pytest.raises(DataError, match="is no journal"):
        Journal(path)
    assert path.read_bytes() == content


def test_one_process_at_a_time(tmp_path):
    with Journal(tmp_path / "j"), pytest.raises(DataError, match="in use"):
        Journal(tmp_path / "j")


def test_a_full_disk_stops_before_anything_is_sent(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "j")
    journal.append(ENTRIES[0])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match=r"No space left on device.*nothing was sent"):
        journal.append(ENTRIES[1])
    monkeypatch.undo()
    with Journal(tmp_path / "j") as again:
        assert again.entries == ENTRIES[:1]
    with pytest.raises(DataError, match="cannot be used"):
        Journal(tmp_path / "j" / "under a file")
