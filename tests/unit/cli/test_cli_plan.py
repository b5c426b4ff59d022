"""``sfumato plan``: what it says of a fit, from numbers alone."""

import json

import command_line
import pytest

import sfumato as sf
from sfumato.fit.choose import choose

RATINGS = ["--shape", "6040", "3883", "--entries", "800000", "--local", "user"]


def run(*args):
    return command_line.run("plan", *args)


def planned(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_it_says_what_is_chosen_expected_assumed_and_that_it_costs_nothing():
    result = run(*RATINGS, "--epsilon", 10, "--delta", 1e-6, "--bounds", 1, 5)
    assert result.exit_code == 0, result.stderr
    for part in ("factors of rank", "rounds", "of the budget", "Expected", "Assumed", "no data"):
        assert part in result.stdout
    assert result.stdout.count("10 *") == 1
    assert rows_of_budgets(result.stdout)


def rows_of_budgets(shown):
    """The table, which fits into a terminal whatever the size of the values."""
    lines = shown.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("epsilon "))
    table = lines[begin : lines.index("", begin)]
    assert max(map(len, table)) <= 80
    return table[2:]


@pytest.mark.parametrize("bounds", [(0, 1e-12), (0, 1e-3), (1, 5), (0, 1e6)])
def test_the_table_fits_into_a_terminal(bounds):
    shown = run(*RATINGS, "--epsilon", 10, "--delta", 1e-6, "--unit", "user", "--bounds", *bounds).stdout
    biases = [line.replace(" *", "").split()[2] for line in rows_of_budgets(shown)]
    assert len(set(biases)) > 2  # with digits that tell budgets apart


@pytest.mark.parametrize("name", ["plan", "plan.csv", "folder"])
def test_what_is_drawn_is_a_picture(tmp_path, name):
    (tmp_path / "folder").mkdir()
    result = run(*RATINGS, "--epsilon", 1, "--out", tmp_path / name)
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert ".png" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_plan_is_that_of_a_fit_with_the_same_numbers():
    shown = planned(*RATINGS, "--epsilon", 3, "--delta", 1e-6, "--bounds", 1, 5)
    public = sf.Public(entries=800_000, labels={"user": range(6040), ...: True})
    privacy = sf.Privacy(3, 1e-6, unit="entry", local="user", public=public)
    modes = [sf.Mode("user", 6040), sf.Mode("item", 3883)]
    plan = sf.CP(privacy=privacy).plan(modes, bounds=(1, 5))
    assert shown["plan"] == plan.explain()
    assert shown["chosen"]["rank"] == choose(plan.task.facts, plan.budget).rank
    assert shown["chosen"]["method"] == "moments"


def test_every_budget_of_the_row_is_there_and_the_asked_one_among_them():
    shown = planned(*RATINGS, "--epsilon", 2, "--delta", 1e-6)
    assert [row["epsilon"] for row in shown["budgets"]] == [0.1, 0.3, 1, 2, 3, 10]
    for row in shown["budgets"]:
        low, high = row["band"]
        assert low < row["over_constant"] < high <= 1.05
        assert row["method"] == "moments"
        expected = row["biases"] if row["rank"] == 2 else row["factors"]  # two columns cost nothing
        assert expected / row["constant"] == pytest.approx(row["over_constant"])
    assert {row["rank"] for row in shown["budgets"]} == {2, 38}


def test_errors_are_in_the_units_of_a_spread_that_is_given():
    plain = planned(*RATINGS, "--epsilon", 1)["chosen"]
    spread = planned(*RATINGS, "--epsilon", 1, "--spread", 20)["chosen"]
    assert spread["biases"] == pytest.approx(20 * plain["biases"])
    assert spread["over_constant"] == pytest.approx(plain["over_constant"])


def test_a_delta_a_unit_and_a_rank_change_the_plan():
    assert planned(*RATINGS, "--epsilon", 10)["chosen"]["method"] == "bias"
    assert planned(*RATINGS, "--epsilon", 10, "--delta", 1e-6, "--rank", 2)["chosen"]["rank"] == 2
    assert "cap" in run(*RATINGS, "--epsilon", 10, "--delta", 1e-6, "--unit", "user").stdout
    assert "--delta" in run(*RATINGS, "--epsilon", 10).stdout
    dull = planned(*RATINGS, "--epsilon", 10, "--delta", 1e-6, "--signal", 0.5, 0.01)
    assert (dull["chosen"]["method"], dull["chosen"]["rank"]) == ("moments", 2)


def test_where_no_formula_is_known_it_says_so():
    flags = ["--epsilon", 5, "--unit", "value", "--local", "none"]
    result = run(*RATINGS[:-2], *flags)
    assert result.exit_code == 0, result.stderr
    assert "not known" in result.stdout
    assert planned(*RATINGS[:-2], *flags)["chosen"]["over_constant"] is None


