"""Private fits from the command line: what is written where, what is refused, and when."""

import json
import re
import warnings
from typing import get_args

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from command_line import run

import sfumato as sf
from sfumato.cli import beside, options
from sfumato.estimators.completion import Biases
from sfumato.fit import request
from sfumato.report.records import Result
from sfumato.solvers.registry import names

COLUMNS = ["--modes", "user", "item", "day", "--value", "rating", "--bounds", "1", "5", "--rank", "2"]
BIAS = ["--epsilon", "3", "--delta", "1e-6", "--method", "bias", "--labels-are-public", "--quiet"]
USER = ["--unit", "user", "--public-units", "25"]


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    tensor = sf.synthetic.ratings_like(20, 15, 6, 300)
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    columns = {
        mode.name: mode.labels[levels]
        for mode, levels in zip(tensor.modes, tensor.coordinates, strict=True)
    }
    pacsv.write_csv(pa.table({**columns, "rating": tensor.values}), path)
    return path


@pytest.fixture(scope="module")
def private(ratings, tmp_path_factory):
    """A fit with the unit user, whose rows stay with them."""
    out = tmp_path_factory.mktemp("models") / "private"
    result = run("complete", ratings, *COLUMNS, *BIAS, *USER, "--out", out)
    assert result.exit_code == 0, result.stderr
    return out, result


def error_of(*args):
    result = run("complete", *args)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.stderr
    return result.stderr


def test_choices_are_those_of_the_library():
    assert tuple(name.value for name in options.MethodName) == ("auto", *names("private"))
    assert tuple(name.value for name in options.Analysis) == get_args(request.Analysis)


def test_a_private_fit_writes_a_release_and_the_owners_rows(private):
    out, result = private
    assert sorted(path.name for path in out.iterdir()) == ["owner", "release"]
    assert sorted(path.name for path in (out / "release").iterdir()) == [
        "LABEL.md",
        "deployment.yaml",
        "guarantee.json",
        "manifest.json",
        "model.json",
        "model.safetensors",
    ]
    assert "joint differential privacy" in result.stdout
    assert "not private" not in result.stdout + result.stderr


def test_a_release_names_no_owner_and_no_count(private):
    out, _ = private
    text = (out / "release" / "model.json").read_text()
    described = json.loads(text)
    assert '"u001"' not in text
    assert '"u001"' in (out / "owner" / "model.json").read_text()
    assert [mode["size"] for mode in described["modes"]] == [0, 15, 6]
    assert described["notes"] == {}


def test_own_ratings_and_a_release_give_what_the_owners_folder_gives(private, ratings):
    out, _ = private
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    by_owner, by_own = (
        run("predict", *words)
        for words in ((out, ratings), (out / "release", ratings, "--own", ratings))
    )
    assert by_own.exit_code == 0, by_own.stderr
    predicted = [
        [float(line.rpartition(",")[2]) for line in result.stdout.splitlines()[1:]]
        for result in (by_owner, by_own)
    ]
    assert predicted[0] == pytest.approx(predicted[1])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    others = run("predict", out, ratings, "--own", ratings, "--own-mode", "item")
    assert (others.exit_code, "rows of user stay" in others.stderr) == (1, True)


def test_explain_prints_the_guarantee(private):
    out, _ = private
    for folder in (out, out / "release"):
        text = run("explain", folder).stdout
        assert "all entries of one user" in text
        assert "proven" in text
    guarantee = json.loads(run("explain", out, "--json").stdout)
    assert 0 < guarantee["epsilon"] <= 3
    assert guarantee["owner"] == "user"


def test_predict_uses_the_owners_rows_where_it_finds_them(private, ratings):
    out, _ = private
    both = run("predict", out, ratings)
    alone = run("predict", out / "release", ratings)
    assert both.exit_code == alone.exit_code == 0
    assert both.stdout != alone.stdout


def test_without_epsilon_it_says_that_it_is_not_private(ratings, tmp_path):
    result = run("complete", ratings, *COLUMNS, "--rounds", "1", "--out", tmp_path / "m")
    assert result.exit_code == 0
    assert "not private" in result.stderr
    assert "not private" in run("explain", tmp_path / "m").stdout
    assert run("explain", tmp_path / "m", "--json").stdout.strip() == "null"


