"""Whole fits between processes over mutual TLS, by the command line, with parties killed on the way."""

import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from command_line import run
from studying import ENTRIES, ITEMS, SITES, USERS, ratings

import sfumato as sf
from sfumato.owners.study import Study
from sfumato.privacy.account import read_ledger

pytest.importorskip("nvflare")
NAMES = SITES[:3]
_COMMAND = "import sys; from sfumato.cli import main; sys.argv[0] = 'sfumato'; main()"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Parties:
    """Commands that run at the same time, each in a process of its own."""

    def __init__(self, folder):
        self.folder, self.running, self.ended = folder, {}, []

    def start(self, name, *words):
        log = (self.folder / f"{name}.log").open("ab")
        command = [sys.executable, "-c", _COMMAND, "study", *map(str, words)]
        self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def kill(self, name):
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait(self, name, seconds=150):
        assert self.running[name].wait(seconds) == 0, (self.folder / f"{name}.log").read_text()
        del self.running[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.running):
            self.kill(name)


@pytest.fixture
def study(tmp_path, request):
    """Everybody's folder and data; users are listed, as for a fit in one process."""
    trust, *more = request.param
    (tmp_path / "items.txt").write_text("\n".join(map(str, range(ITEMS))))
    whole = ratings()
    for number, name in enumerate(NAMES):
        mine = whole.coordinates[0] * len(NAMES) // USERS == number
        rows = zip(*whole.coordinates[:, mine].tolist(), whole.values[mine].tolist(), strict=True)
        lines = ["user,item,rating", *(f"{u},{i},{v!r}" for u, i, v in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    made = run(
        *(
            "study",
            "plan",
            "--modes",
            "user",
            "item",
            "--bounds",
            1,
            5,
            "--epsilon",
            20,
            "--delta",
            1e-5,
        ),
        *("--unit", "entry", "--local", "user", "--method", "bias", "--public-labels"),
        *(f"user=0..{USERS - 1}", f"item={tmp_path / 'items.txt'}", "--public-entries", ENTRIES),
        *("--site", *NAMES, "--trust", trust, *more, "--address", f"localhost:{free_port()}"),
        *("--out", tmp_path / "study"),
    )
    assert made.exit_code == 0, made.output
    return tmp_path


def serving(parties, folder, name, *more):
    parties.start(
        name,
        *("serve", folder / "study" / name, folder / f"{name}.csv", "--value", "rating"),
        *("--out", folder / name, "--threads", 1, *more),
    )


def grown(path, size, parties, name):
    """Wait until a file has so many bytes, or its process is done."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if path.exists() and path.stat().st_size >= size:
            return
        if parties.running[name].poll() is not None:
            return
        time.sleep(0.002)
    raise AssertionError((parties.folder / f"{name}.log").read_text())


@pytest.mark.parametrize("study", [("one-owner",)], indirect=True, ids=["one owner"])
def test_the_release_is_that_of_one_process_though_the_leader_was_killed(study):
    """Noise once and seeded: the same bytes, and every round charged once."""
    words = ("lead", study / "study" / "leader", "--out", study / "leader", "--noise-seed", 5)
    words += ("--ledger", study / "ledger.jsonl")
    with Parties(study) as parties:
        for name in NAMES:
            serving(parties, study, name, "--trust-leader")
        parties.start("leader", *words)
        grown(study / "leader" / "journal", 5000, parties, "leader")
        if parties.running["leader"].poll() is None:
            parties.kill("leader")
            parties.start("leader", *words)
        for name in ("leader", *NAMES):
            parties.wait(name)
    labels = {"user": range(USERS), "item": range(ITEMS)}
    public = sf.Public(labels=labels, entries=ENTRIES)
    privacy = sf.Privacy(20.0, 1e-5, unit="entry", local="user", method="bias", public=public, seed=5)
    alone = sf.CP(unseen="bias", privacy=privacy).fit(ratings())
    released = (study / "leader" / "release" / "model.safetensors").read_bytes()
    assert released == alone.release_files(force=True)["model.safetensors"]
    for number, name in enumerate(NAMES):
        mine = np.arange(USERS) * len(NAMES) // USERS == number
        own = sf.load(study / name / "model")
        assert np.array_equal(own.model_.mode_biases[0][mine], alone.model_.mode_biases[0][mine])
    account = read_ledger(study / "ledger.jsonl")
    assert account.fits == 1
    plan = Study.read(study / "study" / "leader" / "study").plan
    assert account.events == [charge.mechanism.event for charge in plan.charges]


@pytest.mark.parametrize(
    "study", [("secure-shares", "--tolerate", 1)], indirect=True, ids=["secure shares"]
)
def test_secure_sums_between_processes_with_a_site_killed_in_the_middle(study):
    """The sum fails, is begun again from the journals, and each round is charged once."""
    with Parties(study) as parties:
        for name in NAMES:
            serving(parties, study, name)
        parties.start("leader", "lead", study / "study" / "leader", "--out", study / "leader")
        grown(study / NAMES[0] / "journal", 8000, parties, NAMES[0])
        if parties.running[NAMES[0]].poll() is None:
            parties.kill(NAMES[0])
            serving(parties, study, NAMES[0])
        parties.wait("leader")
        for name in NAMES:
            parties.wait(name)
    plan = Study.read(study / "study" / "leader" / "study").plan
    for name in NAMES:
        account = read_ledger(study / name / "ledger.jsonl")
        assert account.fits == 1
        assert account.events == [charge.mechanism.event for charge in plan.charges]
    found = sf.load(study / "leader" / "release")
    assert found.guarantee_.releasable
    own = sf.load(study / NAMES[0] / "model")
    assert np.array_equal(own.model_.mode_biases[1], found.model_.mode_biases[1])
