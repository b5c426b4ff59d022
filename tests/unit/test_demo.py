"""The demonstration runs, and shows what privacy costs."""

import io
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import sfumato as sf
from sfumato.demo import run_demo


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "sfumato-demo"
    console = Console(file=io.StringIO(), width=200)
    ratings = sf.synthetic.ratings_like(120, 80, 12, 6000)
    curves = run_demo(out, console, ratings=ratings, epsilons=(1.0, 3.0))
    return out, curves, console.file.getvalue()


def test_demo_prints_errors_examples_the_guarantee_and_what_to_try_next(finished):
    text = finished[2]
    for expected in ("private constant", "private biases", "predicted", "epsilon 3"):
        assert expected in text
    for level in ("constant", "biases", "CP"):
        assert f"{level}, not private" in text
    assert "joint differential privacy" in text
    assert "proven" in text
    assert "sfumato complete ratings.csv --modes user item" in text


def test_demo_draws_the_private_baselines_below_the_constant(finished):
    constant, biases, ours = (np.array(curve.rmse) for curve in finished[1])
    assert (biases < constant).all()
    assert (ours < constant).all()


def test_demo_leaves_a_picture_and_a_model(finished):
    out, _, _ = finished
    assert (out / "trade-off.png").stat().st_size > 10_000
    model = sf.load(out / "model")
    assert model.guarantee_.releasable
    assert 1 <= model.predict(user="u001", item="i001", day="1998-04-01") <= 5


def test_names_of_the_package_are_those_of_its_stub_and_loaded_when_used():
    stub = Path(sf.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    listed = re.findall(r"^from ([\w.]+) import (\w+) as (\w+)$", stub, re.MULTILINE)
    assert len(listed) == stub.count("import ")  # all are of the form that type checkers take for public
    assert sf.__all__ == [name for _, name, public in listed if name == public]
    assert len(set(sf.__all__)) == len(listed)
    for home, name, _ in listed:
        assert name in dir(sf)
        assert getattr(sf, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sf.nothing  # noqa: B018
