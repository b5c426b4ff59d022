"""The ledger: charge first, then draw, and never forget."""

import json
import multiprocessing
import os

import numpy as np
import pytest
from on_grid import on_grid

from sfumato.errors import SettingError
from sfumato.privacy import ledger_file as ledger_module
from sfumato.privacy.account import read_ledger
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent, PureEvent
from sfumato.privacy.ledger import BudgetError, Charge, Ledger
from sfumato.privacy.mechanisms import Gaussian, Laplace, PoissonGaussian
from sfumato.privacy.units import Entry, Unit, UnitValues, Value

CLIPPED = on_grid(np.zeros(3), 1.0, 1.0)


def charges(*epsilons):
    return [Charge(f"query {i}", Laplace(1 / e)) for i, e in enumerate(epsilons)]


def spend(ledger, *epsilons):
    with ledger.reserve(charges(*epsilons), Entropy(0)) as reservation:
        return [reservation.ask(lambda draw: draw.release(CLIPPED)) for _ in epsilons]


def never(_draw):
    raise AssertionError("the data were asked")


@pytest.fixture(params=["memory", "file"])
def open_ledger(request, tmp_path):
    """Makes ledgers; those in a file are one and the same."""
    kept = {}

    def make(unit=Value(), limit=None):  # noqa: B008
        if request.param == "file":
            return Ledger(unit, limit, tmp_path / "folder" / "data.ledger")
        return kept.setdefault("ledger", Ledger(unit, limit))

    return make


def test_charges_add_up(open_ledger):
    ledger = open_ledger(limit=Budget(1.0))
    first, second = spend(ledger, 0.25, 0.25)
    assert not np.array_equal(first.values, second.values)
    assert ledger.epsilon(0.0) == 0.5
    assert open_ledger().epsilon(0.0) == 0.5
    spend(open_ledger(), 0.5)
    assert open_ledger().epsilon(0.0) == 1.0
    assert open_ledger().fits == 2
    assert open_ledger().limit == Budget(1.0)


def test_an_exhausted_budget_is_an_error_before_any_draw(open_ledger):
    ledger = open_ledger(limit=Budget(1.0))
    spend(ledger, 0.75)
    with (
        pytest.raises(BudgetError, match=r"epsilon 1; 1 earlier fits have spent epsilon 0.75.*1.25"),
        ledger.reserve(charges(0.2, 0.3), Entropy(0)),
    ):
        raise AssertionError("reserved")
    assert ledger.epsilon(0.0) == 0.75
    spend(open_ledger(), 0.25)  # what is left can still be spent


def test_a_fit_is_checked_as_a_whole(open_ledger):
    ledger = open_ledger(limit=Budget(1.0))
    with pytest.raises(BudgetError), ledger.reserve(charges(*[0.3] * 4), Entropy(0)):
        raise AssertionError("reserved")
    assert ledger.events == []


def test_limits_with_delta():
    ledger = Ledger(Value(), Budget(1.0, 1e-6))
    charge = Charge("query", Gaussian(4.3))
    with ledger.reserve([charge], Entropy(0)) as reservation:
        reservation.ask(lambda draw: draw.release(CLIPPED))
    assert ledger.epsilon(1e-6) == pytest.approx(0.98, abs=0.01)
    with pytest.raises(BudgetError), ledger.reserve([charge], Entropy(0)):
        raise AssertionError("reserved")


def test_the_charge_stands_before_the_draw(open_ledger, tmp_path):
    ledger = open_ledger()

    def look(draw):
        assert ledger.epsilon(0.0) == 0.5
        if ledger.path:
            assert len(ledger.path.read_text().splitlines()) == 2
        return draw.release(CLIPPED)

    with ledger.reserve(charges(0.5), Entropy(0)) as reservation:
        reservation.ask(look)


