"""Lists against their twins; neighbours never move what is asked of seen cells beyond its bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato import metrics
from sfumato.kernels.numba.lists import NOBODY, Held, best_levels, list_gains
from sfumato.kernels.reference.lists import best_levels_reference, list_gains_reference
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit
from sfumato.sites.memory import Site
from sfumato.solvers.private.popularity import Popularity, PrivatePopularity
from sfumato.solvers.private.seen_together import PrivateSeen, SeenState
from sfumato.solvers.protocol import Run

examples = settings(max_examples=40, deadline=None, database=None, derandomize=True)
OWNERS, ITEMS = 5, 7
holdings = st.lists(st.sets(st.integers(0, ITEMS - 1)), min_size=OWNERS, max_size=OWNERS)


def held(sets):
    starts = np.cumsum([0, *map(len, sets)])
    return Held(starts, np.array([level for each in sets for level in sorted(each)], np.int64))


@examples
@given(seed=st.integers(0, 1000), seen=holdings, wanted=holdings, k=st.integers(1, ITEMS + 2))
def test_lists_and_their_gains_are_those_of_the_twins(seed, seen, wanted, k):
    rng = np.random.default_rng(seed)
    owners, levels = rng.integers(-1, 2, (OWNERS, 2)), rng.integers(-1, 2, (ITEMS, 2))  # many ties
    biases = rng.integers(0, 2, ITEMS)
    expected = best_levels_reference(owners, levels, biases, seen, k)
    for threads in (1, 2):
        lists = best_levels(owners, levels, biases, held(seen), k, threads)
        assert [[j for j in row if j != NOBODY] for row in lists.tolist()] == expected
    gains = list_gains(lists, held(wanted))
    np.testing.assert_allclose(gains, list_gains_reference(expected, wanted, k), atol=1e-12)


@examples
@given(seed=st.integers(0, 1000), k=st.integers(1, 9))
def test_recall_and_ndcg_of_groups_are_those_of_lists(seed, k):
    rng = np.random.default_rng(seed)
    groups, links = rng.integers(0, 4, 30), rng.integers(0, 2, 30)
    links[0] = 1
    scores = rng.integers(0, 3, 30)  # of equal ones the first counts
    found, wanted = [], []
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        found.append(sorted(mine, key=lambda i: (-scores[i], i))[:k])
        wanted.append({i for i in mine if links[i]})
    gains = list_gains_reference(found, wanted, k)[[bool(each) for each in wanted]]
    expected = gains.mean(axis=0)
    assert metrics.recall_at(k, links, scores, groups) == pytest.approx(expected[0], abs=1e-12)
    assert metrics.ndcg_at(k, links, scores, groups) == pytest.approx(expected[1], abs=1e-12)


# -- neighbours ------------------------------------------------------------------------------------


def site(sets):
    cells = np.array([(u, j) for u, mine in enumerate(sets) for j in sorted(mine)], np.int32)
    modes = (sf.Mode("user", OWNERS), sf.Mode("item", ITEMS))
    tensor = sf.SparseTensor(
        cells.reshape(-1, 2).T, np.ones(len(cells)), modes, (0.0, 1.0), _checked=True
    )
    return Site(tensor, 1)


def asked(unit, pure):
    """Both questions of a fit, the second with weights that differ between levels."""
    shape = Shape((sf.Mode("user", OWNERS), sf.Mode("item", ITEMS)), (3, 3))
    facts = Facts(shape, unit, (0.0, 1.0), 20, local=0)
    counts = PrivatePopularity(1.0, pure)
    yield counts.ask(counts.init(Run(), facts))
    if not pure:
        seen = PrivateSeen(levels=ITEMS - 1)
        popular = Popularity(np.linspace(0.1, 0.9, ITEMS), np.linspace(1.0, 30.0, ITEMS))
        yield seen.ask(SeenState(facts, 0, popular, np.arange(1, ITEMS)))


@examples
@given(
    sets=holdings, owner=st.integers(0, OWNERS - 1), level=st.integers(0, ITEMS - 1), pure=st.booleans()
)
def test_one_owner_or_one_entry_moves_an_answer_by_no_more_than_its_bound(sets, owner, level, pure):
    for unit in (Unit("user"), Entry()):
        fewer = [set(each) for each in sets]
        fewer[owner] = set() if isinstance(unit, Unit) else fewer[owner] - {level}
        for query in asked(unit, pure):
            one, other = (query.clipped(site(each)) for each in (sets, fewer))
            moved = one.numbers - other.numbers
            assert np.linalg.norm(moved.astype(float)) <= one.l2 * (1 + 1e-12)
            assert np.abs(moved).sum() <= one.l1 * (1 + 1e-12)


def test_the_bounds_are_not_wide_of_the_mark():
    """One owner of two levels moves both answers by nearly all that it may."""
    for query in asked(Unit("user"), pure=False):
        one, other = (query.clipped(site([each, *[set()] * 4])) for each in ({5, 6}, set()))
        moved = np.linalg.norm((one.numbers - other.numbers).astype(float))
        assert moved > 0.5 * one.l2
