"""Model folders: what is written, what is refused, and that the old model survives a failure."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from model_folders import as_of_format_1, cut, edit, sealed
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import sfumato as sf
from sfumato.data.io import folders
from sfumato.errors import ModelFileError, SettingError
from sfumato.store import replacing

TENSOR = sf.synthetic.cp((8, 7, 6), 2, entries=200, seed=0).tensor
ESTIMATORS = {
    "cp": sf.CP(rank=2, solver=sf.ALS(sweeps=2, ridge={"mode0": 2.0}, prior_mean={"mode2": 1.0})),
    "tucker": sf.Tucker(ranks=(2, 3, 1), solver=sf.MinibatchSGD(passes=2)),
    "biases": sf.Biases(ridge=2.0),
}


@pytest.fixture
def saved(tmp_path):
    model = sf.CP(rank=2, solver=sf.ALS(sweeps=1, ridge=1.0), seed=1).fit(TENSOR)
    return model, model.save(tmp_path / "model")


@pytest.mark.parametrize("kind", list(ESTIMATORS))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_predictions_survive_bit_by_bit(kind, dtype, tmp_path):
    model = ESTIMATORS[kind].set_params(dtype=dtype).fit(TENSOR)
    again = sf.load(model.save(tmp_path / "deep" / "model"))
    assert type(again) is type(model)
    before, after = model.predict(TENSOR), again.predict(TENSOR)
    assert before.dtype == after.dtype == dtype
    np.testing.assert_array_equal(before, after)
    assert again.modes_ == model.modes_
    assert again.history_ == model.history_
    assert again.n_entries_ == model.n_entries_
    settings, kept = again.get_params(), model.get_params()
    for name in set(kept) - {"dtype", "ranks"}:
        assert settings[name] == kept[name], name
    if kind == "tucker":
        assert tuple(settings["ranks"]) == (2, 3, 1)


def test_labels_bins_and_bounds_survive(tmp_path):
    times = ["1998-04-02", "1998-04-02T13:00:00", "1998-04-09", "1998-04-20"]
    table = {
        "who": ["é", "b", "é", "b"],
        "item": [10, -3, 10, -3],
        "time": times,
        "x": [1.0, 5.0, 2.0, 3.0],
    }
    import pyarrow as pa

    tensor = sf.read(pa.table(table), ["who", "item", "time"], "x", bounds=(0, 5), bins={"time": "week"})
    model = sf.Biases().fit(tensor)
    again = sf.load(model.save(tmp_path / "m"))
    assert again.bounds_ == (0.0, 5.0)
    assert again.modes_ == tensor.modes
    assert [mode.bin for mode in again.modes_] == [None, None, "week"]
    labels = {"who": "é", "item": -3, "time": "1998-W15"}
    assert again.predict(**labels) == model.predict(**labels)


def test_settings_may_be_numpy_numbers(tmp_path):
    solver = sf.ALS(sweeps=np.int64(1), ridge=np.float64(2.0))
    model = sf.CP(rank=np.int64(2), solver=solver).fit(TENSOR)
    again = sf.load(model.save(tmp_path / "m"))
    assert (again.rank, again.solver) == (2, sf.ALS(sweeps=1, ridge=2.0))


def test_no_pickle_is_written(saved):
    _, folder = saved
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "model.json",
        "model.safetensors",
    ]
    json.loads((folder / "model.json").read_text(encoding="utf-8"))
    data = (folder / "model.safetensors").read_bytes()
    header = int.from_bytes(data[:8], "little")
    assert set(json.loads(data[8 : 8 + header])) >= {"factor_0", "factor_1", "factor_2", "bias_0"}
    assert b"numpy.core" not in data


# -- what is refused ------------------------------------------------------------------------------


def with_tensors(folder, **changes):
    """Other arrays, and a manifest that says so; None leaves one out."""
    path = folder / "model.safetensors"
    tensors = load_tensors(path.read_bytes()) | changes
    path.write_bytes(save_tensors({name: a for name, a in tensors.items() if a is not None}))
    return sealed(folder)


def retyped(folder, dtype, width):
    """Arrays of a type that NumPy may not even have."""
    path = folder / "model.safetensors"
    tensors = load_tensors(path.read_bytes())
    header, end = {}, 0
    for name, array in tensors.items():
        begin, end = end, end + array.size * width
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return sealed(folder)


def deep(folder, name, text):
    (folder / name).write_text(text)
    return sealed(folder)


def fifo(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)


def huge(folder, name):
    """A file that says to be larger than any memory, and takes no room."""
    with open(folder / name, "wb") as file:
        file.truncate(1 << 43)


MODE = {"name": "a", "size": 8, "bin": None, "labels": None}
DAMAGE = {
    "tensors cut off": (lambda f: cut(f, "model.safetensors", 0.7), "was cut off or edited"),
    "tensors empty": (lambda f: cut(f, "model.safetensors", 0), "was cut off or edited"),
    "tensors gone": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "tensors none": (lambda f: sealed(cut(f, "model.safetensors", 0)), "model.safetensors is damaged"),
    "json cut off": (lambda f: sealed(cut(f, "model.json", 0.7)), "damaged or cut off"),
    "json empty": (lambda f: sealed(cut(f, "model.json", 0)), "damaged or cut off"),
    "json not text": (lambda f: (f / "model.json").write_bytes(b"\xff\xfe"), "damaged or cut off"),
    "json gone": (lambda f: (f / "model.json").unlink(), "model.json is missing"),
    "json of others": (lambda f: (f / "model.json").write_text("[1]"), "not written by sfumato"),
    "json too deep": (lambda f: deep(f, "model.json", "[" * 10**5 + "]" * 10**5), "nested too deeply"),
    "json with long numbers": (lambda f: deep(f, "model.json", "9" * 10**5), "damaged or cut off"),
    "later version": (lambda f: edit(f, format=99), "format 99, this version of sfumato reads 1 to 2"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "holds no manifest.json"),
    "manifest cut off": (lambda f: cut(f, "manifest.json", 0.9), "damaged or cut off"),
    "manifest rewritten": (
        lambda f: (f / "manifest.json").write_text((f / "manifest.json").read_text() + " "),
        "not as sfumato writes manifests",
    ),
    "manifest of others": (lambda f: (f / "manifest.json").write_text("[]"), "damaged"),
    "a file more": (lambda f: (f / "notes.txt").write_text("mine"), "holds notes.txt"),
    "older format in a newer folder": (lambda f: edit(f, format=1), "different formats"),
    "no modes": (lambda f: edit(f, modes=[]), "two modes or more"),
    "wrong mode": (lambda f: edit(f, modes=[{"name": "a"}] * 3), "damaged"),
    "modes of one name": (lambda f: edit(f, modes=[MODE] * 3), "same name"),
    "labels of no type": (
        lambda f: edit(f, modes=[{**MODE, "labels": [[]] * 8}] * 3),
        "neither all words",
    ),
    "labels beyond all numbers": (
        lambda f: edit(f, modes=[{**MODE, "labels": [*range(7), 10**30]}] * 3),
        "damaged",
    ),
    "half a level": (lambda f: edit(f, modes=[{**MODE, "size": 8.5}] * 3), "whole number"),
    "10**15 levels": (
        lambda f: edit(f, modes=[{**MODE, "name": n, "size": 10**15} for n in "abc"]),
        "fit",
    ),
    "wrong bounds": (lambda f: edit(f, bounds=[5, 1]), "damaged"),
    "bounds in words": (lambda f: edit(f, bounds=["1", "5"]), "a bound must be a finite number"),
    "unknown kind": (lambda f: edit(f, kind="Forest"), "Forest"),
    "kind of no type": (lambda f: edit(f, kind=["CP"]), "damaged"),
    "unknown setting": (lambda f: edit(f, settings={"colour": "red"}), "colour"),
    "setting of another type": (lambda f: edit(f, settings={"rank": "two"}), "rank of its settings"),
    "no such fallback": (lambda f: edit(f, settings={"unseen": "guess"}), "unseen must be"),
    "no notes": (lambda f: edit(f, notes={}), "solver"),
    "no structure": (lambda f: edit(f, structure="forest"), "damaged"),
    "ranks of another model": (lambda f: edit(f, ranks=[3, 3, 3]), "does not fit"),
    "too few ranks": (lambda f: edit(f, ranks=[2]), "3 modes and 1 ranks"),
    "mean in words": (lambda f: edit(f, mean="3"), "the mean must be a finite number"),
    "mean that is none": (lambda f: edit(f, mean=float("nan")), "the mean must be a finite number"),
    "local rows without privacy": (lambda f: edit(f, local=0), "private fit alone"),
    "NaN": (lambda f: with_tensors(f, bias_0=np.full(8, np.nan)), "bias_0 holds numbers that are not"),
    "half precision": (lambda f: with_tensors(f, factor_0=np.ones((8, 2), np.float16)), "type F16"),
    "whole numbers": (
        lambda f: with_tensors(f, factor_0=np.ones((8, 2), np.int64)),
        "not all of float64",
    ),
    "two precisions": (lambda f: with_tensors(f, factor_0=np.ones((8, 2), np.float32)), "not all of"),
    "BF16": (lambda f: retyped(f, "BF16", 2), "type BF16"),
    "F8": (lambda f: retyped(f, "F8_E4M3", 1), "type F8_E4M3"),
    "a column for a matrix": (lambda f: with_tensors(f, factor_0=np.ones((8, 1))), "does not fit"),
    "biases that would be broadcast": (lambda f: with_tensors(f, bias_0=np.ones(1)), "does not fit"),
    "a factor less": (lambda f: with_tensors(f, factor_2=None), "factor_2"),
    "a rank of nothing": (
        lambda f: with_tensors(edit(f, ranks=[2**40] * 3), factor_0=np.empty((0, 2**40))),
        "does not fit",
    ),
    "a pipe for JSON": (lambda f: fifo(f, "model.json"), "model.json is not a regular file"),
    "a pipe for tensors": (lambda f: fifo(f, "model.safetensors"), "is not a regular file"),
    "a pipe for the manifest": (lambda f: fifo(f, "manifest.json"), "is not a regular file"),
    "huge tensors": (lambda f: huge(f, "model.safetensors"), "more than the"),
    "a huge manifest": (lambda f: huge(f, "manifest.json"), "more than the"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damage_is_named(saved, damage):
    _, folder = saved
    harm, message = DAMAGE[damage]
    harm(folder)
    with pytest.raises(ModelFileError, match=message):
        sf.load(folder)


def test_no_flipped_bit_goes_unnoticed(saved):
    _, folder = saved
    for file in folder.iterdir():
        content = file.read_bytes()
        for place in range(0, 8 * len(content), 61):
            flipped = bytearray(content)
            flipped[place // 8] ^= 1 << place % 8
            file.write_bytes(flipped)
            with pytest.raises(ModelFileError):
                sf.load(folder)
        file.write_bytes(content)
    sf.load(folder)


def test_factors_of_another_model_are_noticed(saved, tmp_path):
    _, folder = saved
    other = sf.CP(rank=2, solver=sf.ALS(sweeps=1, ridge=1.0), seed=2).fit(TENSOR).save(tmp_path / "b")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ModelFileError, match="its checksum differs"):
        sf.load(folder)


def test_the_same_files_have_the_same_manifest_which_says_nothing_else(saved):
    _, folder = saved
    manifest = (folder / "manifest.json").read_bytes()
    sealed(folder)
    assert (folder / "manifest.json").read_bytes() == manifest
    found = json.loads(manifest)
    assert found == {
        "format": 2,
        "files": {
            name: {
                "size": len((folder / name).read_bytes()),
                "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
            }
            for name in ("model.json", "model.safetensors")
        },
    }


def test_an_older_folder_loads_with_a_warning(saved):
    model, folder = saved
    as_of_format_1(folder)
    with pytest.warns(sf.OldFormatWarning, match="without a manifest"):
        again = sf.load(folder)
    np.testing.assert_array_equal(again.predict(TENSOR), model.predict(TENSOR))
    cut(folder, "model.safetensors", 0.7)
    with (
        pytest.warns(sf.OldFormatWarning),
        pytest.raises(ModelFileError, match="its checksum differs"),
    ):
        sf.load(folder)


def test_a_release_from_before_guarantees_said_who_is_trusted_loads(tmp_path):
    privacy = sf.Privacy(3, 1e-6, unit="value", method="bias")
    model = sf.Biases(privacy=privacy).fit(sf.prepare.clip(TENSOR, (-1, 1)))
    folder = model.release(tmp_path / "release")
    path = folder / "guarantee.json"
    written = json.loads(path.read_text("utf-8"))
    assert written.pop("trust").startswith("whoever holds the data")
    path.write_text(json.dumps(written), "utf-8")
    assert sf.load(sealed(folder)).guarantee_ == model.guarantee_


def test_what_is_no_folder(saved, tmp_path):
    model, folder = saved
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for name in ("loop", "file", "pipe", "none", "none/deeper", "file/deeper"):
        with pytest.raises(ModelFileError, match="there is no model folder"):
            sf.load(tmp_path / name)
    for wrong in (3, None, "a\0b"):
        with pytest.raises(SettingError, match="folder must be the path of a file or folder"):
            sf.load(wrong)
        with pytest.raises(SettingError, match="folder must be the path of a file or folder"):
            model.save(wrong)
    (tmp_path / "link").symlink_to(folder)
    sf.load(tmp_path / "link")
    (folder / "model.json").unlink()
    (folder / "model.json").symlink_to("model.json")
    with pytest.raises(ModelFileError, match="symbolic links"):
        sf.load(folder)
    (folder / "model.json").unlink()
    (folder / "model.json").mkdir()
    with pytest.raises(ModelFileError, match="not a regular file"):
        sf.load(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="not a sfumato model"):
        sf.load(tmp_path / "empty")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ModelFileError, match="there is no model folder"):
        sf.load(tmp_path / "none")


def test_a_newer_model_takes_the_place_of_the_older(saved):
    _, folder = saved
    newer = sf.CP(rank=2, solver=sf.ALS(sweeps=1, ridge=1.0), seed=9).fit(TENSOR)
    newer.save(folder)
    np.testing.assert_array_equal(sf.load(folder).predict(TENSOR), newer.predict(TENSOR))
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


class DiskFull(OSError):
    """What any step of a save may raise."""


def fail_to_write(monkeypatch, folder):
    def write_bytes(self, *args, **kwargs):
        raise DiskFull

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def fail_to_sync(monkeypatch, folder):
    def sync(path):
        raise DiskFull

    monkeypatch.setattr(replacing, "sync", sync)


def fail_to_exchange(monkeypatch, folder):
    def exchanged(one, other):
        raise DiskFull

    monkeypatch.setattr(folders, "exchanged", exchanged)


def fail_to_rename(number):
    """The move of the old folder is the first rename, that of the new one the second."""

    def install(monkeypatch, folder):
        rename, calls = os.rename, []

        def counted(*args):
            calls.append(args)
            if len(calls) == number:
                raise DiskFull
            return rename(*args)

        monkeypatch.setattr(folders, "exchanged", lambda *_: False)
        monkeypatch.setattr(os, "rename", counted)

    return install


@pytest.mark.parametrize(
    "fail", [fail_to_write, fail_to_sync, fail_to_exchange, fail_to_rename(1), fail_to_rename(2)]
)
def test_after_a_failure_the_old_model_is_there_and_nothing_else(saved, monkeypatch, fail):
    model, folder = saved
    newer = sf.CP(rank=2, solver=sf.ALS(sweeps=1, ridge=1.0), seed=9).fit(TENSOR)
    with monkeypatch.context() as patch:
        fail(patch, folder)
        with pytest.raises(sf.SaveError, match="still in memory: save it to another folder"):
            newer.save(folder)
    np.testing.assert_array_equal(sf.load(folder).predict(TENSOR), model.predict(TENSOR))
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("names", [["notes.txt"], ["model.json"], ["model.safetensors", "notes.txt"]])
def test_a_folder_with_something_else_is_left_alone(saved, tmp_path, names):
    model, _ = saved
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in names:
        (mine / name).write_text("keep me")
    with pytest.raises(ModelFileError, match="holds no model; name another folder"):
        model.save(mine)
    assert sorted(path.name for path in mine.iterdir()) == sorted(names)
    with pytest.raises(ModelFileError, match="is a file"):
        model.save(mine / names[0])


def test_a_file_beside_a_model_is_not_lost_with_it(saved):
    model, folder = saved
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ModelFileError, match=r"holds notes.txt beside a model, which would be lost"):
        model.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_an_empty_folder_may_be_used(saved, tmp_path):
    model, _ = saved
    (tmp_path / "empty").mkdir()
    sf.load(model.save(tmp_path / "empty"))