def test_a_crash_in_the_middle_leaves_the_charge(open_ledger):
    ledger = open_ledger()
    with pytest.raises(KeyboardInterrupt), ledger.reserve(charges(0.25, 0.5), Entropy(0)) as reservation:
        reservation.ask(lambda draw: (_ for _ in ()).throw(KeyboardInterrupt))
    assert open_ledger().epsilon(0.0) == 0.25  # the second was reserved, not charged
    spend(open_ledger(), 0.5)
    assert open_ledger().epsilon(0.0) == 0.75


def test_a_draw_is_for_once(open_ledger):
    def twice(draw):
        draw.release(CLIPPED)
        return draw.release(CLIPPED)

    def stream_after_release(draw):
        draw.release(CLIPPED)
        return draw.stream()

    with open_ledger().reserve(charges(0.1, 0.1), Entropy(0)) as reservation:
        with pytest.raises(BudgetError, match="'query 0' was charged once"):
            reservation.ask(twice)
        with pytest.raises(BudgetError, match="cannot be drawn twice"):
            reservation.ask(stream_after_release)


def test_no_more_draws_than_charges(open_ledger):
    with open_ledger().reserve(charges(0.1), Entropy(0)) as reservation:
        reservation.ask(lambda draw: draw.release(CLIPPED))
        with pytest.raises(BudgetError, match="every charge"):
            reservation.ask(never)
    with pytest.raises(BudgetError, match="has ended"):
        reservation.ask(never)
    with open_ledger().reserve(charges(0.1), Entropy(0)) as unused:
        pass
    with pytest.raises(BudgetError, match="has ended"):
        unused.ask(never)


def test_only_clipped_is_released(open_ledger):
    with (
        open_ledger().reserve(charges(0.1), Entropy(0)) as reservation,
        pytest.raises(TypeError, match="clipped"),
    ):
        reservation.ask(lambda draw: draw.release(np.zeros(3)))


def test_a_kernel_gets_a_stream():
    mechanism = PoissonGaussian(1.0, 0.1, 5, False)
    with Ledger(Entry()).reserve([Charge("pass", mechanism)], Entropy(0)) as reservation:
        drawn = reservation.ask(lambda draw: (draw.mechanism, draw.stream().random()))
    assert drawn[0] is mechanism
    assert 0 <= drawn[1] < 1


def test_one_fit_at_a_time(open_ledger):
    ledger = open_ledger(limit=Budget(1.0))
    with ledger.reserve(charges(0.6), Entropy(0)), pytest.raises(BudgetError, match="another fit"):
        spend(ledger, 0.6)
    spend(ledger, 0.6)


# -- the file -------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.ledger"
    spend(Ledger(Value(), Budget(2.0), path), 0.5, 0.25)
    return path


def hold(path, started, finish):
    with Ledger(Value(), path=path).reserve(charges(1.0), Entropy(0)) as reservation:
        started.set()
        finish.wait(30)
        reservation.ask(lambda draw: draw.release(CLIPPED))


def test_two_processes_do_not_charge_at_once(path):
    context = multiprocessing.get_context("spawn")
    started, finish = context.Event(), context.Event()
    mine = Ledger(Value(), path=path)
    other = context.Process(target=hold, args=(path, started, finish))
    other.start()
    assert started.wait(30)
    try:
        with pytest.raises(BudgetError, match="in use by another fit"):
            spend(mine, 1.0)
    finally:
        finish.set()
        other.join(30)
    assert other.exitcode == 0
    with pytest.raises(BudgetError, match=r"2 earlier fits have spent epsilon 1\.75"):
        spend(mine, 0.5)  # what the other has charged since is seen
    spend(mine, 0.25)


def kill_before_draw(path):
    def die(_draw):
        os._exit(9)

    with Ledger(Value(), path=path).reserve(charges(1.0), Entropy(0)) as reservation:
        reservation.ask(die)


