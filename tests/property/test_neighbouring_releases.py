"""Releases of neighbouring data sets differ in the numbers that have noise, and in nothing else.

The data sets agree on whatever the guarantee lists as assumed. Then the names of the files, the sizes
and types of arrays, settings, labels, words and the guarantee to the last byte have to agree too, over
the whole command line: anything else would be a channel past the noise.
"""

import json
import struct
from itertools import product

import numpy as np
import pytest
from command_line import run

pytestmark = pytest.mark.usefixtures("few_starts")
USERS, ITEMS, DAYS = 9, 6, 4
COLUMNS = ["--modes", "user", "item", "day", "--value", "rating", "--bounds", "1", "5"]


def entries():
    """Every item and day occurs with several users, so that no neighbour loses a label of theirs."""
    rng = np.random.default_rng(4)
    cells = [(u, i, (u + i + k) % DAYS) for u, i, k in product(range(USERS), range(ITEMS), range(2))]
    kept = rng.permutation(len(cells))[:70]
    return [(f"u{cells[c][0]}", f"i{cells[c][1]}", f"d{cells[c][2]}", 1 + c % 5) for c in sorted(kept)]


def neighbours(unit):
    """Data sets that differ from ``entries`` in one unit, by name."""
    base = entries()
    if unit in ("value", "values:user"):
        changed = 1 if unit == "value" else 3
        mine = [e for e in base if e[0] == "u3"][:changed]
        return {"replaced": [(*e[:3], 6 - e[3]) if e in mine else e for e in base]}
    if unit == "entry":
        return {
            "one less": base[:20] + base[21:],
            "one more": [*base, ("u1", "i1", "d1", 5)],
            "one of somebody new": [*base, ("a newcomer", "i1", "d1", 5)],
            "at no public label": [*base, ("u1", "i1", "unheard of", 5)],
        }
    if unit == "item":
        return {"one less": [e for e in base if e[1] != "i2"]}
    others = [e for e in base if e[0] != "u4"]
    newcomer = [("(nobody 1)", f"i{k}", f"d{k % DAYS}", 1) for k in range(ITEMS)]
    return {"one less": others, "one more": [*base, *newcomer], "one for another": [*others, *newcomer]}


LISTED = {
    "user": [*(f"u{u}" for u in range(USERS)), "a newcomer", "(nobody 1)"],
    "item": ITEMS,
    "day": DAYS,
}
PUBLIC = {
    "read off, number": ["--labels-are-public", "--public-units", "30"],
    "read off, listed": ["--labels-are-public", "--public-labels", "user"],
    "listed, number": ["--public-labels", "item", "day", "--public-units", "30"],
    "listed": ["--public-labels", "user", "item", "day"],
    "read off": ["--labels-are-public"],
    "nothing": [],
}
DELTA, PURE = ["--delta", "1e-3"], []


def promises():
    """Units, methods and what is public, as far as they go together; every flag in some of them."""
    publics = ("read off, number", "read off, listed", "listed, number", "listed")
    # What is public is looked at before a method is: all of it with one, and some with the others.
    ways = [("bias", public, DELTA) for public in publics]
    ways += [("bias", publics[0], PURE), ("constant", publics[2], PURE)]
    ways += [("alternating", public, DELTA) for public in publics[::3]]
    ways += [("auto", publics[0], DELTA), ("gradient", publics[1], DELTA)]
    for method, public, delta in ways:
        yield "user", public, ["--method", method, *delta]
        yield "entry", public, ["--method", method, "--local", "user", *delta]
    for method in ("auto", "bias", "gradient", "output", "alternating"):
        yield "entry", "listed", ["--method", method, *DELTA, "--public-entries", "70"]
    yield "entry", "read off", ["--method", "auto", *DELTA, "--public-entries", "70"]
    for method, rest in (
        ("bias", ["--local", "none"]),
        ("gradient", ["--local", "none", "--max-entries", "4"]),
        ("output", ["--public-entries", "70", "--max-entries", "4"]),
        ("input", ["--max-entries", "4"]),
    ):
        yield "user", "read off, listed", ["--method", method, *DELTA, *rest]
    yield "user", "listed, number", ["--tune-rank", "2", "2", *DELTA]
    yield "entry", "read off, number", ["--tune-rank", "2", "2", "--local", "user", *DELTA]
    yield (
        "user",
        "read off, number",
        ["--method", "alternating", "--model", "tucker", "--max-entries", "3", *DELTA],
    )
    yield (
        "user",
        "read off, number",
        [*DELTA, "--public-spread", "1", "--public-entries", "70", "--test", "0.2"],
    )
    for method in ("auto", "bias", "gradient", "output"):
        yield "value", "nothing", ["--method", method, *DELTA]
    for unit, public, local in (
        ("entry", "listed", "none"),
        ("entry", "read off, number", "user"),
        ("user", "read off, number", "auto"),
        ("value", "nothing", "none"),
    ):
        yield unit, public, ["--intervals", "--local", local, *DELTA]
    yield "value", "nothing", ["--method", "input", "--public-step", "1"]
    yield "value", "nothing", ["--method", "gradient"]
    yield "values:user", "nothing", ["--method", "bias", "--max-entries", "3", *DELTA]
    yield "values:user", "nothing", ["--method", "auto", "--max-entries", "3"]