def test_errors_at_held_out_entries_are_shown_and_not_written(ratings, tmp_path):
    out = tmp_path / "m"
    result = run(
        "complete", ratings, *COLUMNS, *BIAS, "--unit", "entry", "--test", "0.3", "--json", "--out", out
    )
    shown = json.loads(result.stdout)
    assert shown["held_out"][0]["name"] == "constant, not private"
    assert shown["private"]
    assert "holder" in shown["not_covered"]
    rmse = f"{shown['held_out'][-1]['rmse']:.4f}"
    for file in (out / "release").iterdir():
        assert rmse not in file.read_text(errors="ignore")
    assert not (out / "owner").exists()


NAMES = [
    "constant, not private",
    "biases, not private",
    "private constant",
    "private biases",
    "private CP, rank 2, gradient perturbation",
]


def held_out(ratings, out, *flags):
    asked = [*COLUMNS, *BIAS, "--unit", "entry", "--test", "0.3", *flags]
    return run("complete", ratings, *asked, "--out", out)


def test_a_private_fit_is_shown_beside_private_baselines(ratings, tmp_path):
    out, ledger = tmp_path / "m", tmp_path / "ledger.jsonl"
    shown = held_out(ratings, out, "--method", "gradient", "--ledger", ledger).stdout
    lines = {name: line for line in shown.splitlines() for name in NAMES if line.startswith(name)}
    assert list(lines) == NAMES
    assert "no guarantee covers them" in shown
    assert "tuning that nobody has paid for" in shown
    assert re.search(
        r"fitted to [\d,]+ entries in [\d.]+ s: private CP, rank 2, gradient perturbation", shown
    )
    charges = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    assert {charge["fit"] for charge in charges} == {1}
    assert not any("residuals" in charge["label"] for charge in charges)  # what biases ask for
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for name, line in lines.items():
        assert re.search(r"\d\.\d{4}", line)[0].encode() not in written
        assert name.encode() not in written


@pytest.mark.parametrize(
    ("asked", "named"),
    [([], "exact: sfumato's samplers over AES"), (["--sampler", "opendp"], "exact: OpenDP's samplers")],
    ids=["by default", "opendp"],
)
def test_the_sampler_can_be_chosen_and_is_named(ratings, tmp_path, asked, named):
    out = tmp_path / "m"
    done = run("complete", ratings, *COLUMNS, *BIAS, "--unit", "entry", *asked, "--out", out)
    assert done.exit_code == 0, done.output
    for shown in (done.stdout, run("explain", out / "release").stdout):
        assert named in " ".join(shown.split())


def test_json_has_no_private_baselines(ratings, tmp_path):
    shown = json.loads(held_out(ratings, tmp_path / "m", "--method", "gradient", "--json").stdout)
    assert [each["name"] for each in shown["held_out"]] == [*NAMES[:2], NAMES[-1]]
    assert shown["method"] == "gradient perturbation"


def test_a_fit_is_not_compared_with_its_like(ratings, tmp_path):
    shown = held_out(ratings, tmp_path / "m").stdout
    assert shown.count("private biases") == 3  # in the table, in what was fitted, in the guarantee
    assert "private constant" in shown


def test_baselines_change_nothing_and_come_after_the_model_is_on_disk(ratings, tmp_path, monkeypatch):
    seeded = ["--noise-seed", "1", "--force"]
    assert held_out(ratings, tmp_path / "json", *seeded, "--json").exit_code == 0
    assert held_out(ratings, tmp_path / "text", *seeded).exit_code == 0

    def fails(*_args, **_settings):
        raise sf.SettingError("a baseline that cannot be fitted")

    monkeypatch.setattr(Biases, "fit", fails)
    broken = held_out(ratings, tmp_path / "broken", *seeded)
    assert (broken.exit_code, "held-out RMSE" in broken.stdout) == (0, True)
    assert "private constant" not in broken.stdout
    released = [
        (tmp_path / name / "release" / "model.safetensors").read_bytes()
        for name in ("json", "text", "broken")
    ]
    assert len(set(released)) == 1


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), KeyboardInterrupt()])
def test_a_comparison_that_is_cut_short_leaves_the_model(ratings, tmp_path, monkeypatch, error):
    out = tmp_path / "m"

    def cut_short(*_args, **_settings):
        assert (out / "release" / "model.safetensors").is_file()
        raise error

    monkeypatch.setattr(beside, "compare", cut_short)
    result = held_out(ratings, out)
    assert result.exit_code == 0, result.stderr
    assert "held-out RMSE" not in result.stdout
    assert "private biases" in result.stdout


