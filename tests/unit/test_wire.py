"""Messages: plain data come back to the last bit, and whatever else is found in one is a WireError."""

import importlib
import json
import struct
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from math import inf, isnan, nan
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from sfumato import wire
from sfumato.data.tensor import Mode
from sfumato.errors import SfumatoError
from sfumato.models.multilinear import CPModel
from sfumato.models.own_prior import OwnPrior, RowNoise
from sfumato.models.shape import Shape
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.privacy.mechanisms import Noisy
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.records import same
from sfumato.solvers.least_squares import backfitting
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.protocol import Run
from sfumato.wire import WireError, from_wire, to_wire

TYPES = [np.bool_, np.int32, np.int64, np.uint64, np.float32, np.float64]


# -- there and back -------------------------------------------------------------------------------

numbers = st.floats() | st.integers() | st.booleans() | st.sampled_from([-0.0, inf, -inf, nan, 5e-324])
any_array = st.sampled_from(TYPES).flatmap(
    lambda kind: arrays(kind, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
)
scalars = any_array.filter(lambda array: array.size).map(lambda array: array.ravel()[0])
records = st.one_of(
    st.builds(Run, st.integers(), st.integers()),
    st.builds(Budget, st.floats(1e-9, 1e9), st.floats(0, 0.5)),
    st.builds(Noisy, any_array, st.floats(), st.tuples(any_array, any_array)),
    st.builds(RowNoise, any_array, any_array),
    st.builds(Mode, st.text(min_size=1), st.integers(0, 9), st.none(), st.sampled_from(["day", None])),
    st.sampled_from([Value(), Entry(), Unit("user", 3), ZCDP(0.1)]),
)
plain_data = st.recursive(
    st.none() | st.text() | numbers | any_array | scalars | records,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text() | st.integers() | st.tuples(st.text()), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(plain_data)
@settings(max_examples=80, deadline=None)
def test_what_is_sent_comes_back_to_the_last_bit(plain):
    assert same(from_wire(to_wire(plain)), plain)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 3), (0, 4), (2, 0, 3), (1, 1, 1, 1)])
def test_arrays_of_all_types_and_shapes(kind, shape):
    array = (np.arange(np.prod(shape)).reshape(shape) * 3).astype(kind)
    assert same(from_wire(to_wire(array)), array)
    assert same(from_wire(to_wire(array.T)), array.T)


def test_arrays_come_back_as_memory_of_their_own_that_can_be_written():
    array = np.arange(12.0).reshape(3, 4)
    array.flags.writeable = False
    back = from_wire(to_wire((array, array[:, 1])))
    for mine, theirs in zip(back, (array, array[:, 1]), strict=True):
        assert same(mine, theirs)
        assert mine.flags.writeable
        assert mine.flags.c_contiguous
        assert mine.ctypes.data % 64 == 0
        mine[...] = 0
    assert array.any()


@pytest.mark.parametrize("number", [np.float32(0.1), np.float64(-0.0), np.int32(-1), np.bool_(True)])
def test_numbers_of_numpy_keep_their_type(number):
    back = from_wire(to_wire(number))
    assert type(back) is type(number)
    assert same(back, number)


@pytest.mark.parametrize("number", [inf, -inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 2**80, -1])
def test_numbers_are_themselves(number):
    assert same(from_wire(to_wire(number)), number)
    assert same(from_wire(to_wire((number, {"a": [number]}))), (number, {"a": [number]}))


def test_what_is_not_a_number_stays_so():
    assert isnan(from_wire(to_wire(nan)))


@pytest.mark.parametrize("kind", [OrderedDict, MappingProxyType])
def test_mappings_of_any_kind_come_back_as_dictionaries_in_their_order(kind):
    given_ = {"b": 1.0, "a": (2, "x"), 3: np.ones(2)}
    back = from_wire(to_wire(kind(given_)))
    assert same(back, given_)
    assert list(back) == ["b", "a", 3]


def facts():
    modes = (Mode("user", 5), Mode("item", 4), Mode("day", 3, None, "day"))
    return Facts(Shape(modes, (2, 2, 2)), Unit("user", 3), (1.0, 5.0), local=0)


