"""Public bounds of any size: refused before anything is charged, or good for a private fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.privacy.clipping import check_range

CELLS = sf.synthetic.cp((5, 4), 1, entries=16, seed=0).tensor
METHODS = ("constant", "bias", "alternating")
sizes = st.floats(-60, 60).map(lambda power: 10.0**power)


def fit(low, high, method, ledger=None):
    labels = {name: range(size) for name, size in zip(CELLS.mode_names, CELLS.shape, strict=True)}
    values = np.linspace(low, high, CELLS.n_entries)
    tensor = sf.SparseTensor(CELLS.coordinates, values, CELLS.modes, (low, high))
    privacy = sf.Privacy(
        epsilon=2,
        delta=1e-6,
        unit="entry",
        method=method,
        public=sf.Public(entries=16, labels=labels),
        ledger=ledger,
        seed=0,
    )
    return sf.CP(1, privacy=privacy, threads=1).fit(tensor), tensor


@settings(max_examples=25, deadline=None)
@given(width=sizes, place=st.sampled_from((0.0, -1.0, -0.5, 3.0, 1e6)), method=st.sampled_from(METHODS))
def test_bounds_within_the_limits_are_good_for_a_fit(width, place, method):
    low, high = place * width, (place + 1) * width
    try:
        check_range(low, high)
    except sf.SettingError:
        return  # at the very edge
    model, tensor = fit(low, high, method)
    predicted = model.predict(tensor)
    assert np.isfinite(predicted).all()
    assert ((low <= predicted) & (predicted <= high)).all()


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.0, 1e-61, "at least 1e-60 apart"),
        (0.0, 1e-162, "at least 1e-60 apart"),
        (0.0, 5e-324, "at least 1e-60 apart"),
        (0.0, 1e61, r"within 1e\+60 of zero"),
        (-1e300, 1e300, r"within 1e\+60 of zero"),
        (1e15, 1e15 + 0.5, "only a few numbers between them"),
        (-1.0, np.nextafter(-1.0, 0), "only a few numbers between them"),
    ],
)
def test_other_bounds_are_refused_and_nothing_is_charged(low, high, words, tmp_path):
    for method in METHODS:
        with pytest.raises(sf.SettingError, match=words):
            fit(low, high, method, tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("bounds", [(1e15, 1e15 + 2), (2.0**60, 2.0**60 + 4096), (-1e-59, 1e60), (0, 1)])
def test_narrow_bounds_far_from_zero_are_allowed(bounds):
    check_range(*bounds)
    assert np.isfinite(fit(*map(float, bounds), "constant")[0].model_.mean)