def test_values_that_are_no_numbers_do_not_spoil_the_comparison(ratings, tmp_path):
    lines = ratings.read_text().splitlines()
    lines[1::7] = [f"{line.rpartition(',')[0]},NaN" for line in lines[1::7]]
    (tmp_path / "gaps.csv").write_text("\n".join(lines))
    result = held_out(tmp_path / "gaps.csv", tmp_path / "m")
    assert result.exit_code == 0, result.stderr
    assert "nan" not in result.stdout


def comparison(rmse):
    private = [Result("private constant", 1.0, 0.0), Result("private biases", 0.9, 0.0)]
    return beside.Comparison(
        [Result("constant, not private", 1.0, 0.0)], private, Result("fit", rmse, 0.0)
    )


def test_a_fit_that_does_not_pay_is_called_so():
    assert len(comparison(0.8).lines) == 1
    assert "does not beat private biases here" in comparison(0.95).lines[0]
    assert "does not beat private constant and private biases here" in comparison(1.0).lines[0]
    assert comparison(1.0).lines[-1] == comparison(0.8).lines[0]


def test_the_chosen_method_and_rank_are_said(ratings, tmp_path):
    flags = [
        *COLUMNS[:-2],
        "--epsilon",
        "9",
        "--delta",
        "1e-6",
        "--labels-are-public",
        "--unit",
        "entry",
    ]
    shown = run("complete", ratings, *flags, "--quiet", "--out", tmp_path / "m").stdout
    said = next(line for line in shown.splitlines() if line.startswith("fitted to"))
    assert said.endswith(", chosen from public numbers")
    guarantee = json.loads((tmp_path / "m" / "release" / "guarantee.json").read_text())
    assert guarantee["method"] in said


def test_nothing_is_cut_where_there_is_no_screen(ratings, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    shown = held_out(ratings, tmp_path / "m", "--method", "gradient").stdout
    assert "…" not in shown
    assert any(line.startswith(NAMES[-1]) for line in shown.splitlines())


def test_a_promise_that_is_worth_little_is_warned_of_in_one_line(ratings, tmp_path):
    ask = ["complete", ratings, *COLUMNS, *BIAS[2:-1], "--epsilon", "30", "--unit", "entry"]
    loud = run(*ask, "--out", tmp_path / "m")
    assert [line[:19] for line in loud.stderr.splitlines() if "epsilon" in line] == [
        "warning: epsilon 30"
    ]
    quiet = run(*ask, "--quiet", "--json", "--out", tmp_path / "m")
    assert "warning" not in quiet.stderr
    assert len(json.loads(quiet.stdout)["guarantee"]["warnings"]) == 1
    assert "warning        epsilon 30" in run("explain", tmp_path / "m").stdout


def test_other_warnings_are_shown_as_ever(ratings, tmp_path, monkeypatch):
    def describe(*_args):
        warnings.warn("something else", UserWarning, stacklevel=1)
        raise sf.SettingError("enough")

    monkeypatch.setattr("sfumato.report.records.describe", describe)
    with pytest.warns(UserWarning, match="something else"):
        assert run("describe", ratings, *COLUMNS[:-2]).exit_code == 1


def test_a_private_fit_takes_no_solver_and_no_rounds(ratings, tmp_path):
    for flag in (["--solver", "sgd"], ["--rounds", "3"]):
        result = run(
            "complete", ratings, *COLUMNS, *BIAS, "--unit", "entry", *flag, "--out", tmp_path / "m"
        )
        assert (result.exit_code, "--method" in result.stderr) == (2, True)


def test_a_ledger_is_continued_and_ends_at_its_limit(ratings, tmp_path):
    ledger, out = tmp_path / "ledger.jsonl", tmp_path / "m"
    ask = [ratings, *COLUMNS, *BIAS, "--unit", "entry", "--ledger", ledger, "--out", out]
    assert run("complete", *ask, "--ledger-limit", "4").exit_code == 0
    assert "ledger.jsonl: 1 fit" in run("explain", out).stdout
    charged = ledger.read_text()
    assert "Nothing was drawn" in error_of(*ask)
    assert ledger.read_text() == charged


def test_a_ledger_is_shown(ratings, tmp_path):
    ledger, out = tmp_path / "ledger.jsonl", tmp_path / "m"
    ask = [ratings, *COLUMNS, *BIAS, "--unit", "entry", "--ledger", ledger, "--out", out]
    for _ in range(2):
        assert run("complete", *ask, "--ledger-limit", "20").exit_code == 0
    told = json.loads(run("ledger", ledger, "--json").stdout)
    assert [fit["fit"] for fit in told["fits"]] == [1, 2]
    assert told["limit"][0] == 20
    assert told["limit_proven"]
    assert 0 < told["left"] < 1
    assert 3 < told["total_epsilon"] <= told["odometer_epsilon"]
    text = run("ledger", ledger).stdout
    assert "ledger.jsonl: 2 fits, protects entry" in text
    assert "whatever the fits are planned by" in text
    assert "at delta 0.001" in run("ledger", ledger, "--delta", "0.001").stdout
    explained = " ".join(run("explain", out).stdout.split())
    assert "they stay within epsilon 20" in explained


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (None, [], "there is no ledger"),
        ("hello", [], "not a ledger; it was left as it is"),
        ('{"sfumato_ledger": 2}\n', [], "damaged"),
        ('{"sfumato_ledger": 1, "unit": "entry", "limit": null}\n', ["--delta", "2"], "delta"),
    ],
)
def test_a_ledger_that_cannot_be_shown(tmp_path, content, flags, message):
    path = tmp_path / "ledger"
    if content is not None:
        path.write_text(content)
    result = run("ledger", path, *flags)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stdout == ""