def some_records():
    model = CPModel.from_factors([np.ones((3, 2)), -np.ones((2, 2))], mean=-0.0)
    noise = RowNoise(np.array([0.5, 0.25]), np.array([1.0, 0.0]))
    return [
        facts(),
        model,
        ALS(ridge={"user": 1.0}, prior_mean={"item": 2.0}),
        ALS(ridge="learn"),
        OwnPrior(mode=0, precisions=np.ones(2), scatter=1.0, row_noise=(None, noise)),
        OwnPrior(mode=0, precisions=np.ones(2), scatter=1.0, bias_precision=inf, doubts=(None,)),
        Clipped(np.array([1, 2]), inf, 2.0, step=0.5, public=(np.arange(3),)),
        Noisy(np.ones((2, 2)), inf),
        Run(seed=2**63, threads=2),
    ]


@pytest.mark.parametrize("plain", some_records(), ids=lambda plain: type(plain).__name__)
def test_records_come_back_as_what_they_were(plain):
    back = from_wire(to_wire(plain))
    assert type(back) is type(plain)
    assert same(back, plain)


# -- what cannot be sent --------------------------------------------------------------------------


class Longer(Run):
    pass


@pytest.mark.parametrize(
    "other",
    [
        len,
        lambda: None,
        object(),
        Run,
        np.random.default_rng(0),
        {1, 2},
        range(3),
        b"bytes",
        1j,
        Longer(),
        np.array([None]),
        np.array(["text"]),
        np.array([1j]),
        np.float16(1),
        np.ones(2, np.int8),
        np.ones(2, ">f8"),
        np.datetime64("2020-01-01"),
        np.str_("text"),
        np.ma.array([1.0], mask=[True]),
        np.zeros(2, [("a", float)]),
        "half a character: \ud800",
        10**5000,
    ],
    ids=lambda other: type(other).__name__,
)
def test_what_is_no_plain_data_cannot_be_sent(other):
    for plain in (other, (1, other), {"a": [other]}, Noisy(np.ones(1), 1.0, (other,))):
        with pytest.raises(WireError, match="cannot be sent"):
            to_wire(plain)


def test_labels_of_text_cannot_be_sent():
    labelled = Mode("user", 2, np.array(["anna", "otto"], object))
    with pytest.raises(WireError, match="object"):
        to_wire(labelled)
    assert same(from_wire(to_wire(labelled.unlabelled)), labelled.unlabelled)


def test_data_within_data_without_end_cannot_be_sent():
    plain = ()
    for _ in range(60):
        plain = (plain,)
    assert same(from_wire(to_wire(plain)), plain)
    for _ in range(10):
        plain = (plain,)
    with pytest.raises(WireError, match="without end"):
        to_wire(plain)
    itself = []
    itself.append(itself)
    with pytest.raises(WireError, match="without end"):
        to_wire(itself)


# -- damage ---------------------------------------------------------------------------------------


def message(tree, arrays=None, version="1"):
    """A message with any tree, well-formed as a file."""
    from safetensors.numpy import save

    text = tree if isinstance(tree, str) else json.dumps(tree)
    about = f'{{"format": {version}, "tree": {text}}}'
    return save(arrays or {}, metadata={"sfumato": about})


def changed(plain, change):
    """The message of plain data after a change of its tree."""
    sent = to_wire(plain)
    size = struct.unpack("<Q", sent[:8])[0]
    header = json.loads(sent[8 : 8 + size])
    about = json.loads(header["__metadata__"]["sfumato"])
    about["tree"] = change(about["tree"]) or about["tree"]
    header["__metadata__"]["sfumato"] = json.dumps(about)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + sent[8 + size :]


def assert_refused_or_plain(damaged):
    """No other error, whatever was damaged; a number may have become another number."""
    try:
        back = from_wire(damaged)
    except WireError:
        return
    to_wire(back)


def test_every_byte_of_a_small_message():
    sent = to_wire((Run(3), np.arange(2.0), {"a": nan}))
    refused = 0
    for place in range(len(sent)):
        for bits in (1, 0x20, 0xFF):
            damaged = bytearray(sent)
            damaged[place] ^= bits
            try:
                from_wire(bytes(damaged))
            except WireError:
                refused += 1
    assert refused > len(sent)


@given(st.integers(0, len(some_records()) - 1), st.data())
@settings(max_examples=80, deadline=None)
def test_bytes_of_larger_messages(which, data):
    sent = bytearray(to_wire(some_records()[which]))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    assert_refused_or_plain(bytes(sent))


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes(noise):
    with pytest.raises(WireError):
        from_wire(noise)
    with pytest.raises(WireError):
        from_wire(struct.pack("<Q", len(noise)) + noise)


def test_messages_that_are_cut_off_or_too_long():
    sent = to_wire((facts(), np.arange(5.0)))
    for length in range(len(sent)):
        with pytest.raises(WireError):
            from_wire(sent[:length])
    with pytest.raises(WireError):
        from_wire(sent + b"\0")