def test_a_killed_process_leaves_charge_and_no_lock(path):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=kill_before_draw, args=(path,))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    assert Ledger(Value(), path=path).epsilon(0.0) == 1.75
    spend(Ledger(Value(), path=path), 0.25)


@pytest.mark.parametrize("cut", [1, 2, 10, 60])
def test_a_last_line_that_was_cut_off_was_not_drawn(path, cut):
    whole = path.read_bytes()
    line = json.dumps({"fit": 2, "label": "q", "event": {"kind": "PureEvent", "epsilon": 1.0}})
    path.write_bytes(whole + line.encode()[:cut])
    assert Ledger(Value(), path=path).epsilon(0.0) == 0.75
    spend(Ledger(Value(), path=path), 0.5)
    assert Ledger(Value(), path=path).epsilon(0.0) == 1.25
    assert path.read_bytes().startswith(whole)  # the rest of it is gone, what stood before stands


def test_a_last_line_without_its_end_counts(path):
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert Ledger(Value(), path=path).epsilon(0.0) == 0.75
    spend(Ledger(Value(), path=path), 0.5)
    assert Ledger(Value(), path=path).epsilon(0.0) == 1.25


@pytest.mark.parametrize("begun", [b"", b"{", b'{"sfumato_ledger": 1, "un'])
def test_a_header_that_was_cut_off_is_written_again(tmp_path, begun):
    path = tmp_path / "data.ledger"
    path.write_bytes(begun)
    spend(Ledger(Value(), Budget(1.0), path), 0.5)
    assert Ledger(Value(), path=path).epsilon(0.0) == 0.5
    assert Ledger(Value(), path=path).limit == Budget(1.0)


def composed(depth):
    return b'{"kind": "Composed", "events": [' * depth + b"]}" * depth


def repeated(times):
    return b'{"kind": "Repeated", "event": {"kind": "PureEvent", "epsilon": 0.1}, "times": %b}' % times


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"epsilon": 0.5', b'"epsilon": -5'),
        (b'"epsilon": 0.5', b'"epsilon": NaN'),
        (b'"epsilon": 0.5', b'"epsilon": "a"'),
        (b'"event"', b'"happening"'),
        (b'"PureEvent"', b'"FreeEvent"'),
        (b'{"fit": 1, "label": "query 0"', b'{"fit": 1, "lab'),
        (b'"fit": 1', b'"fit": "one"'),
        (b'"limit": [2.0, 0.0]', b'"limit": [-2.0, 0.0]'),
        (b'"limit": [2.0, 0.0]', b'"limit": 3'),
        (b'"unit"', b'"you knit"'),
        (b'"unit": "value"', b'"unit": 7'),
        (b'"epsilon": 0.5', b'"epsilon": true'),
        (b'"epsilon": 0.5', b'"epsilon": 1e999'),
        (b'"epsilon": 0.5', b'"epsilon": 1e61'),
        (b'"epsilon": 0.5', b'"epsilon": 1' + b"0" * 400),
        (b'"epsilon": 0.5', b'"epsilon": 1' + b"0" * 5000),
        (b'"fit": 1', b'"fit": 1' + b"0" * 400),
        (b'"fit": 1', b'"fit": 1.5'),
        (b'"doubtful": true', b'"doubtful": 1'),
        (b'"label": "query 0"', b'"label": ["query"]'),
        (b'"cost": 0.5', b'"cost": -0.5'),
        (b'"cost": 0.5', b'"cost": NaN'),
        (b'"kind": "epsilon"', b'"kind": "delta"'),
        (b'"kind": "epsilon"', b'"kind": ["epsilon"]'),
        (b'"total": 2.0', b'"total": 0'),
        (b'"limit": [2.0, 0.0]', b'"limit": [1' + b"0" * 400 + b", 0.0]"),
        (b'"limit": [2.0, 0.0]', b'"limit": [2.0, 0.0, 0.0]'),
        (b'{"kind": "PureEvent", "epsilon": 0.5}', b"[" * 100_000),
        (b'{"kind": "PureEvent", "epsilon": 0.5}', b'{"kind": "Composed", "events": [' * 60),
        (b'{"kind": "PureEvent", "epsilon": 0.5}', composed(60)),
        (b'{"kind": "PureEvent", "epsilon": 0.5}', composed(400)),
        (b'{"kind": "PureEvent", "epsilon": 0.5}', b'{"kind": "Repeated", "event": 3, "times": 2}'),
        (b'{"kind": "PureEvent", "epsilon": 0.5}', repeated(b"1e15")),
        (b'{"kind": "PureEvent", "epsilon": 0.5}', repeated(b"1.5")),
    ],
)
def test_other_damage_is_refused(path, old, new):
    damaged = path.read_bytes().replace(old, new, 1)
    assert old in path.read_bytes()
    ledger = Ledger(Value(), path=path)
    path.write_bytes(damaged)
    with pytest.raises(BudgetError, match="is damaged"):
        Ledger(Value(), path=path)
    with pytest.raises(BudgetError, match="is damaged"):
        spend(ledger, 0.1)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("content", [b"hello", b"user,item\n1,2\n", b"\x00\x01", b'{"a": 1}\n', b"\n"])
