"""Models, releases and ledgers that an earlier version wrote: they load, and say the same.

``tests/fixtures/make.py`` wrote them. Predictions are compared to twelve digits, not to the last bit:
processors that fuse products with sums, and LAPACK, which solves own rows, may differ in the last ones.
``make.py --exact`` compares all bits on one machine.
"""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf

FIXTURES = Path(__file__).parents[1] / "fixtures"
BEFORE = FIXTURES / "before"
make = runpy.run_path(str(FIXTURES / "make.py"))
answers, some, told, LEDGERS, FULL = (make[k] for k in ("answers", "some", "told", "LEDGERS", "FULL"))

MODELS = sorted(place.parent.name for place in BEFORE.glob("fits/*/model"))
PRIVATE = sorted(place.parent for place in BEFORE.glob("**/guarantee.json"))


def expected(folder):
    return json.loads((folder / "expected.json").read_text("utf-8"))


def assert_same_answers(model, wanted):
    found = some(answers(model))
    assert found.keys() == wanted.keys()
    for name, numbers in wanted.items():
        np.testing.assert_allclose(found[name], numbers, rtol=1e-12, atol=1e-12, err_msg=name)


def assert_same(found, wanted):
    """The same JSON, with what a new version may tell besides; accountants' numbers to nine digits."""
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            assert_same(found[name], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-9)
    else:
        assert found == wanted


def test_there_are_models_of_every_kind():
    assert {"cp-als", "tucker-als", "biases", "coupled-langevin", "power", "search"} <= set(MODELS)
    assert set(LEDGERS) == {place.name for place in (BEFORE / "ledgers").iterdir()}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_predicts_the_same(name):
    folder = BEFORE / "fits" / name
    assert_same_answers(sf.load(folder / "model"), expected(folder)["fitted"])


@pytest.mark.parametrize("name", MODELS)
def test_saved_again_it_still_does(name, tmp_path):
    folder = BEFORE / "fits" / name
    model = sf.load(folder / "model")
    more = {} if isinstance(model, sf.Coupled) else {"force": True}
    assert_same_answers(sf.load(model.save(tmp_path / "again", **more)), expected(folder)["fitted"])


@pytest.mark.parametrize(
    "name", [name for name in MODELS if "release" in expected(BEFORE / "fits" / name)]
)
def test_a_release_alone_predicts_the_same(name):
    folder = BEFORE / "fits" / name
    assert_same_answers(sf.load(folder / "model" / "release"), expected(folder)["release"])


@pytest.mark.parametrize("folder", PRIVATE, ids=lambda folder: str(folder.relative_to(BEFORE)))
def test_a_guarantee_promises_the_same(folder):
    guarantee = sf.load(folder).guarantee_
    written = json.loads((folder / "guarantee.json").read_text("utf-8"))
    found = json.loads(json.dumps(guarantee.to_json()))
    assert {name: found[name] for name in written} == written
    # What is said of who is trusted has been added since; all else is as it was.
    added = [
        "trusts         whoever holds the data and runs the fit: they see all of it, and",
        "               this promise protects nobody from them",
    ]
    lines = f"{guarantee}\n".splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if line.startswith("trusts"))
    assert [line.rstrip("\n") for line in lines[place : place + 2]] == added
    del lines[place : place + 2]
    first = next(n for n, line in enumerate(lines) if line.startswith("odds"))  # added since as well
    last = next(n for n, line in enumerate(lines) if line.startswith("status"))
    del lines[first:last]
    before = (folder / "guarantee.txt").read_text("utf-8")
    # Whose samplers they are is named since there are others.
    named = before.replace("exact samplers, keyed", "exact: OpenDP's samplers, keyed")
    assert "".join(lines) == named


def test_a_signature_holds():
    folder = BEFORE / "signed"
    wanted = expected(folder)
    assert sf.verify(folder / "model", folder / "key.pub") == wanted["signed by"]
    assert_same_answers(sf.load(folder / "model"), wanted["release"])


@pytest.mark.parametrize("name", LEDGERS)
def test_a_ledger_adds_up_to_the_same_and_takes_another_fit(name, tmp_path):
    folder = BEFORE / "ledgers" / name
    wanted = expected(folder)
    path = Path(shutil.copy(folder / "ledger.jsonl", tmp_path))
    written = path.read_bytes()
    assert_same(told(path), wanted)
    if name in FULL:
        with pytest.raises(sf.BudgetError):
            LEDGERS[name][0](path)
        assert path.read_bytes() == written
        return
    LEDGERS[name][0](path)
    assert path.read_bytes().startswith(written)
    again = told(path)["account"]
    assert_same(again["fits"][:-1], wanted["account"]["fits"])
    assert len(again["fits"]) == len(wanted["account"]["fits"]) + 1