@pytest.mark.parametrize("version", ["0", "2", "null", '""', '"one"', '"1"'])
def test_messages_of_other_versions(version):
    with pytest.raises(WireError, match="this version reads format 1"):
        from_wire(message(1, version=version))


def test_equal_data_make_equal_bytes():
    plain = {"a": (1.5, None, np.arange(6.0).reshape(2, 3)), "b": [np.float32(2), "text"]}
    assert len({to_wire(plain) for _ in range(20)}) == 1


def test_files_that_are_no_messages():
    from safetensors.numpy import save

    for sent in (save({}), save({"0": np.ones(2)}), save({}, {"tree": "1"}), save({}, {"sfumato": "1"})):
        with pytest.raises(WireError):
            from_wire(sent)


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["array", "scalar", "number", "map", "tuple", "list", "record", "of"]),
            inner | st.sampled_from([0, "nan", "solvers.protocol.Run", [[1, 2]]]),
            max_size=2,
        ),
    ),
    max_leaves=8,
)


@given(json_trees)
@settings(max_examples=120, deadline=None)
def test_trees_of_any_kind(tree):
    assert_refused_or_plain(message(tree, {"0": np.ones(2)}))


@pytest.mark.parametrize(
    "tree",
    [
        "",
        "{",
        "[1]",
        "{}",
        '{"array": 7}',
        '{"array": "x"}',
        '{"array": null}',
        '{"array": [0]}',
        '{"scalar": 0}',
        '{"number": "1e5"}',
        '{"number": {}}',
        '{"tuple": 3}',
        '{"tuple": [[1]]}',
        '{"set": []}',
        '{"map": [[1]]}',
        '{"map": [[{"array": 0}, 1]]}',
        '{"map": [[{"list": []}, 1]]}',
        '{"map": {"a": 1}}',
        '{"tuple": [], "list": []}',
        '{"record": "solvers.protocol.Run"}',
        '{"record": "solvers.protocol.Run", "of": []}',
        '{"record": "solvers.protocol.Run", "of": null}',
        '{"record": ["solvers.protocol.Run"], "of": {}}',
        '{"record": null, "of": {}}',
        "1" * 5000,
    ],
)
def test_trees_that_cannot_have_been_sent(tree):
    with pytest.raises(WireError):
        from_wire(message(tree, {"0": np.ones(2)}))


@pytest.mark.parametrize("depth", [65, 1000, 100_000])
@pytest.mark.parametrize("word", ["tuple", "list"])
def test_messages_within_messages_without_end(word, depth):
    deep = f'{{"{word}": [' * depth + "1" + "]}" * depth
    with pytest.raises(WireError):
        from_wire(message(deep))


def test_fields_too_many_too_few_or_of_another_type():
    def with_parts(**parts):
        return lambda tree: tree["of"].update(parts)

    sent = changed(Run(1, 2), lambda tree: None)
    assert same(from_wire(sent), Run(1, 2))
    for change, match in (
        (with_parts(more=1), "has the parts seed, threads"),
        (lambda tree: tree["of"].pop("threads") and None, "has the parts"),
        (lambda tree: tree["of"].clear(), "has the parts"),
        (with_parts(seed="1"), "seed of a .*Run cannot be '1'"),
        (with_parts(seed=1.5), "seed"),
        (with_parts(seed=True), "seed"),
        (with_parts(seed=None), "seed"),
        (with_parts(seed={"tuple": [1]}), "seed"),
        (with_parts(seed={"record": "solvers.protocol.Run", "of": {"seed": 1, "threads": 1}}), "seed"),
    ):
        with pytest.raises(WireError, match=match):
            from_wire(changed(Run(1, 2), change))


