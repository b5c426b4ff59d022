"""Errors on the command line speak its language: flags, and no argument of a Python function."""

import re
import shlex

import numpy as np
import pytest
import scipy.io
from command_line import run

from sfumato.data import relations
from sfumato.sites import coupled as coupled_layout

PYTHON = re.compile(
    r"=(True|False|None)\b|\bNone\b|\bPublic\(|\bsf\.|\bsfumato\.\w|\w\(\)|\w=['\"\[(.]|\b[a-z]+_[a-z_]+\b"
)
COLUMNS = "--modes user item --value stars"
BUDGET = "--value stars --bounds 1 5 --epsilon 1 --delta 1e-6"
FIT = f"complete ratings.csv {COLUMNS}"
PRIVATE = f"complete ratings.csv --modes user item {BUDGET} --labels-are-public"
COUPLE = "couple ratings.csv --modes ratings=user,item --value stars"
MINUS = "couple minus.csv --modes minus=user,item --value stars"

# What is asked for, and what the answer names.
WRONG = {
    "predict model stranger.csv": "--unseen bias",
    "predict model stranger.csv --own strange.csv": "--unseen bias",
    "predict model stranger.csv --own-mode user": "--own as well",
    "predict model stranger.csv --own wide.csv": "--own-value",
    f"complete twice.csv {COLUMNS}": "--duplicates mean, last or sum",
    f"{FIT} --bounds 2 5": "wider bounds",
    f"{FIT} --test 2": "--test",
    f"{FIT} --seed -1": "--seed",
    f"{FIT} --threads 0": "--threads",
    f"{FIT} --rounds 0": "--rounds",
    f"{FIT} --rank 9": "rank",
    f"{FIT} --bin day=day": "--bin",
    f"{FIT} --variable x": "--variable",
    "complete squares.npz --modes user item --bin user=day": "--bin",
    "complete squares.mat --modes user item": "--variable",
    "complete columns.npz": "--modes and --value",
    f"complete uneven.npz {COLUMNS}": "--variable",
    f"{PRIVATE} --unit entry --test 2": "--test",
    f"{PRIVATE} --unit entry --solver sgd": "--method",
    f"{PRIVATE} --unit user": "--public-units N, with N rounded up",
    f"{PRIVATE} --unit user --local none": "--public-labels user=FILE",
    f"{PRIVATE} --unit entry --public-units 9": "leave it out",
    f"{PRIVATE} --unit user --public-units 9 --public-labels user=1..9": "leave --public-units out",
    f"complete ratings.csv --modes user item {BUDGET} --unit entry": "--labels-are-public",
    f"{PRIVATE} --unit ''": "--unit value or entry",
    f"{PRIVATE} --unit planet": "planet",
    f"complete entries.csv --modes entry item {BUDGET} --unit entry": "rename the mode",
    f"{PRIVATE} --unit user --max-entries 0": "--max-entries",
    f"{PRIVATE} --unit values:user": "--max-entries",
    f"{PRIVATE} --unit entry --max-entries 3": "--max-entries",
    f"{PRIVATE} --unit entry --ledger-limit 3": "--ledger",
    f"{PRIVATE} --unit entry --ledger spent --ledger-limit 0": "--ledger-limit",
    f"{PRIVATE} --unit value --analysis paper --method gradient --force --tune-rank 1 2": "--analysis",
    f"{PRIVATE} --unit value --noise-seed 1": "--force",
    f"{PRIVATE} --unit user --public-labels user=1..9 --method alternating --local none": "--local",
    f"{PRIVATE} --unit entry --method input --noise response": "laplace",
    f"{PRIVATE} --unit user --public-labels user=1..9 --local none --method input": "--max-entries",
    f"{PRIVATE} --unit user --public-labels user=1..9 --local none --method output": "--max-entries",
    f"{PRIVATE} --unit entry --method output": "--public-entries",
    f"{FIT} --bounds 1 5 --epsilon 1 --unit entry --public-labels user=bytes.npz": "--public-labels",
    "plan --shape 9 9 --entries 30 --epsilon 1 --unit values:user": "--max-entries",
    "audit --shape 5 5 --epsilon 1 --unit value --processes 0": "--processes",
    "couple twice.csv --modes twice=user,item --value stars": "--duplicates mean, last or sum",
    MINUS: "--solver langevin --divergence 0",
    f"{MINUS} --solver langevin": "--divergence 0",
    f"{COUPLE} --solver langevin --rounds 100000000": "--rounds",
    f"{COUPLE} --solver variational --dispersion auto": "dispersion",
    f"{COUPLE} --absent zero": "--absent ratings=missing",
    f"{COUPLE} --absent zero --divergence 1.5": "--absent ratings=missing",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small files of every kind, and a model."""
    made = tmp_path_factory.mktemp("language")
    cells = [(user, item) for user in "abcdef" for item in "vwxyz"]
    rows = [f"{user},{item},{1 + number % 5}" for number, (user, item) in enumerate(cells)]
    tables = {
        "ratings": ["user,item,stars", *rows],
        "twice": ["user,item,stars", *rows, rows[0]],
        "stranger": ["user,item,stars", "nobody,v,3"],
        "strange": ["user,item,stars", "nobody,nothing,3"],
        "wide": ["user,item,stars,age", "nobody,v,3,40"],
        "minus": ["user,item,stars", *rows[:-1], "f,z,-1"],
        "entries": ["entry,item,stars", *rows],
    }
    for name, lines in tables.items():
        (made / f"{name}.csv").write_text("\n".join(lines))
    square = np.arange(9.0).reshape(3, 3)
    np.savez(made / "squares.npz", one=square)
    np.savez(made / "columns.npz", user=np.arange(4), item=np.arange(4), stars=np.ones(4))
    np.savez(made / "uneven.npz", user=np.arange(4), item=np.arange(3), stars=np.ones(4))
    scipy.io.savemat(made / "squares.mat", {"one": square, "two": square})
    (made / "bytes.npz").write_bytes(b"\xff\xfe\x00")
    fast = shlex.split(f"{COLUMNS} --rank 1 --rounds 1")
    result = run("complete", made / "ratings.csv", *fast, "--out", made / "model")
    assert result.exit_code == 0, result.stderr
    return made


@pytest.mark.parametrize("asked", WRONG)
def test_errors_name_flags_and_no_arguments(asked, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    if asked.endswith("--absent zero"):
        monkeypatch.setattr(relations, "_MOST_CELLS", 10)
    monkeypatch.setattr(coupled_layout, "_MOST_CELLS", 10)
    command, *words = shlex.split(asked)
    out = [] if command in ("predict", "plan") else ["--out", tmp_path / "out"]
    result = run(command, *words, *out)
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit)
    assert WRONG[asked] in result.stderr
    assert not PYTHON.search(result.stderr.replace(str(folder), "")), result.stderr
    assert not (tmp_path / "out" / "release").exists()
