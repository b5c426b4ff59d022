"""What does not hold in paper W, as far as it shows without an audit; ``docs/papers/wei.md``."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.papers import wei
from sfumato.papers.wei_data import invented
from sfumato.papers.wei_points import (
    CLAIMED,
    Ranges,
    gradient_norms,
    ranges_seen,
    spread_by_scaling,
)
from sfumato.solvers.gradient.sequential import SequentialSGD


@pytest.fixture(scope="module")
def problem():
    return invented("cp", "minmax", 0.5, 0)


def test_the_paper_s_methods_take_the_data_s_own_bounds_as_printed(problem):
    values = problem.printed.values
    assert wei.printed_facts(problem).bounds == (values.min(), values.max())
    doubled = problem.printed.with_values(2 * values)
    assert wei.printed_facts(problem, doubled).bounds == (2 * values.min(), 2 * values.max())


def test_bounds_from_the_data_give_the_extreme_value_away(problem):
    """The noise on all *other* values tells whether one value is the least or lies beyond all others."""
    seen = ranges_seen(problem)
    assert seen.mistaken == 0
    assert seen.epsilon > 30 * CLAIMED
    # 100 draws without an error leave either error rate below 0.037, at 97.5% each.
    assert seen.epsilon == pytest.approx(np.log(0.963783 / 0.036217), abs=1e-3)
    assert Ranges(np.array([1.0, 3.0]), np.array([4.0, 4.0]), 2.0).epsilon == 0  # one was mistaken


def test_bi_scaling_spreads_one_value_over_others():
    """One rating moves the scaled values of its day by more, together, than the noise is sized for."""
    ratings = sf.synthetic.ratings_like(n_users=60, n_items=40, n_days=10, entries=2000, seed=1)
    spread = spread_by_scaling(ratings)
    assert np.median(spread.moved) > 50
    assert spread.together.max() > spread.range


def test_the_authors_clipping_lets_ten_pass_under_noise_for_a_tenth(problem, monkeypatch):
    seen = []
    real = SequentialSGD.perturbed_pass

    def watched(self, query, site, perturbation, stream):
        seen.append(perturbation)
        return real(self, query, site, perturbation, stream)

    monkeypatch.setattr(SequentialSGD, "perturbed_pass", watched)
    for name, clip in (("printed gradient", 0.1), ("authors' gradient", 10.0)):
        seen.clear()
        wei.SERIES[name](problem, (2.0,))
        assert [p.clip for p in seen] == pytest.approx([clip] * 100)
        # 2 m / epsilon in both; calibration leaves a ten-thousandth over
        assert [p.scale for p in seen] == pytest.approx([2 * 0.1 / 2.0] * 100, rel=1e-3)


def test_gradients_are_far_longer_than_the_clipping_constant(problem):
    norms = gradient_norms(problem)
    assert norms.longest > 1 / wei.CLIP
    assert 0.2 < norms.longer_than_clip < 0.8
    assert wei.CLIP < norms.longest_at_end < 1 / wei.CLIP