@pytest.mark.parametrize(
    ("plain", "part", "other"),
    [
        (facts(), "bounds", {"tuple": [1.0]}),
        (facts(), "bounds", {"tuple": [5.0, 1.0]}),  # of the right type, but they cannot be
        (facts(), "unit", {"record": "privacy.budgets.Budget", "of": {"epsilon": 1.0, "delta": 0.0}}),
        (facts(), "local", 1),  # not the unit's own mode
        (facts(), "shape", 3),
        (Budget(1.0), "epsilon", -1.0),
        (Budget(1.0), "epsilon", {"number": "nan"}),
        (Noisy(np.ones(2), 1.0), "values", 1.0),
        (Noisy(np.ones(2), 1.0), "public", {"tuple": [1.0]}),
        (Clipped(np.ones(2, np.int64), 1.0, 1.0), "l1", 0.0),
        (ALS(prior_mean={"item": 2.0}), "prior_mean", {"map": [["item", "two"]]}),
        (ALS(prior_mean={"item": 2.0}), "prior_mean", {"map": [[1, 2.0]]}),
        (ALS(), "ridge", "lern"),
        (Mode("user", 3), "size", -1),
        (RowNoise(np.ones(2), np.ones(2)), "levels", None),
    ],
)
def test_parts_that_cannot_be(plain, part, other):
    with pytest.raises(WireError):
        from_wire(changed(plain, lambda tree: tree["of"].update({part: other})))


@pytest.mark.parametrize(
    "name",
    [
        "solvers.protocol.Rum",
        "solvers.protocol.DivergedError",  # lives there, but is no record
        "solvers.protocol.Solver",
        "solvers.nowhere.Run",
        "solvers",
        "Run",
        "",
        ".",
        "..os.path",
        "os.system",
        "builtins.eval",
        "antigravity.x",
        "sfumato.solvers.protocol.Run",
        "solvers/protocol.Run",
        "solvers.protocol.Run.__init__",
        "solvers.protocol.Run\0",
        "x" * 100_000,
        "ä.ö",
        7,
    ],
    ids=str,
)
def test_kinds_that_do_not_exist(name):
    with pytest.raises(WireError):
        from_wire(message({"record": name, "of": {"seed": 1, "threads": 1}}))


def test_nothing_outside_of_the_package_is_imported(monkeypatch):
    asked = []

    def watched(name, package=None):
        asked.append(name)
        return importlib.import_module(name, package)

    monkeypatch.setattr(wire, "import_module", watched)
    before = set(sys.modules)
    for name in ("this.x", "antigravity.x", "os.system", "..this.x", "wsgiref.x", "idlelib.run.main"):
        with pytest.raises(WireError):
            from_wire(message({"record": name, "of": {}}))
    assert all(name.startswith("sfumato.") for name in asked)
    assert not {name for name in set(sys.modules) - before if not name.startswith("sfumato.")}
    assert not {"this", "antigravity", "idlelib"} & set(sys.modules)


def test_a_kind_s_home_is_imported_when_it_is_needed():
    """In a process of its own: a module that was imported twice would have two kinds of one name."""
    program = """
import sys
from sfumato.wire import from_wire
home = "sfumato.solvers.least_squares.backfitting"
assert home not in sys.modules
back = from_wire(bytes.fromhex(sys.argv[1]))
print(type(back) is sys.modules[home].Backfitting, back.sweeps)
"""
    sent = to_wire(backfitting.Backfitting(3)).hex()
    command = [sys.executable, "-c", program, sent]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "True 3\n"


def test_a_small_message_cannot_ask_for_much_memory():
    header = {
        "__metadata__": {"sfumato": '{"format": 1, "tree": {"array": 0}}'},
        "0": {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 1 << 43]},
    }
    text = json.dumps(header).encode()
    with pytest.raises(WireError):
        from_wire(struct.pack("<Q", len(text)) + text)
    with pytest.raises(WireError):
        from_wire(struct.pack("<Q", 1 << 60) + text)


def test_the_error_is_one_of_the_package_and_says_what_is_wrong():
    assert issubclass(WireError, SfumatoError)
    assert issubclass(WireError, ValueError)
    with pytest.raises(WireError, match=r"no plain data of kind 'nowhere\.Thing'"):
        from_wire(message({"record": "nowhere.Thing", "of": {}}))
    with pytest.raises(WireError, match="function"):
        to_wire(replace(Noisy(np.ones(1), 1.0), public=(len, np.sum)[:1]))


def test_modules_that_hold_no_records_are_not_imported():
    """A message that names a command or a picture is refused before anything is loaded for it."""
    program = """
import sys
from sfumato.wire import WireError, from_wire
before = set(sys.modules)
for sent in sys.argv[1:]:
    try:
        from_wire(bytes.fromhex(sent))
    except WireError:
        print("refused")
print(sorted(name for name in set(sys.modules) - before if name.startswith("sfumato")))
"""
    names = ("cli.complete.X", "report.figures.X", "papers.wei.X", "auditing.audit.X", "demo.X")
    sent = [message({"record": name, "of": {}}).hex() for name in names]
    command = [sys.executable, "-c", program, *sent]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["refused"] * len(names) + ["[]"]