def test_other_files_are_left_as_they_are(tmp_path, content):
    path = tmp_path / "ratings.csv"
    path.write_bytes(content)
    with pytest.raises(BudgetError, match="not a ledger"):
        Ledger(Value(), path=path)
    assert path.read_bytes() == content


def test_another_version_is_refused(path):
    path.write_bytes(path.read_bytes().replace(b'"sfumato_ledger": 2', b'"sfumato_ledger": 3'))
    with pytest.raises(BudgetError, match="version 3"):
        Ledger(Value(), path=path)


@pytest.mark.parametrize("unit", [Entry(), Unit("user"), UnitValues("user", 3)])
def test_units_do_not_mix(path, unit):
    with pytest.raises(BudgetError, match="cannot add up"):
        Ledger(unit, path=path)


def test_a_limit_is_kept(path):
    assert Ledger(Value(), Budget(2.0), path).limit == Budget(2.0)
    with pytest.raises(BudgetError, match="cannot become epsilon 3"):
        Ledger(Value(), Budget(3.0), path)


def test_a_file_without_a_limit_takes_the_one_given(tmp_path):
    path = tmp_path / "data.ledger"
    spend(Ledger(Value(), path=path), 5.0)
    with pytest.raises(BudgetError, match="the budget"):
        spend(Ledger(Value(), Budget(5.1), path), 0.5)
    spend(Ledger(Value(), path=path), 0.5)


def test_a_full_disk_is_an_error_before_the_draw(path, monkeypatch):
    ledger = Ledger(Value(), path=path)
    real = os.write
    with ledger.reserve(charges(0.1, 0.1), Entropy(0)) as reservation:
        monkeypatch.setattr(ledger_module.os, "write", lambda file, line: real(file, line[:7]))
        with pytest.raises(BudgetError, match="disk full"):
            reservation.ask(never)
        monkeypatch.undo()
        with pytest.raises(BudgetError, match="has ended"):  # or it would write into half a line
            reservation.ask(never)
    spend(ledger, 0.5)
    assert Ledger(Value(), path=path).epsilon(0.0) == 1.25


def test_a_charge_is_synced_before_the_draw(path, monkeypatch):
    order = []
    real = os.fsync
    monkeypatch.setattr(ledger_module.os, "fsync", lambda file: (order.append("sync"), real(file)))
    with Ledger(Value(), path=path).reserve(charges(0.1, 0.1), Entropy(0)) as reservation:
        for _ in range(2):
            reservation.ask(lambda draw: order.append("draw"))
    assert order == ["sync", "draw", "sync", "draw"]


