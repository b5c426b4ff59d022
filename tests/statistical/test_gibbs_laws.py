"""Gibbs sampling visits the posterior of counts, clean or behind noisy channels.

Fixed seeds. Means have to agree with quadrature within five Monte Carlo standard errors, a false-alarm
rate below one in a million for each number. Ranks of simulation-based calibration are held against even
ones by chi-squared tests at one in a thousand each; noise of the wrong ratio is rejected by them.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers.noisy import five_ary, geometric, privatised, tensor
from scipy import stats

import sfumato as sf
from sfumato.data.privatised import Privatised
from sfumato.kernels.numba.noisy_counts import expected_counts
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.noisy_counts import noisy_counts
from sfumato.solvers.coupled import gibbs
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.protocol import Run


def sample(solver, relations, rank, seed=0, site=None):
    shape = CoupledShape.of(relations, rank)
    site = site or CoupledSite(relations, 1, np.dtype(np.float64))
    state = solver.init(Run(seed), shape)
    for _ in range(solver.rounds(shape)):
        state, _ = solver.update(state, solver.ask(state).answer(site))
    return solver.finish(state).posterior


def every(shape):
    return np.ones(shape, bool)


# -- one component, one column: the posterior by quadrature ------------------------------------------

OUTPUTS = np.array([1.0, 0.0, 4.0, 3.0])


@pytest.mark.parametrize("passed", [geometric(0.8), geometric(0.8, 4), five_ary(1.0)], ids=str)
def test_agrees_with_quadrature(passed):
    """x_i ~ Poisson(a_i b), and z_i released: over b and one a at a time, on grids."""
    shape, rate = 3.0, 1.5
    a = b = (np.arange(150) + 0.5) * 0.08
    prior = stats.gamma.pdf(a, shape, scale=1 / rate)
    x = np.arange(60)
    clipped = x if passed.bounds is None else np.clip(x, *passed.bounds)
    poisson = stats.poisson.pmf(x[:, None, None], a[:, None] * b)
    given, means = [], []
    for z in OUTPUTS:
        if passed.bounds is None:
            weights = passed.channel.ratio ** np.abs(z - x)
        else:
            outputs = passed.channel.outputs(passed.released(np.array([z])))
            edges = passed.channel.edges[0]
            weights = passed.channel.matrix[np.searchsorted(edges, clipped), outputs[0]]
        likely = np.tensordot(weights, poisson, 1)  # of a (row) and b
        given.append(prior @ likely)
        means.append((prior * a) @ likely)
    whole = prior * np.prod(given, axis=0)
    wanted = [float((whole / given[i] * means[i]) @ b / whole.sum()) for i in range(4)]
    solver = sf.Gibbs(
        samples=1200, burn_in=100, thin=1, chains=2, prior_shape=shape, prior_mean=shape / rate
    )
    data = Privatised(tensor(OUTPUTS, every((4, 1)), "i", "j"), (passed,))
    kept = sample(solver, sf.Relations({"x": data}), 1)
    cells = np.stack([np.arange(4), np.zeros(4, int)])
    error = kept.standard_error(0, cells)
    assert (error < 0.1 * kept.draws(0, cells).std(axis=(0, 1))).all()  # or this would not say much
    assert (np.abs(kept.predict(0, cells) - wanted) < 5 * error).all()


# -- simulation-based calibration --------------------------------------------------------------------

DRAWS, BINS = 31, 8


def ranks(said, simulations, epsilon=0.5, thin=3):
    """Ranks of true numbers among draws, over data from the model; ``said`` is the claimed noise.

    The numbers: means of rates and of their squares, a rate, and the likelihood of the data.
    """
    found, truth = [], geometric(epsilon)
    solver = sf.Gibbs(DRAWS, 50, thin, 1, shape_prior=(8.0, 4.0), mean_prior=(6.0, 10.0))
    for seed in range(simulations):
        generator = np.random.default_rng([7, seed])
        shapes = generator.gamma(solver.shape_prior[0], 1 / solver.shape_prior[1], 2)
        # Of users, who are more, the means are learnt; those of items are one.
        means = 1 / generator.gamma(solver.mean_prior[0], 1 / solver.mean_prior[1], 2), np.ones(2)
        users, items = (
            generator.gamma(a, mean / a, (n, 2))
            for a, mean, n in zip(shapes, means, (20, 10), strict=True)
        )
        rates = (users @ items.T).ravel()
        counts = generator.poisson(rates).reshape(20, 10)
        data = privatised(counts, every((20, 10)), truth, generator)
        relations = sf.Relations({"x": Privatised(data.tensor, (said,))})
        draws = sample(solver, relations, 2, seed).draws(0, data.tensor.coordinates)[0]
        laws = noisy_counts(relations["x"].privatised)

        def likelihood(of, laws=laws):
            return np.array([expected_counts(laws, each, 1, with_logs=True)[1].sum() for each in of])

        numbers = [
            np.array(
                [
                    x.mean(-1),
                    (x**2).mean(-1),
                    x[..., 0],
                    likelihood(x.reshape(-1, 200)).reshape(x.shape[:-1]),
                ]
            )
            for x in (draws, rates)
        ]
        found.append((numbers[0] < numbers[1][:, None]).sum(axis=1))
    return np.array(found)


def unlikeliness(found):
    """P values of ranks that should be uniform, of every number."""
    bins = (np.bincount(each * BINS // (DRAWS + 1), minlength=BINS) for each in found.T)
    return np.array([stats.chisquare(each).pvalue for each in bins])


def test_posteriors_are_calibrated():
    assert (unlikeliness(ranks(geometric(0.5), 48)) > 1e-3).all()


def test_posteriors_are_calibrated_where_rows_move():
    """Noise that leaves a tenth of the information, and draws further apart for it."""
    assert (unlikeliness(ranks(geometric(0.2), 32, epsilon=0.2, thin=5)) > 1e-3).all()


def test_calibration_sees_a_wrong_ratio():
    """Noise of a third less than there is."""
    assert unlikeliness(ranks(geometric(0.75), 24)).min() < 1e-6


# -- planted counts ----------------------------------------------------------------------------------


def planted(shape, rank, mean, seed=0, known=0.8):
    generator = np.random.default_rng(seed)
    users = generator.gamma(1.0, 1.0, (shape[0], rank))
    items = generator.gamma(1.0, mean / rank, (shape[1], rank))
    rates = users @ items.T
    return rates, generator.poisson(rates), generator.random(shape) < known, generator


def rate_error(posterior, rates):
    cells = np.indices(rates.shape).reshape(2, -1)
    return np.sqrt(np.mean((posterior.predict(0, cells) - rates.ravel()) ** 2))


def test_noise_far_larger_than_counts():
    """Noise of deviation 14 on counts of mean 4.4; max(z, 0) as the count is worse than a constant."""
    rates, counts, known, generator = planted((250, 50), 3, 4.4)
    data = privatised(np.minimum(counts, 30), known, geometric(0.1), generator)
    solver = sf.Gibbs(samples=40, burn_in=100, thin=3, chains=1)
    naive = data.tensor.with_values(np.maximum(data.tensor.values, 0))
    assert rate_error(sample(solver, sf.Relations({"x": data}), 3), rates) <= 2.9
    assert rate_error(sample(solver, sf.Relations({"x": naive}), 3), rates) >= 5


def test_intervals_hold_what_they_say():
    """Held-out rates of data from the model, of eight draws of it together."""
    inside = []
    for seed in range(8):
        rates, counts, known, generator = planted((60, 30), 2, 4.0, seed)
        data = privatised(counts, known, geometric(1.0), generator)
        solver = sf.Gibbs(samples=100, burn_in=150, thin=3, chains=1)
        kept = sample(solver, sf.Relations({"x": data}), 2)
        low, high = kept.interval(0, np.stack(np.nonzero(~known)), 0.9)
        inside.append(np.mean((low < rates[~known]) & (rates[~known] < high)))
    assert 0.87 <= np.mean(inside) <= 0.93


def test_moves_make_draws_worth_more(monkeypatch):
    """Noise of deviation 14: without moves, draws of a chain resemble each other far longer."""
    _, counts, known, generator = planted((60, 30), 2, 4.0)
    relations = sf.Relations({"x": privatised(counts, known, geometric(0.1), generator)})
    solver, cells, worth = sf.Gibbs(samples=200, burn_in=100, thin=2, chains=1), np.nonzero(~known), []
    for faint in (gibbs._FAINT, 0.0):
        monkeypatch.setattr(gibbs, "_FAINT", faint)
        found = sample(solver, relations, 2).convergence(0, np.stack(cells))[1:]
        worth.append(np.median([each.effective for each in found]))
    assert worth[0] > 2 * worth[1]


def test_conditioning_on_the_bounds_instead_of_clipping_is_wrong():
    """Counts made like missing stars, 0 to 4 with noise for the range at epsilon 1."""
    generator = np.random.default_rng(0)
    users, items = generator.gamma(6.0, 1 / 6, (200, 1)), generator.gamma(2.0, 1.5 / 2, (100, 1))
    counts = np.minimum(generator.poisson(users @ items.T), 4)
    known = generator.random(counts.shape) < 0.3
    data = privatised(counts, known, geometric(1.0 / 4, 4), generator)
    relations, solver = sf.Relations({"x": data}), sf.Gibbs(60, 60, 2, 1)
    right, wrong = (CoupledSite(relations, 1, np.dtype(float)) for _ in range(2))
    laws = wrong.parts[0].noisy
    tables = np.pad(laws.tables.reshape(-1, 5), ((0, 0), (0, 1)))  # no count above the bound
    inside = replace(wrong.parts[0], noisy=laws._replace(top=laws.top + 1, tables=tables.ravel()))
    wrong.parts = (inside,)
    cells = np.stack(np.nonzero(~known))
    errors = []
    for site in (right, wrong):
        expected = sample(solver, relations, 1, site=site).predict(0, cells, bounds=(0, 4))
        errors.append(np.sqrt(np.mean((expected - counts[~known]) ** 2)))
    assert errors[0] < counts[~known].std()
    assert errors[1] - errors[0] > 0.1


# -- three constructions of a noisy count (Table D.1) ------------------------------------------------


def test_two_constructions_of_geometric_noise_are_one_law():
    """Poisson numbers with exponential rates of mean r / (1 - r) are geometric."""
    r, most = 0.6, 400
    single = np.array([(1 - r) * r**n for n in range(most)])  # of g ~ Poisson(t), integrated over t
    mean = r / (1 - r)
    t = np.linspace(0, 60 * mean, 400_001)
    density = np.exp(-t / mean) / mean
    for n in (0, 1, 5):
        np.testing.assert_allclose(
            np.trapezoid(stats.poisson.pmf(n, t) * density, t), single[n], rtol=1e-6
        )
    difference = np.convolve(single, single[::-1])
    distance = np.abs(np.arange(-most + 1, most))
    first = (1 - r) / (1 + r) * r**distance
    np.testing.assert_allclose(
        difference[most - 30 : most + 29], first[most - 30 : most + 29], rtol=1e-10
    )

    generator, n = np.random.default_rng(0), 200_000
    second = generator.poisson(generator.exponential(mean, n)) - generator.poisson(
        generator.exponential(mean, n)
    )
    observed = np.bincount(np.clip(second, -8, 8) + 8, minlength=17)
    chances = np.array([first[distance == abs(k)][0] for k in range(-8, 9)])
    chances[[0, -1]] = r**8 / (1 + r)
    assert stats.chisquare(observed, n * chances).pvalue > 1e-4
