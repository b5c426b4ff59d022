"""How much noise paper E's recipes add, against values worked out by hand, and what it promises."""

from math import log, sqrt

import pytest

from sfumato.papers import ermis_recipes as recipes
from sfumato.papers.ermis_recipes import FIGURES, Noise, Setting
from sfumato.papers.runner import Done

MNIST, DIGITS = FIGURES["figure 8.2"].settings_of
(SYNTHETIC,) = FIGURES["figure 7.7"].settings_of


@pytest.mark.parametrize(
    ("setting", "epsilon", "ac", "meant", "printed"),
    [
        (MNIST, 10.0, 8.11, 2.42, 1.90),
        (MNIST, 1.0, 40.9, 7.89, 3.74),
        (MNIST, 0.5, 76.0, 13.35, 5.17),
        (DIGITS, 10.0, 11.1, 2.84, 2.11),
        (DIGITS, 1.0, 61.6, 11.3, 4.91),
        (DIGITS, 0.5, 115.8, 20.2, 7.23),
        (SYNTHETIC, 10.0, 2.60, 1.15, 0.96),
        (SYNTHETIC, 1.0, 8.58, 2.70, 1.70),
        (SYNTHETIC, 0.1, 62.1, 12.9, 4.92),
    ],
    ids=str,
)
def test_recipes_give_what_their_formulas_do(setting, epsilon, ac, meant, printed):
    assert recipes.advanced_composition(setting, epsilon) == pytest.approx(ac, rel=4e-3)
    assert recipes.concentrated(setting, epsilon) == pytest.approx(meant, rel=4e-3)
    assert recipes.concentrated_as_printed(setting, epsilon) == pytest.approx(printed, rel=4e-3)


def test_what_is_printed_for_mnist_is_the_noise_of_a_fiftieth_of_the_steps():
    """Both numbers at once: 380 steps instead of 20,000."""
    few = MNIST._replace(steps=380)
    assert recipes.advanced_composition(few, 0.5) == pytest.approx(10.88, rel=3e-3)
    assert recipes.concentrated(few, 0.5) == pytest.approx(3.23, rel=3e-3)
    assert recipes.advanced_composition(MNIST, 0.5) > 6 * 10.88


@pytest.mark.parametrize(
    ("setting", "epsilon", "meant", "printed"),
    [
        (MNIST, 10.0, 2.15, 2.94),
        (MNIST, 1.0, 0.57, 1.28),
        (DIGITS, 10.0, 3.02, 4.44),
        (DIGITS, 0.5, 0.32, 1.0),
    ],
    ids=str,
)
def test_what_the_noise_of_chapter_8_promises(setting, epsilon, meant, printed):
    """By a coarser accountant: exact ones may say a little less."""
    found = recipes.true_epsilon(setting, recipes.concentrated(setting, epsilon))
    assert 0.85 * meant < found < 1.01 * meant
    found = recipes.true_epsilon(setting, recipes.concentrated_as_printed(setting, epsilon))
    assert 0.95 * printed < found < 1.01 * printed


def test_a_step_of_all_data_composes_as_written():
    """With nu = 1 there is no sampling: the root solves the printed equation."""
    whole = Setting("all", 50, 1.0, 1e-5)
    sigma = recipes.advanced_composition(whole, 2.0)
    step = sqrt(2 * log(1.25 / (1e-5 / 100))) / sigma
    assert 2 * 50 * step**2 + sqrt(2 * 50 * log(2e5)) * step == pytest.approx(2.0)


def test_as_printed_it_promises_more_than_it_keeps_and_proven_noise_does_not():
    small = Setting("small", 300, 0.02, 1e-3)
    printed = recipes.concentrated_as_printed(small, 0.1)
    assert recipes.true_epsilon(small, printed) > 0.12
    least = recipes.proven(small, 0.1)
    assert recipes.true_epsilon(small, least) <= 0.1
    assert recipes.true_epsilon(small, 2 / 3 * least) > 0.12
    assert printed < least < recipes.concentrated(small, 0.1)


def test_a_figure_has_a_table_a_picture_and_findings(tmp_path):
    small = Setting("small", 30, 0.1, 1e-3)
    figure = Noise("figure 0", (small,), (0.1, 1.0), printed=(("small", "AC", 1.0, 2.0),), repetitions=1)
    done = [Done(job, tuple(figure.do_job(job)), 0.0) for job in figure.jobs()]
    heading, table, _ = figure.tables(done)
    assert "30 steps on 0.1 of the data" in heading
    assert table.row_count == len(recipes.RECIPES)
    findings = figure.findings(done)
    assert findings["sigma_and_printed"]["small, AC, epsilon 1"][1] == 2.0
    assert any("as printed" in key for key in findings["true_epsilon_where_more_than_promised"])
    assert not any("proven" in key for key in findings["true_epsilon_where_more_than_promised"])
    (path,) = figure.draw(tmp_path, done)
    assert path.stat().st_size > 5000