def test_the_picture_is_drawn(tmp_path):
    result = run(*RATINGS, "--epsilon", 1, "--delta", 1e-6, "--out", tmp_path / "plan.png")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_modes_can_be_named_and_hold_times():
    shape = ["--shape", 900, 700, 60, "--entries", 50_000, "--epsilon", 3, "--delta", 1e-6]
    shown = planned(*shape, "--modes", "who", "what", "when", "--bin", "when=day", "--unit", "who")
    assert shown["modes"] == {"who": 900, "what": 700, "when": 60}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shape", 5, "--entries", 3], "--shape"),
        (["--shape", 50, 1, "--entries", 3], "--shape"),
        (["--entries", 10**9], "number of cells"),
        (["--entries", 0], "--entries"),
        (["--epsilon", 0], "epsilon"),
        (["--delta", 2], "delta"),
        (["--unit", "planet"], "planet"),
        (["--unit", "values:user"], "cap"),
        (["--local", "planet"], "planet"),
        (["--modes", "a"], "--modes"),
        (["--bin", "day=day"], "--bin"),
        (["--bounds", 5, 1], "bounds"),
        (["--spread", 0], "spread"),
        (["--signal", 0.7, 0.5], "variance"),
        (["--rank", 99], "rank 99"),
    ],
)
def test_what_is_wrong_is_said(flags, message):
    usual = {"--shape": [50, 60], "--entries": [300], "--epsilon": [1], flags[0]: flags[1:]}
    result = run(*(word for flag, words in usual.items() for word in (flag, *words)))
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


SITES = [*RATINGS, "--epsilon", 10, "--delta", 1e-6, "--bounds", 1, 5, "--sites", 20]


def test_with_several_sites_it_says_whether_sharing_pays():
    small, large = (planned(*SITES, "--site-entries", n)["sharing"] for n in (8_000, 600_000))
    assert (small["pays"], large["pays"]) == (True, False)
    assert small["together"] == large["together"] < small["alone"]
    assert large["site_levels"] == 4530
    said = " ".join(run(*SITES, "--site-entries", 8_000).stdout.split())
    assert "Sharing is expected to pay for a site with 8,000 entries of 60 levels of user" in said
    assert "sharing" not in planned(*RATINGS, "--epsilon", 10, "--delta", 1e-6)


def test_who_is_trusted_changes_what_is_expected():
    pooled, shares, each = (
        planned(*SITES, "--trust", kind) for kind in ("one-owner", "secure-shares", "each-site")
    )
    errors = [found["chosen"]["factors"] for found in (pooled, shares, each)]
    assert errors == sorted(errors)
    assert shares["trust"] == {
        "kind": "secure shares",
        "sites": 20,
        "tolerate": 1,
        "sites_of_unit": 1,
    }
    plain = planned(*RATINGS, "--epsilon", 10, "--delta", 1e-6, "--bounds", 1, 5)
    assert plain["chosen"] == pooled["chosen"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trust", "each-site"], "say how many with --sites"),
        (["--site-entries", 10], "say --sites as well"),
        (["--sites", 2, "--site-entries", 0], "--site-entries must lie between 1 and --entries"),
        (["--sites", 2, "--trust", "secure-shares"], "secure shares need 3 sites or more"),
        (["--sites", 4, "--trust", "secure-shares", "--tolerate", 4], "--tolerate must be from 1 to 3"),
        (["--sites", 4, "--tolerate", 1], "--tolerate is for secure shares"),
    ],
)
def test_what_is_wrong_with_sites_is_said(flags, message):
    result = run(*RATINGS, "--epsilon", 10, "--delta", 1e-6, *flags)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())


def test_epsilon_follows_from_a_target():
    numbers = [*RATINGS, "--unit", "user", "--delta", 1e-6, "--bounds", 1, 5, "--spread", 1.12]
    found = planned(*numbers, "--target-rmse", 0.93)
    assert found["target"]["epsilon"] == found["chosen"]["epsilon"]
    assert found["target"]["rmse"] <= 0.93
    shown = run(*numbers, "--target-odds", 3)
    assert shown.exit_code == 0, shown.stderr
    assert "Target: odds that grow 3-fold at most: epsilon 0.9" in " ".join(shown.stdout.split())
    assert "Odds: a belief that the data hold all entries of one user can rise" in shown.stdout
    assert planned(*numbers, "--epsilon", 1)["target"] is None
    assert planned(*numbers, "--epsilon", 1)["odds"]["factor"] > 2.7


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--target-rmse"),
        (["--epsilon", 1, "--target-odds", 3], "--target-odds"),
        (["--target-share", 2], "--target-share"),
        (["--target-rmse", -1], "--target-rmse"),
        (["--target-rmse", 0.01], "not expected to be reached"),
    ],
)
def test_what_is_no_target_is_said(flags, said):
    result = run(*RATINGS, "--delta", 1e-6, *flags)
    assert result.exit_code != 0
    assert said in " ".join(result.stderr.split())
