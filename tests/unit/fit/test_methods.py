"""Which method serves which unit and budget."""

from dataclasses import replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.fit.methods import choose, make_plan
from sfumato.models.multilinear import CPModel
from sfumato.solvers.base import PublicShape


def shape(unit, entries=800_000, sizes=(6000, 4000), **more):
    modes = tuple(sf.Mode(name, n) for name, n in zip(("user", "item"), sizes, strict=True))
    return PublicShape(
        modes,
        lambda sizes, dtype: CPModel.zeros(sizes, 2, dtype),
        unit=unit,
        bounds=(1, 5),
        entries=entries,
        **more,
    )


def test_factors_where_noise_is_thin_and_biases_elsewhere():
    for unit, enough in ((sf.Entry(), 3.0), (sf.Unit("user"), 10.0)):
        assert choose(shape(unit), sf.Budget(enough, 1e-6)) == "alternating"
        assert choose(shape(unit), sf.Budget(0.1, 1e-6)) == "bias"
        assert choose(shape(unit, entries=8_000), sf.Budget(enough, 1e-6)) == "bias"


@pytest.mark.parametrize("unit", [sf.Entry(), sf.Unit("user"), sf.Value()])
def test_more_budget_or_more_entries_never_lead_back_to_biases(unit):
    for entries in (10_000, 100_000, 1_000_000, 10_000_000):
        chosen = [
            choose(shape(unit, entries), sf.Budget(e, 1e-6)) == "bias"
            for e in np.geomspace(0.05, 20, 25)
        ]
        assert chosen == sorted(chosen, reverse=True)
    for epsilon in (0.3, 3.0, 10.0):
        by_entries = [
            choose(shape(unit, int(n)), sf.Budget(epsilon, 1e-6)) == "bias"
            for n in np.geomspace(1e3, 1e8, 25)
        ]
        assert by_entries == sorted(by_entries, reverse=True)


def test_values_are_perturbed_where_that_is_worth_it():
    assert choose(shape(sf.Value()), sf.Budget(5.0)) == "input"
    assert choose(shape(sf.Value()), sf.Budget(0.5)) == "bias"
    assert choose(shape(sf.Value(), fit_biases=False), sf.Budget(0.5)) == "input"


def test_without_a_delta_only_biases_hide_presence():
    assert choose(shape(sf.Entry()), sf.Budget(10.0)) == "bias"
    assert choose(shape(sf.UnitValues("user", 9)), sf.Budget(10.0, 1e-6)) == "bias"


def test_zcdp_budgets_choose_too():
    assert choose(shape(sf.Entry()), sf.ZCDP(1.0)) == "gradient"
    assert choose(shape(sf.Entry()), sf.ZCDP(1e-4)) == "bias"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "gradient"}, "delta"),
        ({"method": "output"}, "delta"),
        ({"method": "input", "unit": "value", "noise": "gaussian"}, "delta"),
        ({"method": "input", "unit": "value", "noise": "vector"}, "one of"),
        ({"method": "bias", "noise": "laplace"}, "one of"),
        ({"method": "bias", "analysis": "paper"}, "paper"),
        ({"method": "gradient", "noise": "residual"}, "value"),
        ({"method": "input"}, "cells"),
    ],
)
def test_what_no_method_serves_is_said_with_what_would(settings, match):
    privacy = sf.Privacy(
        **{"epsilon": 1.0, "unit": "entry", "public": sf.Public(labels=True), **settings}
    )
    with pytest.raises(sf.SettingError, match=match):
        make_plan(replace(shape(None), unit=None), privacy, privacy.method, (1, 5), 800_000, 0)
