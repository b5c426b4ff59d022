"""The demonstration runs, and shows that a fit beats the biases."""

import io

import pytest
from rich.console import Console

import sfumato as sf
from sfumato.demo import run_demo


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "sfumato-demo"
    console = Console(file=io.StringIO(), width=200)
    ratings = sf.synthetic.ratings_like(120, 80, 12, 6000)
    results = run_demo(out, console, ratings=ratings)
    return out, results, console.file.getvalue()


def test_demo_prints_errors_examples_and_what_to_try_next(finished):
    _, _, text = finished
    for expected in ("constant", "bias predictor", "sfumato CP, rank 3", "held-out RMSE", "predicted"):
        assert expected in text
    assert "not private" in text
    assert "sfumato complete ratings.csv --modes user item" in text


def test_demo_beats_the_baselines(finished):
    constant, biases, ours = finished[1]
    assert ours.rmse < biases.rmse < constant.rmse


def test_demo_leaves_a_picture_and_a_model(finished):
    out, _, _ = finished
    assert (out / "completed.png").stat().st_size > 10_000
    model = sf.load(out / "model")
    assert 1 <= model.predict(user="u001", item="i001", day="1998-04-01") <= 5


def test_names_of_the_package_are_loaded_when_used():
    assert set(sf.__all__) == {name for names in sf._HOMES.values() for name in names}
    for name in sf.__all__:
        assert getattr(sf, name) is not None
        assert name in dir(sf)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sf.nothing  # noqa: B018
