"""Ledgers that are no files, or hold what no ledger has."""

import os

import pytest

import sfumato as sf
from sfumato.privacy.events import GaussianEvent

HEADER = '{"sfumato_ledger": 1, "unit": "entry", "limit": null}\n'
DEEP = "[" * 10**5 + "]" * 10**5


def pipe(path):
    os.mkfifo(path)


def huge(path):
    with open(path, "wb") as file:
        file.truncate(1 << 43)


@pytest.mark.parametrize("make", [pipe, huge, os.mkdir])
def test_what_is_no_file_is_no_ledger(tmp_path, make):
    make(tmp_path / "ledger")
    with pytest.raises(sf.BudgetError, match="is not a ledger"):
        sf.Ledger(sf.Entry(), path=tmp_path / "ledger")


@pytest.mark.parametrize("text", [DEEP, f"{DEEP}\n", '{"fit": 1e999, "event": {}, "doubtful": false}\n'])
def test_damage_is_refused_since_what_was_spent_is_unknown(tmp_path, text):
    (tmp_path / "ledger").write_text(HEADER + text)
    with pytest.raises(sf.BudgetError, match="is damaged"):
        sf.Ledger(sf.Entry(), path=tmp_path / "ledger")


@pytest.mark.parametrize("noise", [1e200, 1e-200])
def test_noise_whose_square_is_no_number_is_refused(noise):
    with pytest.raises(sf.SettingError, match="such an event cannot be"):
        GaussianEvent(noise)