def test_ranks_are_tuned_within_the_budget(ratings, tmp_path):
    out, columns = tmp_path / "m", COLUMNS[:-2]
    ask = [ratings, *columns, *BIAS, *USER, "--tune-rank", "1", "2", "3", "--out", out]
    result = run("complete", *ask, "--test", "0.2", "--json")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert shown["ranks"][0] in (1, 2, 3)
    assert "best rank of 1 2 3" in shown["held_out"][-1]["name"]
    assert shown["guarantee"]["epsilon"] <= 3
    text = " ".join(run("explain", out / "release").stdout.split())
    assert "best of 3 candidates" in text
    assert "proofs/tuning.md" in text


def test_tuning_needs_a_budget_and_several_ranks(ratings, tmp_path):
    out = ["--out", tmp_path / "m"]
    assert "two candidates" in error_of(ratings, *COLUMNS[:-2], *BIAS, *USER, "--tune-rank", "2", *out)
    for wrong in ([*COLUMNS[:-2]], [*COLUMNS, *BIAS, *USER]):
        result = run("complete", ratings, *wrong, "--tune-rank", "2", "3", *out)
        assert result.exit_code == 2
        assert "--tune-rank" in result.stderr
    assert not (tmp_path / "m").exists()


def test_public_labels_come_from_files(ratings, tmp_path):
    for mode in ("item", "day"):
        labels = sf.read(ratings, modes=["user", "item", "day"], value="rating")
        known = labels.modes[labels.mode_index(mode)].labels.tolist()
        (tmp_path / mode).write_text("\n".join([*known, "never seen"]))
    flags = [flag for flag in BIAS if flag != "--labels-are-public"]
    files = [f"item={tmp_path / 'item'}", f"day={tmp_path / 'day'}"]
    out = tmp_path / "m"
    result = run(
        "complete", ratings, *COLUMNS, *flags, *USER, "--public-labels", *files, "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    modes = json.loads((out / "release" / "model.json").read_text())["modes"]
    assert [mode["size"] for mode in modes] == [0, 16, 7]


def test_the_default_rank_does_not_depend_on_what_occurs(ratings, tmp_path):
    """Six days occur, seven are public: one entry more must not show in the release."""
    days = sf.read(ratings, modes=["user", "item", "day"], value="rating").modes[2].labels.tolist()
    (tmp_path / "day").write_text("\n".join([*days, "1998-05-01"]))
    (tmp_path / "item").write_text("\n".join(f"i{number:03}" for number in range(40)))
    flags = [flag for flag in BIAS if flag != "--labels-are-public"]
    files = [f"item={tmp_path / 'item'}", f"day={tmp_path / 'day'}"]
    out = tmp_path / "m"
    result = run(
        "complete", ratings, *COLUMNS[:-2], *flags, *USER, "--public-labels", *files, "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert json.loads((out / "release" / "model.json").read_text())["ranks"] == [7, 7, 7]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epsilon", "0", "--unit", "entry"], "epsilon"),
        (["--epsilon", "-1", "--unit", "entry"], "epsilon"),
        (["--epsilon", "1", "--delta", "1", "--unit", "entry"], "delta"),
        (["--epsilon", "1"], "--unit"),
        (["--delta", "1e-6"], "--epsilon"),
        (["--method", "bias"], "--epsilon"),
        (["--epsilon", "1", "--unit", "planet"], "planet"),
        (["--epsilon", "1", "--unit", "user", "--max-entries", "0"], "--max-entries"),
        (["--epsilon", "1", "--unit", "values:user"], "cap"),
        (["--epsilon", "1", "--unit", "entry"], "--labels-are-public"),
        (["--epsilon", "1", "--unit", "value", "--analysis", "paper"], "--force"),
        (["--epsilon", "1", "--unit", "value", "--noise-seed", "1"], "--force"),
        (["--sampler", "opendp"], "--sampler needs --epsilon"),
        (
            ["--epsilon", "1", "--unit", "value", "--noise-seed", "1", "--force", "--sampler", "opendp"],
            "cannot be seeded",
        ),
        (["--epsilon", "1", "--unit", "entry", "--labels-are-public", "--method", "gradient"], "delta"),
        (["--epsilon", "1", "--unit", "entry", "--public-entries", "0"], "entries"),
        (["--epsilon", "1", "--unit", "entry", "--ledger-limit", "1"], "ledger"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_drawn_or_written(ratings, tmp_path, flags, message):
    assert message in error_of(ratings, *COLUMNS, *flags, "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_bounds_are_needed(ratings, tmp_path):
    columns = COLUMNS[: COLUMNS.index("--bounds")]
    flags = ["--epsilon", "1", "--unit", "entry", "--labels-are-public"]
    assert "--bounds" in error_of(ratings, *columns, *flags, "--out", tmp_path / "m")


def test_values_beyond_the_bounds_are_clipped_in_silence(ratings, tmp_path):
    columns = [word if word != "5" else "4" for word in COLUMNS]
    result = run(
        "complete", ratings, *columns, *BIAS, "--unit", "entry", "--out", tmp_path / "m", "--json"
    )
    assert result.exit_code == 0, result.stderr
    assert "beyond" not in result.stderr


def test_what_is_claimed_is_released_only_by_force_and_marked(ratings, tmp_path):
    out = tmp_path / "m"
    flags = ["--epsilon", "5", "--unit", "value", "--method", "input", "--analysis", "paper", "--force"]
    result = run("complete", ratings, *COLUMNS, *flags, "--quiet", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "CLAIMED" in (out / "release" / "LABEL.md").read_text()


def test_files_of_labels_that_cannot_be_read(ratings, tmp_path):
    budget = ["--epsilon", "3", "--delta", "1e-6", "--unit", "user", "--out", tmp_path / "m"]
    (tmp_path / "items.txt").write_bytes(b"\xff\xfei\x000\x00")
    flags = [*COLUMNS, *budget, "--public-labels", f"item={tmp_path / 'items.txt'}"]
    assert "it is not text in UTF-8" in error_of(ratings, *flags)
    assert "there is no file" in error_of(ratings, *flags[:-1], f"item={tmp_path / 'none.txt'}")


def test_ctrl_c_says_that_what_was_charged_stands(ratings, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sfumato.fit.completion.draw_all", interrupted)
    ledger = tmp_path / "spent"
    ask = [ratings, *COLUMNS, *BIAS, "--unit", "entry", "--ledger", ledger, "--out", tmp_path / "m"]
    result = run("complete", *ask)
    assert result.exit_code == 130
    assert f"what was charged to {ledger} until now stands" in result.stderr


def test_the_holder_sees_how_many_entries_were_used(ratings, tmp_path):
    """None at all, where the listed labels are not the file's: no release may show it."""
    flags = [*BIAS, "--unit", "user", "--public-labels", "user=1..99", "--out", tmp_path / "m"]
    result = run("complete", ratings, *COLUMNS, *flags)
    assert "fitted to 0 entries" in result.stdout
    counted = run("complete", ratings, *COLUMNS, *flags[:-1], tmp_path / "n", "--json")
    assert json.loads(counted.stdout)["fitted_entries"] == 0
