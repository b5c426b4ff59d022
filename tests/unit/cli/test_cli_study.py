"""``sfumato study``: what is planned, shown and refused; the rest is for tests of owners by process."""

import re

import pytest
from command_line import run

from sfumato.owners.kits import Kit
from sfumato.owners.study import Study

WORDS = {
    "--modes": ("user", "item"),
    "--bounds": (1, 5),
    "--epsilon": (5,),
    "--delta": (1e-6,),
    "--unit": ("entry",),
    "--local": ("user",),
    "--public-labels": ("item=0..29",),
    "--site": ("north=100", "south=50", "west=60"),
}


def planned(out, *more, **changes):
    words = {**WORDS, **{f"--{name.replace('_', '-')}": given for name, given in changes.items()}}
    spread = [word for flag, given in words.items() if given is not None for word in (flag, *given)]
    return run("study", "plan", *spread, *more, "--out", out)


def flat(text):
    return re.sub(r"\s+", " ", text)


def test_a_plan_makes_a_folder_for_everybody(tmp_path):
    done = planned(tmp_path / "kits", "--trust", "secure-shares", "--address", "example.org:9000")
    assert done.exit_code == 0, done.output
    assert "3 sites: north (100 user at most), south (50 user at most)" in done.output
    assert "sfumato study serve" in done.output
    studies = set()
    for name in ("leader", "north", "south", "west"):
        kit = Kit.read(tmp_path / "kits" / name)
        assert (kit.name, kit.address) == (name, "example.org:9000")
        studies.add(Study.read(kit.folder / "study").digest)
    assert len(studies) == 1
    facts = Study.read(tmp_path / "kits" / "north" / "study").facts
    assert (facts.trust.kind, facts.trust.tolerate) == ("secure shares", 1)
    assert facts.sizes == (210, 30)


def test_show_says_what_is_asked_and_promised(tmp_path):
    planned(tmp_path / "kits")
    for place in ("north", "north/study"):
        done = run("study", "show", tmp_path / "kits" / place)
        assert done.exit_code == 0
        said = flat(done.output)
        assert "You have to trust each site with its own data and nobody else's" in said
        assert "epsilon 5" in said
        assert "proofs/shares.md" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": None}, "needs --epsilon|give --epsilon"),
        ({"unit": None}, "--epsilon needs --unit"),
        ({"site": ("north=100", "south")}, "every site its number of owners"),
        ({"site": ("north=many", "south=3")}, "every site its number of owners"),
        ({"site": ("north", "south")}, "how many|at most"),
        ({"site": ("a/b=10", "c=10")}, "cannot be called 'a/b'"),
        ({"site": ("leader=10", "c=10")}, "leader"),
        ({"public_labels": ("user=0..209",)}, "labels"),
        ({"public_units": (7,)}, "leave out --public-units"),
        ({"trust": ("secure-shares",), "site": ("a=10", "b=10")}, "need 3 sites or more"),
        ({"trust": ("secure-shares",), "delta": None}, "--delta above zero|delta"),
        ({"bin": ("day=day",)}, "list the times of day"),
        ({"address": ("nowhere",)}, "host"),
        (
            {
                "method": ("input",),
                "unit": ("value",),
                "local": None,
                "site": ("a", "b"),
                "public_labels": ("item=0..29", "user=0..99"),
                "public_entries": (500,),
            },
            "add up",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_planned_is_said_and_nothing_is_written(changes, said, tmp_path):
    done = planned(tmp_path / "kits", **changes)
    assert done.exit_code != 0
    assert re.search(said, flat(done.output)), done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "kits").exists()


def test_kits_are_not_overwritten(tmp_path):
    assert planned(tmp_path / "kits").exit_code == 0
    before = (tmp_path / "kits" / "north" / "key.pem").read_bytes()
    again = planned(tmp_path / "kits")
    assert again.exit_code == 1
    assert "is there already" in flat(again.output)
    assert (tmp_path / "kits" / "north" / "key.pem").read_bytes() == before


def test_wrong_kits_and_settings_are_refused_before_anybody_is_called(tmp_path):
    planned(tmp_path / "kits")
    (tmp_path / "data.csv").write_text("user,item,rating\na,1,3\nb,2,4\n")
    kits = tmp_path / "kits"
    for words, said in (
        (("serve", kits / "leader", tmp_path / "data.csv", "--value", "rating"), "kit of a site"),
        (("lead", kits / "north"), "kit of a leader"),
        (("lead", kits / "leader", "--noise-seed", 1), "noise and ledgers are the sites' own"),
        (("lead", kits), "no kit"),
        (("serve", kits / "north", tmp_path / "none.csv", "--value", "rating"), "none.csv"),
        (("serve", kits / "north", tmp_path / "data.csv"), "--value"),
        (("serve", kits / "north", tmp_path / "data.csv", "--value", "stars"), "stars"),
    ):
        done = run("study", *words, "--out", tmp_path / "own")
        assert done.exit_code == 1
        assert re.search(said, flat(done.output)), done.output
        assert not (tmp_path / "own").exists()
    (kits / "north" / "study").write_bytes(b"something else")
    done = run("study", "show", kits / "north")
    assert done.exit_code == 1
    assert "no study, or a damaged one" in flat(done.output)
    (kits / "north" / "study").unlink()
    assert "could not be read" in flat(run("study", "show", kits / "north").output)
