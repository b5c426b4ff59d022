"""Parties as processes that talk over the network, by the rules and not by them."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs sfumato[owners]")

from sfumato.errors import SettingError
from sfumato.owners.kits import Kit, make_kits

SCRIPT = Path(__file__).parents[2] / "helpers" / "cell_party.py"
SITES = ["site-1", "site-2", "site.3"]
LONG = 60  # seconds that nothing here takes, unless it hangs
SHORT = 2  # seconds in which a small answer comes, however busy the machine


def free_port():
    with socket.socket() as place:
        place.bind(("localhost", 0))
        return place.getsockname()[1]


class Party:
    """A process, and what it says."""

    def __init__(self, log, *arguments):
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
            )

    def line(self):
        return self.process.stdout.readline().strip()

    def say(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def rest(self):
        """What it says until it ends by itself, and how it ended."""
        said = self.process.stdout.read()
        return said, self.process.wait(LONG)

    def end(self):
        """The same, once it is told to."""
        with suppress(OSError):
            self.process.stdin.close()
        said = self.rest()
        self.process.stdout.close()
        return said

    def kill(self):
        self.process.kill()
        self.end()


class Fit:
    """A leader, three sites, and whoever else a test starts."""

    def __init__(self, folder):
        self.folder = folder
        self.address = f"localhost:{free_port()}"
        self.kits = make_kits(folder / "kits", self.address, SITES)
        self.parties = []
        elsewhere = f"at=localhost:{free_port()}"
        self.leader = self.start("leader", self.kits["leader"])
        self.false = self.start("leader", self.kits["site-2"], "leads", elsewhere)
        self.sites = {name: self.start("site", self.kits[name]) for name in SITES}
        foreign = make_kits(folder / "others", self.address, ["site-1"])
        assert self.leader.line() == self.false.line() == "up"
        outlaws = {
            "bare": self.start("site", self.kits["site-1"], "once", "bare"),
            "foreign": self.start("site", foreign["site-1"], "once"),
            "poser": self.start("site", self.kits["site-2"], "once", "as=site-1"),
            "misled": self.start("site", self.kits["site-1"], "once", elsewhere),
        }
        self.refused = {name: party.rest() for name, party in outlaws.items()}
        assert self.leader.say("wait", LONG) is None

    def start(self, *arguments):
        log = self.folder / f"{len(self.parties)}.log"
        self.parties.append(Party(log, *arguments))
        return self.parties[-1]


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    made = Fit(tmp_path_factory.mktemp("fit"))
    yield made
    for party in made.parties:
        party.process.kill()
        with suppress(ValueError, OSError):
            party.end()


def test_bytes_come_back_as_they_went_whatever_their_number(fit):
    sizes = {"site-1": 0, "site-2": 10**6, "site.3": 30 * 10**6}
    assert fit.leader.say("echo", sizes, LONG) == SITES
    assert fit.leader.say("echo", dict.fromkeys(SITES, 250_000), LONG) == SITES


@pytest.mark.parametrize("who", ["bare", "foreign", "poser"])
def test_whoever_is_not_in_the_root_under_this_name_is_refused(fit, who):
    said, code = fit.refused[who]
    kind, text = json.loads(said)
    assert kind == "SiteLostError"
    assert "both kits were made together" in text
    assert code == 0
    given, _ = fit.leader.say("ask", "process", {"site-1": ""}, LONG)
    assert given == {"site-1": str(fit.sites["site-1"].process.pid)}


def test_the_leader_says_who_posed_as_whom(fit):
    assert "authenticated as 'site-2'" in fit.leader.log.read_text()


def test_refusals_say_why_but_unexpected_errors_stay_at_the_site(fit):
    given, refused = fit.leader.say("ask", "refuse", {"site-1": "", "site-2": ""}, LONG)
    assert given == {}
    assert refused == dict.fromkeys(["site-1", "site-2"], "DataError: too few entries")
    given, refused = fit.leader.say("ask", "fail", {"site-1": ""}, LONG)
    assert "entry 17" not in refused["site-1"]
    assert "an error at the site" in refused["site-1"]
    assert "entry 17 is 3.5" in fit.sites["site-1"].log.read_text()


def test_a_late_answer_is_never_one_to_a_later_question(fit):
    sign = fit.folder / "sign"
    given, refused = fit.leader.say("ask", "patient", {"site-1": str(sign), "site-2": ""}, SHORT)
    assert (given, refused) == ({"site-2": ""}, {})
    sign.touch()
    given, _ = fit.leader.say("ask", "echo", dict.fromkeys(SITES, "next"), LONG)
    assert given == dict.fromkeys(SITES, "next")


def test_a_killed_site_is_missing_from_answers_and_back_when_it_is_started_again(fit):
    old, _ = fit.leader.say("ask", "process", dict.fromkeys(SITES, ""), LONG)
    fit.sites["site-2"].kill()
    given, refused = fit.leader.say("ask", "process", dict.fromkeys(SITES, ""), SHORT)
    assert given.keys() == {"site-1", "site.3"}
    assert refused == {}
    kind, text = fit.leader.say("wait", 0.1)
    assert kind == "SiteLostError"
    assert "site-2" in text
    assert "site-1" not in text
    fit.sites["site-2"] = fit.start("site", fit.kits["site-2"])
    assert fit.leader.say("wait", LONG) is None
    given, _ = fit.leader.say("ask", "process", dict.fromkeys(SITES, ""), LONG)
    assert given.keys() == old.keys()
    assert given["site-2"] != old["site-2"]
    assert given["site-1"] == old["site-1"]


def test_what_a_site_sends_against_the_rules_is_dropped_before_it_is_unpacked(fit):
    """In another's name, to another site, as objects, on FLARE's own channels."""
    fit.sites["site-2"].end()
    fit.leader.say("wait without", "site-2")
    fit.sites["site-2"] = fit.start("site", fit.kits["site-2"], "forges")
    assert fit.leader.say("wait", LONG) is None
    given, _ = fit.leader.say("ask", "echo", {"site-1": "own", "site-2": "own"}, LONG)
    assert given == {"site-1": "own", "site-2": "own"}
    sign = fit.folder / "another sign"
    given, _ = fit.leader.say("ask", "patient", {"site-1": str(sign), "site-2": ""}, SHORT)
    sign.touch()
    assert given == {"site-2": ""}  # and nothing that site-2 said for site-1
    assert fit.leader.say("unpacked") == 0
    assert "dropped a message of 'site-2'" in fit.leader.log.read_text()


def test_a_site_cannot_play_the_leader(fit):
    said, _ = fit.refused["misled"]
    assert "unsuitable certificate purpose" in json.loads(said)[1]
    assert fit.false.say("present") == []


def test_two_leaders_cannot_listen_at_one_port(fit):
    from sfumato.owners.cells import CellHub

    with pytest.raises(SettingError, match="nothing can listen at port"):
        CellHub(Kit.read(fit.kits["leader"]))


def test_kits_are_for_one_side(fit):
    from sfumato.owners.cells import CellHub, serve

    with pytest.raises(SettingError, match="needs the kit of a leader"):
        CellHub(Kit.read(fit.kits["site-1"]))
    with pytest.raises(SettingError, match="needs the kit of a site"):
        serve(Kit.read(fit.kits["leader"]), lambda topic, message: message)


def test_sites_end_when_the_leader_closes_and_nothing_was_printed(fit):
    """The last test of this file: nobody is left. Nothing tells sites to stop but the leader."""
    assert fit.leader.end() == ("", 0)
    for name in SITES:
        assert fit.sites[name].rest() == ("", 0), name
