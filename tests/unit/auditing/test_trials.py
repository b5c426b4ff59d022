"""Runs of an audit: kept, continued, and never mixed with those of another."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from mechanisms import RowSums

import sfumato as sf
from sfumato.auditing import audit, trials
from sfumato.auditing.neighbours import neighbours
from sfumato.auditing.trials import Trial, carry_out
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.solvers.private.passes import PrivatePasses
from sfumato.solvers.protocol import DivergedError, Finished

pytestmark = pytest.mark.usefixtures("few_trees")
CELLS = np.concatenate([np.indices((4, 3)).reshape(2, -1), [[4], [3]]], axis=1)
MODES = (Mode("row", 5), Mode("column", 4))
TENSOR = SparseTensor(CELLS, np.linspace(-0.5, 0.5, 13), MODES, (-1.0, 1.0))


def trial_of(method=None, tensor=TENSOR, unit="value", **options):
    method = RowSums() if method is None else method
    privacy = sf.Privacy(epsilon=1.0, unit=unit, method=method, public=sf.Public(labels=True))
    pair = neighbours(tensor, {"value": sf.Value(), "entry": sf.Entry()}[unit], "least")
    return Trial(sf.CP(1, privacy=privacy), pair, **options)


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_sides_alternate_and_noise_is_new_in_every_run():
    runs = carry_out(trial_of(), 50, processes=1)
    assert runs["side"].tolist() == [0, 1] * 25
    assert np.unique(runs["prediction"]).size == 50


def test_the_same_seed_gives_the_same_runs_and_another_seed_others():
    first = carry_out(trial_of(), 10, processes=1)
    assert same(first, carry_out(trial_of(), 10, processes=1))
    other = carry_out(trial_of(seed=1), 10, processes=1)
    assert not np.isin(first["prediction"], other["prediction"]).any()


def test_secret_noise_is_new_each_time():
    first, second = (carry_out(trial_of(seed=None), 4, processes=1) for _ in range(2))
    assert not np.isin(first["prediction"], second["prediction"]).any()


def test_two_processes_make_the_same_runs_as_one():
    assert same(carry_out(trial_of(), 50, processes=2), carry_out(trial_of(), 50, processes=1))


def test_more_runs_begin_with_the_same_ones():
    few, more = (carry_out(trial_of(), count, processes=1) for count in (30, 50))
    assert same(few, {name: part[:30] for name, part in more.items()})


# -- interrupted ----------------------------------------------------------------------------------


@dataclass
class Interruption:
    """Counts the runs that are made, and stops after some."""

    monkeypatch: pytest.MonkeyPatch
    after: int = 10**6
    made: int = 0

    def __post_init__(self):
        run = Trial.run

        def counted(trial, number):
            if self.made == self.after:
                raise KeyboardInterrupt
            self.made += 1
            return run(trial, number)

        self.monkeypatch.setattr(Trial, "run", counted)


def test_an_interrupted_audit_goes_on_where_it_stopped(tmp_path, monkeypatch):
    whole = carry_out(trial_of(), 90, processes=1)
    counter, told = Interruption(monkeypatch, after=50), []
    with pytest.raises(KeyboardInterrupt):
        carry_out(trial_of(), 90, tmp_path, processes=1, tell=told.append)
    assert told == [20, 20]
    counter.after, counter.made = 10**6, 0
    resumed = carry_out(trial_of(), 90, tmp_path, processes=1, tell=told.append)
    assert counter.made == 90 - 40
    assert sum(told[2:]) == 90
    assert same(resumed, whole)
    counter.made = 0
    assert same(carry_out(trial_of(), 90, tmp_path, processes=1), whole)
    assert counter.made == 0


def test_a_finished_audit_can_be_made_longer(tmp_path, monkeypatch):
    carry_out(trial_of(), 50, tmp_path, processes=1)
    counter = Interruption(monkeypatch)
    longer = carry_out(trial_of(), 90, tmp_path, processes=1)
    assert counter.made == 90 - 40  # the last batch was a short one
    assert same(longer, carry_out(trial_of(), 90, processes=1))


def test_a_whole_audit_is_resumed_to_the_same_result(tmp_path, monkeypatch):
    estimator = sf.CP(1, privacy=sf.Privacy(epsilon=1.0, unit="value", method=RowSums()))
    options = {"runs": 40, "canaries": ["least", "edge"], "processes": 1}
    whole = audit(estimator, TENSOR, **options)
    counter = Interruption(monkeypatch, after=65)  # in the second canary, after a batch of it
    with pytest.raises(KeyboardInterrupt):
        audit(estimator, TENSOR, out=tmp_path / "runs", **options)
    counter.after, counter.made = 10**6, 0
    assert audit(estimator, TENSOR, out=tmp_path / "runs", **options).to_json() == whole.to_json()
    assert counter.made == 20


def test_a_batch_that_was_not_finished_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(trials.np, "savez_compressed", _cut_off)
    with pytest.raises(OSError, match="disk"):
        carry_out(trial_of(), 40, tmp_path, processes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["trial.json"]


def _cut_off(file, **_):
    file.write(b"PK")
    raise OSError("the disk is full")


# -- another audit --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSumsToo(RowSums):
    """The same by another name."""


LABELLED = (Mode("row", 5, np.array(list("abcde"), object)), MODES[1])


@pytest.mark.parametrize(
    "other",
    [
        lambda: trial_of(seed=1),
        lambda: trial_of(seed=None),
        lambda: trial_of(sees=("factor_0",)),
        lambda: trial_of(RowSums(passes=2)),
        lambda: trial_of(RowSumsToo()),
        lambda: trial_of(tensor=TENSOR.with_values(TENSOR.values / 2, TENSOR.bounds)),
        lambda: trial_of(tensor=SparseTensor(CELLS, TENSOR.values, LABELLED, TENSOR.bounds)),
        lambda: replace(trial_of(), neighbours=neighbours(TENSOR, sf.Value(), "most")),
    ],
)
def test_runs_of_another_audit_are_not_taken_for_its_own(tmp_path, other):
    carry_out(trial_of(), 4, tmp_path, processes=1)
    with pytest.raises(SettingError, match="runs of another audit"):
        carry_out(other(), 4, tmp_path, processes=1)


def test_other_bounds_make_another_audit_even_where_all_values_are_the_same():
    """Presence is protected: the canary is at the upper bound, and the lower one shows nowhere."""
    wider = SparseTensor(CELLS, TENSOR.values - 0.4, MODES, (-1.5, 1.0))
    usual = SparseTensor(CELLS, TENSOR.values - 0.4, MODES, (-1.0, 1.0))
    a, b = trial_of(unit="entry", tensor=wider), trial_of(unit="entry", tensor=usual)
    assert np.array_equal(a.neighbours.second.values, b.neighbours.second.values)
    assert a.fingerprint() != b.fingerprint()


def test_settings_count_in_full():
    """Arrays are written out: what is left out of a long one, or its last digits, may differ."""
    numbers = np.linspace(0, 1, 5000)
    for place, by in ((2500, 0.1), (0, 1e-14)):
        other = numbers.copy()
        other[place] += by
        ours, theirs = (trial_of(RowSums(within=_Array(a))).fingerprint() for a in (numbers, other))
        assert ours != theirs


@dataclass(frozen=True, eq=False)
class _Array:
    numbers: np.ndarray


def test_a_mended_mechanism_makes_another_audit(monkeypatch):
    before = trial_of().fingerprint()
    assert trial_of().fingerprint() == before
    monkeypatch.setattr(trials, "code_of", lambda kinds: b"mended")
    assert trial_of().fingerprint() != before


def test_all_code_counts_but_what_cannot_matter_to_a_release():
    library = Path(sf.__file__).parent
    counts = {str(file.relative_to(library)) for file in trials._files_that_matter()}
    assert {"checks.py", "kernels/grid.py", "kernels/numba/simd.py", "auditing/views.py"} <= counts
    every = {str(file.relative_to(library)) for file in library.rglob("*.py")}
    folders = {"auditing", "cli", "papers", "report"}
    assert {file.split("/")[0].removesuffix(".py") for file in every - counts} <= {*folders, "demo"}


def test_the_digest_of_the_code_holds_the_solvers_own_file():
    trials.code_of.cache_clear()
    ours = trials.code_of((sf.CP, RowSums))
    assert ours != trials.code_of((sf.CP, PrivatePasses))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SettingError, match="not empty and holds no audit"):
        carry_out(trial_of(), 4, tmp_path, processes=1)


# -- releases that differ -------------------------------------------------------------------------


@dataclass(frozen=True)
class DivergesAtTheTop(RowSums):
    """A mechanism that breaks down where a value is at its upper bound."""

    def answer(self, state, site, draw):
        if site.tensor.values.max() == 1.0:
            raise DivergedError("too large")
        return super().answer(state, site, draw)


def test_a_fit_that_fails_on_one_neighbour_is_seen():
    estimator = sf.CP(1, privacy=sf.Privacy(epsilon=1.0, unit="value", method=DivergesAtTheTop()))
    found = audit(estimator, TENSOR, runs=200, processes=1, canaries=["least"])
    assert found.violated
    assert found.strongest.attack == "form of the release"


def test_a_fit_that_always_fails_tells_nothing():
    tensor = TENSOR.with_values(np.append(np.ones(12), 0.0), TENSOR.bounds)
    estimator = sf.CP(1, privacy=sf.Privacy(epsilon=1.0, unit="value", method=DivergesAtTheTop()))
    assert audit(estimator, tensor, runs=60, processes=1, canaries=["least"]).measured == 0


@dataclass(frozen=True)
class LeavesLevelsOut(RowSums):
    """A release whose size depends on the data: it has no rows for what lies at the upper bound."""

    def answer(self, state, site, draw):
        kept = 3 if site.tensor.values.max() == 1.0 else 5
        return super().answer(state, site, draw)[:kept]

    def finish(self, state):
        first, *others = state.facts.modes
        modes = (replace(first, size=len(state.total)), *others)
        model = replace(state.facts.shape, modes=modes).zeros()
        model.biases[model.span(0)] = state.total
        return Finished(model)


def test_releases_of_different_shapes_are_told_apart():
    estimator = sf.CP(1, privacy=sf.Privacy(epsilon=1.0, unit="value", method=LeavesLevelsOut()))
    found = audit(estimator, TENSOR, runs=200, processes=1, canaries=["least"])
    assert found.violated
    assert found.strongest.attack == "form of the release"