def test_numpy_numbers_are_written(tmp_path):
    path = tmp_path / "data.ledger"
    mechanism = PoissonGaussian(np.float32(2.0), np.float64(0.1), np.int64(5), np.bool_(False))
    with Ledger(Entry(), path=path).reserve([Charge("pass", mechanism)], Entropy(0)) as reservation:
        reservation.ask(lambda draw: draw.stream())
    assert Ledger(Entry(), path=path).events == [mechanism.event]


def test_thousands_of_charges(tmp_path):
    ledger = Ledger(Value(), Budget(5.0, 1e-6), tmp_path / "data.ledger")
    with ledger.reserve([Charge("q", Gaussian(100.0 + i)) for i in range(300)], Entropy(0)) as held:
        for _ in range(300):
            held.ask(lambda draw: None)
    again = Ledger(Value(), path=tmp_path / "data.ledger")
    assert again.epsilon(1e-6) == ledger.epsilon(1e-6)
    assert again.spent == Composed(tuple(GaussianEvent(100.0 + i) for i in range(300)))
    many = Composed((*[GaussianEvent(500.0 + i) for i in range(5000)], *[PureEvent(1e-3)] * 5000))
    assert 0 < epsilon_of(many, 1e-6) < 5


def test_a_full_disk_while_syncing(path, monkeypatch):
    ledger = Ledger(Value(), path=path)

    def full(_file, *_rest):
        raise OSError(28, "No space left on device")

    for name in ("write", "fsync"):
        before = Ledger(Value(), path=path).epsilon(0.0)
        with ledger.reserve(charges(0.1, 0.1), Entropy(0)) as reservation:
            monkeypatch.setattr(ledger_module.os, name, full)
            with pytest.raises(BudgetError, match=r"No space left on device.*nothing was drawn"):
                reservation.ask(never)
            monkeypatch.undo()
        # What could not be synced may be there, and then counts.
        assert Ledger(Value(), path=path).epsilon(0.0) in (before, before + 0.1)
    spend(ledger, 0.5)


def test_a_path_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ledger = Ledger(Value(), Budget(1.0), "data.ledger")
    spend(ledger, 0.25)
    monkeypatch.chdir(tmp_path / "elsewhere")
    spend(ledger, 0.25)
    assert ledger.path == tmp_path / "data.ledger"
    assert Ledger(Value(), path=tmp_path / "data.ledger").epsilon(0.0) == 0.5
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_is_no_ledger(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BudgetError, match="it is no file"):
        Ledger(Value(), path=tmp_path / "pipe")
    ledger = Ledger(Value(), path=tmp_path / "later")
    os.mkfifo(tmp_path / "later")
    with pytest.raises(BudgetError, match="it is no file"):
        spend(ledger, 0.1)


def test_files_that_cannot_be_used_are_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"hello")
    with pytest.raises(BudgetError, match="it is no file"):
        Ledger(Value(), path=tmp_path / "folder")
    with pytest.raises(BudgetError, match="cannot be used"):
        spend(Ledger(Value(), path=tmp_path / "file" / "inside"), 0.1)
    for wrong in (tmp_path / ("x" * 5000), "a\0b", 7, [tmp_path]):
        with pytest.raises(SettingError, match="ledger must be"):
            Ledger(Value(), path=wrong)
    if os.name == "posix" and os.getuid() != 0:
        (tmp_path / "folder").chmod(0)
        with pytest.raises(BudgetError, match="Permission denied"):
            Ledger(Value(), path=tmp_path / "folder" / "ledger")


def test_a_refused_first_fit_leaves_no_trace(tmp_path):
    path = tmp_path / "data.ledger"
    with pytest.raises(BudgetError, match="0 earlier fits"):
        spend(Ledger(Value(), Budget(1.0), path), 1.5)
    spend(Ledger(Value(), Budget(2.0), path), 1.5)
    assert Ledger(Value(), path=path).limit == Budget(2.0)


