"""Descriptions, comparisons and pictures say what is true of the data."""

import io
import tracemalloc

import numpy as np
import pytest
from rich.console import Console

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators.compare import compare, warm_up
from sfumato.report.figures import _Label, _spread_out, trade_off
from sfumato.report.progress import FitProgress
from sfumato.report.records import Completed, Curve, OpenFit, Result, describe
from sfumato.report.text import bars, bytes_in_words, completed_text, description_text, results_table
from sfumato.solvers.protocol import Info


def tensor(values, cells, shape=(4, 3), bounds=None):
    modes = tuple(Mode(name, size) for name, size in zip(("user", "item"), shape, strict=True))
    return SparseTensor(np.array(cells).T, np.array(values, np.float64), modes, bounds)


FLAWED = tensor(
    [1.0, 2.0, 9.0, np.nan, 4.0], [(0, 0), (0, 0), (0, 1), (1, 2), (2, 2)], bounds=(1.0, 5.0)
)


def as_text(renderable, width=200):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


# -- describe -----------------------------------------------------------------------------------


def test_description_counts_what_is_wrong_with_the_entries():
    found = describe(FLAWED)
    assert (found.entries, found.shape, found.density) == (5, (4, 3), 5 / 12)
    assert (found.duplicates, found.not_finite, found.outside_bounds) == (1, 1, 1)
    assert (found.lowest, found.highest, found.mean) == (1.0, 9.0, 4.0)
    assert found.deviation == pytest.approx(np.std([1, 2, 9, 4]))


def test_histogram_of_entries_per_level_has_bins_of_powers_of_two():
    cells = [(0, j) for j in range(1)] + [(1, j) for j in range(3)] + [(2, j) for j in range(4)]
    found = describe(tensor(np.ones(8), cells, shape=(4, 4))).modes[0]
    # no entry: level 3; one: level 0; two or three: level 1; four to seven: level 2
    assert found.histogram == (1, 1, 1, 1)
    assert (found.fewest, found.median, found.most) == (0, 2.0, 4)


def test_memory_is_that_of_entries_and_parameters():
    found = describe(FLAWED, rank=2)
    assert found.bytes_entries == 5 * (4 * 2 + 8)
    rest = 5 * 8 + (2 + 1) * 7 * 8
    assert found.bytes_als == found.bytes_entries + 5 * (4 + 8) + rest
    assert found.bytes_sgd == 2 * found.bytes_entries + rest
    with pytest.raises(SettingError, match="rank"):
        describe(FLAWED, rank=0)


def test_bars_show_height_and_leave_out_only_the_empty():
    assert bars([8, 0, 4, 1]) == "█ ▄▁"
    assert bars([1000, 1]) == "█▁"


def test_description_in_words():
    text = as_text(description_text(describe(FLAWED)))
    assert "user 4 x item 3: 5 entries" in text
    assert "1 entries repeat a cell" in text
    assert "1 entries lie outside the bounds" in text
    assert "1 entries have no value" in text
    clean = tensor([1.0, 2.0], [(0, 0), (1, 1)])
    assert "no duplicates" in as_text(description_text(describe(clean)))


def test_description_without_any_finite_value():
    text = as_text(description_text(describe(tensor([np.nan], [(0, 0)]))))
    assert "none is a finite number" in text


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(999, "999 B"), (1_600_000, "1.6 MB"), (3 * 10**15, "3e+03 TB")]
)
def test_bytes_in_words(n_bytes, text):
    assert bytes_in_words(n_bytes) == text


# -- compare ------------------------------------------------------------------------------------


class Always:
    """Predicts one number."""

    def __init__(self, value):
        self.value = value
        self.fitted_to = []

    def fit(self, X):
        self.fitted_to.append(X)

    def predict(self, X):
        return np.full(X.n_entries, self.value)


def test_comparison_begins_with_the_training_mean():
    train = tensor([1.0, 3.0], [(0, 0), (1, 1)])
    test = tensor([2.0, 4.0], [(2, 0), (3, 1)])
    names, four = [], Always(4.0)
    results = compare({"four": four}, train, test, names.append)
    assert [result.name for result in results] == ["constant", "four"]
    assert results[0].rmse == pytest.approx(np.sqrt(2))  # the mean is 2
    assert results[1].rmse == pytest.approx(np.sqrt(2))
    assert names == ["four"]
    assert four.fitted_to == [train]


def test_table_of_results():
    text = as_text(results_table([Result("constant", 2.0, 0.0), Result("ours", 1.5, 3.0)]))
    assert "25.0%" in text
    assert "1.5000" in text
    assert "3.00" in text


def test_where_all_values_are_the_same_another_metric_is_all_that_is_shown():
    results = [Result("constant", 0.0, 0.0, 0.1), Result("ours", 0.99, 3.0, 0.4)]
    text = as_text(results_table(results, "NDCG@10"))
    assert "0.4000" in text
    assert "RMSE" not in text
    assert "0.99" not in text


