"""Paper W's three algorithms as printed: without noise they are the plain descent, and say 'claimed'."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.completion import carry_out
from sfumato.fit.plan import Plan
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import Entry, Value
from sfumato.sites.memory import Site
from sfumato.solvers.as_printed.wei import PaperGradient, PaperInput, PaperOutput
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.protocol import Run

TENSOR = sf.synthetic.cp((7, 6, 5), 2, entries=90, seed=1).tensor
DESCENT = SequentialSGD(passes=4, init_scale=0.5)
KINDS = {"cp": (2, 2, 2), "tucker": (2, 3, 2)}  # ranks
ALL = [PaperInput, PaperGradient, PaperOutput]


def facts_of(tensor=TENSOR, kind="cp", **rest):
    shape = Shape.of(tensor.modes, KINDS[kind], kind, fit_mean=False, fit_biases=False)
    return Facts(shape, **{"unit": Value(), "bounds": (-20.0, 20.0), **rest})


def fitted(solver, facts, tensor=TENSOR, seed=3):
    charges, local = solver.charges(facts), Local(Site(tensor, 1))
    state = solver.init(Run(seed), facts)
    with Ledger(Value()).reserve(charges, Entropy(seed)) as reservation:
        for t in range(solver.rounds(facts)):
            query = solver.ask(state)
            released = None
            if t < len(charges):
                released = reservation.ask(partial(local.released, query))
            state, info = solver.update(state, released)
    made = solver.finish(state)
    assert made.own_prior is None
    return made.model, info


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ALL)
def test_without_noise_it_is_the_plain_descent(method, kind):
    facts = facts_of(kind=kind)
    wide = {} if method is PaperInput else {"clip": 1e6}  # clips nothing
    solver = method(DESCENT, noise=1e-20, **wide)
    model, info = fitted(solver, facts)
    plain = carry_out(Plan(facts.shape, DESCENT, Run(3)), Local(Site(TENSOR, 1))).model
    np.testing.assert_allclose(model.rows, plain.rows, atol=1e-8)
    np.testing.assert_allclose(model.free_core, plain.free_core, atol=1e-8)
    assert info.completed == DESCENT.passes


@pytest.mark.parametrize("method", ALL)
def test_the_whole_run_is_charged_once_at_the_claimed_epsilon(method):
    for passes in (1, 100):
        solver = method(replace(DESCENT, passes=passes), noise=0.4)
        charges = solver.charges(facts_of())
        assert epsilon_of(Composed(tuple(c.mechanism.event for c in charges)), 0.0) == 2.5
        assert all("claimed" in charge.label for charge in charges)
    assert solver.epsilon == 2.5
    assert not solver.proven
    assert solver.proof == "see proofs/paper-w.md"


@pytest.mark.parametrize("method", ALL)
def test_there_is_neither_mean_nor_bias_even_if_asked_for(method):
    facts = facts_of()
    facts = replace(facts, shape=replace(facts.shape, fit_mean=True, fit_biases=True))
    model, _ = fitted(method(DESCENT, noise=0.01), facts)
    assert model.mean == 0
    assert not model.biases.any()
    assert "neither mean nor biases are fitted" in method(DESCENT).assumes(facts)


def values_fitted_to(solver, facts):
    """The values that the descent is about to see, after the one draw."""
    state = solver.init(Run(), facts)
    with Ledger(Value()).reserve(solver.charges(facts), Entropy(1)) as reservation:
        released = reservation.ask(partial(Local(Site(TENSOR, 1)).released, solver.ask(state)))
    return solver.update(state, released)[0].values.tensor


def test_input_keeps_values_within_the_bounds_where_and_as_they_are():
    # The data's own bounds, as printed, change no value.
    own = float(TENSOR.values.min()), float(TENSOR.values.max())
    for bounds in (own, (-0.5, 1.0)):
        noisy = values_fitted_to(PaperInput(DESCENT, noise=1e-20), facts_of(bounds=bounds))
        np.testing.assert_array_equal(noisy.coordinates, TENSOR.coordinates)
        np.testing.assert_allclose(noisy.values, np.clip(TENSOR.values, *bounds), atol=1e-8)


def test_input_clamps_to_a_fixed_range():
    solver = PaperInput(DESCENT, noise=10.0, clamp=(-0.5, 1.0))
    noisy = values_fitted_to(solver, facts_of()).values
    assert (noisy.min(), noisy.max()) == (-0.5, 1.0)


@pytest.mark.parametrize("mode", ["mode0", "mode1", None])
def test_output_noises_the_chosen_mode_and_no_other(mode):
    noisy, _ = fitted(PaperOutput(DESCENT, mode=mode, noise=1.0), facts_of())
    exact, _ = fitted(PaperOutput(DESCENT, mode=mode, noise=1e-20), facts_of())
    chosen = 2 if mode is None else int(mode[-1])
    for m, (one, other) in enumerate(zip(noisy.factors, exact.factors, strict=True)):
        assert (np.abs(one - other).max() > 1e-6) == (m == chosen)


def test_a_released_factor_shows_the_value():
    """Why Algorithm 2 is only claimed: with one entry and one pass, a_i is injective in its value."""
    one = TENSOR.take(np.array([0]))
    first_rows = []
    for value in (-1.0, -0.999, 1.0):
        tensor = one.with_values([value])
        solver = PaperGradient(replace(DESCENT, passes=1), noise=1e6)  # a claimed epsilon of 1e-6
        # Whatever the noise: other seeds of it leave the row as it was.
        rows = [_run(solver, tensor, noise_seed) for noise_seed in (1, 2)]
        np.testing.assert_array_equal(rows[0], rows[1])
        first_rows.append(rows[0])
    assert len({row.tobytes() for row in first_rows}) == 3


def _run(solver, tensor, noise_seed):
    facts = facts_of(tensor)
    state, local = solver.init(Run(), facts), Local(Site(tensor, 1))
    with Ledger(Value()).reserve(solver.charges(facts), Entropy(noise_seed)) as reservation:
        released = reservation.ask(partial(local.released, solver.ask(state)))
    return solver.finish(solver.update(state, released)[0]).model.factors[0]


@pytest.mark.parametrize("method", ALL)
def test_what_the_paper_does_not_cover_is_refused(method):
    with pytest.raises(SettingError, match="one observed value"):
        method(DESCENT).check(facts_of(unit=Entry()))
    with pytest.raises(SettingError, match="every factor"):
        method(DESCENT).check(facts_of(local=0))
    with pytest.raises(SettingError, match="noise"):
        method(DESCENT, noise=0.0).check(facts_of())


def test_bad_settings_are_refused():
    with pytest.raises(SettingError, match="finite clipping"):
        PaperGradient(clip=np.inf).check(facts_of())
    with pytest.raises(SettingError, match="above zero"):
        PaperOutput(clip=0.0).check(facts_of())
    with pytest.raises(SettingError, match="no mode"):
        PaperOutput(mode="day").check(facts_of())
    with pytest.raises(SettingError, match="lower one first"):
        PaperInput(clamp=(1.0, 0.0)).check(facts_of())