# -- forked processes -----------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def in_child(action):
    """What an action returns in a forked process: one line."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(action()).encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks in processes with threads
def test_a_forked_process_keeps_no_lock(path):
    reading, writing = os.pipe()
    with Ledger(Value(), path=path).reserve(charges(0.25), Entropy(0)) as reservation:
        child = os.fork()
        if child == 0:  # outlives the fit
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        reservation.ask(lambda draw: draw.release(CLIPPED))
    try:
        spend(Ledger(Value(), path=path), 0.25)
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


@needs_fork
def test_a_copy_of_the_file_that_is_left_open_keeps_no_lock(path):
    """As a child has one between its fork and its first step."""
    ledger = Ledger(Value(), path=path)
    with ledger.reserve(charges(0.25), Entropy(0)) as reservation:
        copy = os.dup(ledger._file._descriptor)
        reservation.ask(lambda draw: draw.release(CLIPPED))
    try:
        spend(Ledger(Value(), path=path), 0.25)
    finally:
        os.close(copy)


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_draws_nothing(open_ledger):
    ledger = open_ledger()
    with ledger.reserve(charges(0.25, 0.5), Entropy(0)) as reservation:
        said = in_child(lambda: reservation.ask(lambda draw: "drawn"))
        assert said.startswith("BudgetError: this draw was reserved by another process")
        said = reservation.ask(lambda draw: in_child(lambda: draw.release(CLIPPED)))
        assert said.startswith("BudgetError: this draw was reserved by another process")
        if ledger.path:  # the lock is still the fit's
            said = in_child(lambda: spend(Ledger(Value(), path=ledger.path), 0.25))
            assert "in use by another fit" in said
        reservation.ask(lambda draw: draw.release(CLIPPED))
    assert ledger.epsilon(0.0) == 0.75


# -- filters --------------------------------------------------------------------------------------

VERSION_1 = """{"sfumato_ledger": 1, "unit": "value", "limit": [1.0, 0.01]}
{"fit": 1, "label": "q", "event": {"kind": "PureEvent", "epsilon": 0.25}, "doubtful": false}
{"fit": 2, "label": "q", "event": {"kind": "GaussianEvent", "noise_multiplier": 8.0}, "doubtful": false}
"""


def test_a_file_of_version_1_adds_up_as_it_did(tmp_path):
    path = tmp_path / "data.ledger"
    path.write_text(VERSION_1)
    ledger = Ledger(Value(), path=path)
    assert (ledger.fits, ledger.limit) == (2, Budget(1.0, 0.01))
    expected = epsilon_of(Composed((PureEvent(0.25), GaussianEvent(8.0))), 0.01)
    assert ledger.epsilon(0.01) == expected
    assert ledger.account.assumptions
    assert ledger.odometer(0.01) == np.inf
    spend(ledger, 0.25)
    with pytest.raises(BudgetError, match="3 earlier fits"):
        spend(ledger, 0.7)
    assert path.read_text().startswith(VERSION_1)
    assert "cost" not in path.read_text()
    assert read_ledger(path).fits == 3


def gaussian_fit(ledger, *multipliers):
    charged = [Charge("q", Gaussian(multiplier)) for multiplier in multipliers]
    with ledger.reserve(charged, Entropy(None)) as reservation:
        for _ in multipliers:
            reservation.ask(lambda draw: draw.release(CLIPPED))


def test_the_filter_is_written_down_and_kept(tmp_path):
    path, limit = tmp_path / "data.ledger", Budget(1.0, 1e-6)
    gaussian_fit(Ledger(Value(), limit, path), 20.0, 20.0)
    header, first, second = map(json.loads, path.read_text().splitlines())
    assert header["filter"]["kind"] == "gaussian"
    assert first["cost"] == second["cost"] == 0.0025
    with pytest.raises(BudgetError, match=r"0\.911 of the limit is left, and it takes 1\.1"):
        gaussian_fit(Ledger(Value(), path=path), 4.0)
    # A change of what is written there is followed, not what would be chosen today.
    path.write_text(path.read_text().replace(str(header["filter"]["total"]), "0.0051"))
    with pytest.raises(BudgetError, match="of the limit is left"):
        gaussian_fit(Ledger(Value(), path=path), 50.0)
    gaussian_fit(Ledger(Value(), path=path), 100.0)
    assert read_ledger(path).left < 1e-9


def test_a_fit_that_takes_all_of_a_limit_is_the_last_one(tmp_path):
    path, limit = tmp_path / "data.ledger", Budget(1.0, 1e-6)
    steps = PoissonGaussian(calibrate_steps(limit), 0.01, 200, False)
    ledger = Ledger(Value(), limit, path)
    with (
        pytest.raises(KeyboardInterrupt),
        ledger.reserve([Charge("pass", steps), Charge("end", Gaussian(1e6))], Entropy(None)) as held,
    ):
        held.ask(lambda draw: (_ for _ in ()).throw(KeyboardInterrupt))
    assert read_ledger(path).left == 0
    with pytest.raises(BudgetError, match="0 of the limit is left"):
        gaussian_fit(Ledger(Value(), path=path), 1e5)


def calibrate_steps(budget):
    def event(noise):
        steps = PoissonGaussian(noise, 0.01, 200, False).event
        return Composed((steps, GaussianEvent(1e6)))

    return calibrate(event, budget)


def test_a_limit_of_rho(tmp_path):
    path = tmp_path / "data.ledger"
    gaussian_fit(Ledger(Value(), ZCDP(0.02), path), 10.0, 10.0)
    with pytest.raises(BudgetError, match=r"rho 0\.02"):
        gaussian_fit(Ledger(Value(), path=path), 7.0)
    gaussian_fit(Ledger(Value(), path=path), 7.1)
    assert Ledger(Value(), path=path).limit == ZCDP(0.02)


def test_a_limit_that_comes_later_is_kept_for_plans_made_in_advance(tmp_path):
    path = tmp_path / "data.ledger"
    gaussian_fit(Ledger(Value(), path=path), 10.0)
    late = Ledger(Value(), Budget(1.0, 1e-6), path)
    gaussian_fit(late, 10.0)
    assert late.account.assumptions
    assert not late.account.kept
    with pytest.raises(BudgetError):
        gaussian_fit(late, 4.3)


def test_reading_what_is_not_there(tmp_path):
    with pytest.raises(BudgetError, match="there is no ledger"):
        read_ledger(tmp_path / "nothing")


def test_damaged_files_end_in_words(tmp_path):
    """Bytes flipped, cut, doubled and exchanged: read as a ledger, or refused in words."""
    path, rng = tmp_path / "data.ledger", np.random.default_rng(8)
    mechanisms = [Gaussian(9.0), Laplace(5.0), PoissonGaussian(3.0, 0.1, 5, True)]
    ledger = Ledger(Entry(), Budget(3.0, 1e-6), path)
    with ledger.reserve([Charge("q", mechanism) for mechanism in mechanisms], Entropy(None)) as held:
        for _ in mechanisms:
            held.ask(lambda draw: None)
    whole, refused = path.read_bytes(), []
    words = [b"null", b"true", b"-1", b"1e308", b"NaN", b"{", b"[[[", b"\xff", b"\n", b'"', b"9" * 30]
    for _ in range(300):
        content = bytearray(whole)
        start, length = rng.integers(len(whole)), rng.integers(1, 12)
        content[start : start + length] = words[rng.integers(len(words))] * rng.integers(0, 3)
        path.write_bytes(content)
        try:
            account = read_ledger(path)
            assert str(account)
            json.dumps(account.to_json())
            Ledger(Entry(), path=path)
        except BudgetError as error:
            refused.append(str(error))
    assert 200 < len(refused) < 300
    assert all(str(path) in message for message in refused)