@pytest.mark.parametrize("width", [60, 80, 10_000])
def test_a_table_of_results_is_never_cut(width):
    name = "private CP, rank 3, gradient perturbation, pure passes"
    screen = Console(file=io.StringIO(), width=width)
    screen.print(results_table([Result("constant", 2.0, 0.0), Result(name, 1.5, 0.25)]))
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(line[: len(lines[0]) - 45].strip() for line in lines[3:]).strip() == name
    for shown in ("held-out RMSE", "less than constant", "1.5000", "25.0%", "0.25"):
        assert shown in screen.file.getvalue()


def test_a_warm_up_fits_a_few_entries():
    predictor = Always(1.0)
    warm_up([predictor], FLAWED)
    assert predictor.fitted_to[0].n_entries == FLAWED.n_entries


@pytest.mark.parametrize("order", [2, 3])
def test_memory_is_about_what_a_fit_takes(order):
    planted = sf.synthetic.cp((400, 300, 30)[:order], 2, entries=60_000).tensor
    expected = describe(planted, rank=4)
    for solver, total in (
        (sf.ALS(sweeps=1), expected.bytes_als),
        (sf.SGD(passes=1), expected.bytes_sgd),
    ):
        estimator = sf.CP(4, solver=solver, threads=1).fit(planted)  # compiled, before it is measured
        tracemalloc.start()
        estimator.fit(planted)
        peak = tracemalloc.get_traced_memory()[1] + expected.bytes_entries
        tracemalloc.stop()
        assert 0.75 < peak / total < 1.35


def test_a_warm_up_may_fail():
    class Failing(Always):
        def fit(self, X):
            raise SettingError("diverged")

    warm_up([Failing(1.0)], FLAWED)


def test_progress_bar_shows_the_training_error_on_a_terminal_only():
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
        with FitProgress(console) as progress:
            progress.begin("[odd] name")
            progress(1, 2, Info(completed=0))
            progress(2, 2, Info(completed=1, train_rmse=0.5))
        text = console.file.getvalue()
        assert ("training RMSE 0.5000" in text) == terminal
        assert ("[odd] name" in text) == terminal


# -- a completion -------------------------------------------------------------------------------


def completed(**more):
    return Completed(
        **{
            "file": "ratings.csv",
            "modes": {"user": 1000, "item": 3},
            "entries": 2000,
            "fitted_entries": 2000,
            "density": 2 / 3,
            "bounds": (1.0, 5.0),
            "model": "cp",
            "ranks": (2, 2),
            "seed": 0,
            "test": None,
            "held_out": (),
            "fit_seconds": 1.25,
            "private": False,
            "written": ("model",),
            "how": OpenFit("als", 0.75),
            **more,
        }
    )


def test_a_completion_in_words_and_in_json():
    found = completed()
    assert as_text(completed_text(found)).splitlines() == [
        "user 1,000 x item 3: 2,000 entries, 0.667 of all cells",
        "fitted to all 2,000 entries in 1.25 s, training RMSE 0.7500",
    ]
    written = found.to_json()
    assert (written["entries"], written["solver"], written["training_rmse"]) == (2000, "als", 0.75)
    assert not {"how", "remarks"} & set(written)


def test_remarks_on_held_out_errors_are_said_and_in_no_json():
    errors = (Result("constant", 2.0, 0.0), Result("ours", 1.5, 3.0))
    found = completed(test=0.2, held_out=errors, remarks=("for your eyes",))
    text = as_text(completed_text(found))
    assert text.index("25.0%") < text.index("for your eyes\n\n") < text.index("fitted to all")
    assert [each["rmse"] for each in found.to_json()["held_out"]] == [2.0, 1.5]
    assert "for your eyes" not in str(found.to_json())


# -- pictures -----------------------------------------------------------------------------------

EPSILONS = (0.1, 1.0, 10.0)
CURVES = [
    Curve("private constant", (1.0, 1.0, 1.0)),
    Curve("ours", (1.0, 0.8, 0.7), ((0.9, 1.1), (0.7, 0.9), (0.6, 0.8))),
]


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a", b"\x89PNG")]
)
@pytest.mark.parametrize("levels", [[], [Result("constant", 1.0, 0.0), Result("not private", 0.6, 1.0)]])
def test_a_trade_off_is_drawn_as_its_suffix_says(tmp_path, name, begins, levels):
    path = trade_off(tmp_path / name, EPSILONS, CURVES, levels, title="A title", note="a note")
    assert path.read_bytes().startswith(begins)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_trade_off_of_equal_errors_is_drawn(tmp_path):
    path = trade_off(tmp_path / "a.svg", (1.0,), [Curve("ours", (0.5,))], [Result("level", 0.5, 0.0)])
    assert b"<svg" in path.read_bytes()


def test_pictures_leave_matplotlibs_global_state_alone(tmp_path):
    import matplotlib._pylab_helpers as helpers

    before = list(helpers.Gcf.figs)
    trade_off(tmp_path / "a.png", EPSILONS, CURVES, [])
    assert list(helpers.Gcf.figs) == before


def test_labels_are_moved_up_only_where_they_would_overlap():
    labels = [_Label(height, str(height), "black") for height in (3.0, 1.0, 1.25, 1.0)]
    placed = _spread_out(labels, gap=0.5)
    assert [place for place, _ in placed] == [1.0, 1.5, 2.0, 3.0]
    assert [label.height for _, label in placed] == [1.0, 1.0, 1.25, 3.0]