def released(folder, rows, unit, public, flags, *, refused=False):
    """The files of a release, by name; or the words of the error, where it may be refused."""
    folder.mkdir(parents=True)
    table = folder / "ratings.csv"
    table.write_text("\n".join(["user,item,day,rating", *(",".join(map(str, row)) for row in rows)]))
    words, listing = [], False
    for word in PUBLIC[public]:
        listing = word == "--public-labels" or (listing and not word.startswith("--"))
        words.append(_listed(folder, word) if listing and not word.startswith("--") else word)
    model = [] if "--tune-rank" in flags else ["--rank", "2"]
    command = ["complete", table, *COLUMNS, *model, "--epsilon", "2", "--unit", unit, *words, *flags]
    out = folder / "model"
    result = run(*command, "--quiet", "--out", out)
    if refused and result.exit_code in (1, 2):
        assert not out.exists()
        return {"refused": result.stderr.replace(str(folder), "").encode()}
    assert result.exit_code == 0, (result.stderr, result.exception)
    return {file.name: file.read_bytes() for file in (out / "release").iterdir()}


def _listed(folder, mode):
    known = LISTED[mode]
    labels = known if isinstance(known, list) else [f"{mode[0]}{k}" for k in range(known)]
    file = folder / f"{mode}.txt"
    file.write_text("\n".join(labels))
    return f"{mode}={file}"


def skeleton(files):
    """All of a release but the numbers that have noise, and what is made of them."""
    left = {name: content for name, content in files.items() if name.startswith("guarantee")}
    left["names"] = sorted(files)
    left["arrays"] = {
        name: (array["dtype"], array["shape"])
        for name, array in json.loads(_header(files["model.safetensors"])).items()
        if name != "__metadata__"
    }
    left["bytes"] = len(files["model.safetensors"])
    left["model"] = _without_numbers(json.loads(files["model.json"]))
    return left


def _header(content):
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length]


def _without_numbers(value):
    """Whole numbers and words stay; what may have noise goes, and the checksum of such."""
    if isinstance(value, dict):
        return {
            k: _without_numbers(v) for k, v in value.items() if k not in ("mean", "sha256", "checksum")
        }
    if isinstance(value, list):
        return [_without_numbers(part) for part in value]
    return "number" if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("unit", "public", "flags"),
    list(promises()),
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_neighbours_have_the_same_release_but_for_noise(unit, public, flags, tmp_path):
    first = released(tmp_path / "base", entries(), unit, public, flags)
    for name, rows in neighbours(unit).items():
        if not _agrees(name, public, unit):
            continue
        second = released(tmp_path / name, rows, unit, public, flags)
        assert skeleton(first) == skeleton(second), name
        assert first != second, name


def _agrees(name, public, unit=None):
    """Whether neighbours have the same labels where those in the data are declared public."""
    if name == "at no public label":
        return public == "listed"
    if unit == "item":  # of items the number is public, of the others what is in the data
        return public in ("read off, number", "nothing")
    return public != "read off" or name != "one of somebody new"


METHODS = {
    "value": ["auto", "bias", "constant", "input", "gradient", "output"],
    "values:user": ["auto", "bias", "constant", "input"],
    "entry": ["auto", "bias", "constant", "alternating", "gradient", "output"],
    "user": ["auto", "bias", "constant", "alternating", "gradient", "output", "input"],
    "item": ["auto", "bias", "constant", "alternating", "gradient"],
}
RELEASES_ALL = ("input", "output")
ANY = {
    "--delta": [None, "1e-3", "1e-3"],
    "--max-entries": [None, "3"],
    "--public-entries": [None, "70"],
    "--public-spread": [None, None, "1"],
    "--public-step": [None, None, "1"],
    "--model": [None, "tucker"],
    "--noise": [None] * 9 + ["laplace"],
    "--test": [None, None, "0.3"],
    "--duplicates": [None, "mean"],
}


def any_promise(seed):
    """Flags at random; most of them go together."""
    rng = np.random.default_rng(seed)
    unit = str(rng.choice(list(METHODS)))
    method = str(rng.choice(METHODS[unit]))
    local = None
    if method not in RELEASES_ALL and unit in ("entry", "user"):
        local = rng.choice([None, "user" if unit == "entry" else "none"])
    owners = (local == "user") if unit == "entry" else (unit in ("user", "item") and local is None)
    if unit in ("value", "values:user"):
        publics = ["nothing", "read off"]
    elif owners and method not in RELEASES_ALL:
        publics = ["read off, number"] if unit == "item" else list(PUBLIC)[:4]
    else:
        publics = ["read off", "listed"] if unit == "entry" else ["read off, listed", "listed"]
    public = str(rng.choice(publics))
    chosen = {flag: values[rng.integers(len(values))] for flag, values in ANY.items()}
    if unit in ("value", "entry"):
        chosen["--max-entries"] = None
    chosen |= {"--method": method, "--local": local}
    return unit, public, [word for flag, value in chosen.items() if value for word in (flag, value)]


@pytest.mark.parametrize("seed", range(25))
def test_flags_at_random_are_refused_alike_or_have_the_same_release_but_for_noise(seed, tmp_path):
    unit, public, flags = any_promise(seed)
    base = released(tmp_path / "base", entries(), unit, public, flags, refused=True)
    shared = [name for name in neighbours(unit) if _agrees(name, public, unit)]
    for name in shared[:2]:
        other = released(tmp_path / name, neighbours(unit)[name], unit, public, flags, refused=True)
        if "refused" in base:
            assert other == base
        else:
            assert skeleton(other) == skeleton(base)
