"""Model folders: what is written, what is refused, and that the old model survives a failure."""

import json
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from sfumato import store
from sfumato.errors import ModelFileError

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
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]
    json.loads((folder / "model.json").read_text(encoding="utf-8"))
    data = (folder / "model.safetensors").read_bytes()
    header = int.from_bytes(data[:8], "little")
    assert set(json.loads(data[8 : 8 + header])) >= {"factor_0", "factor_1", "factor_2", "bias_0"}
    assert b"numpy.core" not in data


def edit(folder, **changes):
    path = folder / "model.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**description, **changes}), encoding="utf-8")


def cut(folder, name, keep):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * keep)])


DAMAGE = {
    "tensors cut off": (lambda f: cut(f, "model.safetensors", 0.7), "checksum differs"),
    "tensors empty": (lambda f: cut(f, "model.safetensors", 0), "checksum differs"),
    "tensors gone": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors cannot be read"),
    "json cut off": (lambda f: cut(f, "model.json", 0.7), "damaged or cut off"),
    "json empty": (lambda f: cut(f, "model.json", 0), "damaged or cut off"),
    "json not text": (lambda f: (f / "model.json").write_bytes(b"\xff\xfe"), "damaged or cut off"),
    "json gone": (lambda f: (f / "model.json").unlink(), "not a sfumato model"),
    "json of others": (lambda f: (f / "model.json").write_text("[1]"), "not written by sfumato"),
    "later version": (lambda f: edit(f, format=99), "format 99, this version of sfumato reads 1"),
    "no modes": (lambda f: edit(f, modes=[]), "damaged"),
    "wrong mode": (lambda f: edit(f, modes=[{"name": "a"}] * 3), "damaged"),
    "wrong bounds": (lambda f: edit(f, bounds=[5, 1]), "damaged"),
    "unknown kind": (lambda f: edit(f, kind="Forest"), "Forest"),
    "unknown setting": (lambda f: edit(f, settings={"colour": "red"}), "colour"),
    "no notes": (lambda f: edit(f, notes={}), "solver"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damage_is_named(saved, damage):
    _, folder = saved
    harm, message = DAMAGE[damage]
    harm(folder)
    with pytest.raises(ModelFileError, match=message):
        sf.load(folder)


def test_factors_of_another_model_are_noticed(saved, tmp_path):
    _, folder = saved
    other = sf.CP(rank=2, solver=sf.ALS(sweeps=1, ridge=1.0), seed=2).fit(TENSOR).save(tmp_path / "b")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ModelFileError, match="belongs to another model"):
        sf.load(folder)


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
    pass


def fail_to_write(monkeypatch, folder):
    def write_bytes(self, *args, **kwargs):
        raise DiskFull

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def fail_to_sync(monkeypatch, folder):
    def sync(path):
        raise DiskFull

    monkeypatch.setattr(store, "_sync", sync)


def fail_to_rename(number):
    """The move of the old folder is the first rename, that of the new one the second."""

    def install(monkeypatch, folder):
        rename, calls = Path.rename, []

        def counted(self, target):
            calls.append(target)
            if len(calls) == number:
                raise DiskFull
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", counted)

    return install


@pytest.mark.parametrize("fail", [fail_to_write, fail_to_sync, fail_to_rename(1), fail_to_rename(2)])
def test_after_a_failure_the_old_model_is_there_and_nothing_else(saved, monkeypatch, fail):
    model, folder = saved
    newer = sf.CP(rank=2, solver=sf.ALS(sweeps=1, ridge=1.0), seed=9).fit(TENSOR)
    with monkeypatch.context() as patch:
        fail(patch, folder)
        with pytest.raises(DiskFull):
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


def test_an_empty_folder_may_be_used(saved, tmp_path):
    model, _ = saved
    (tmp_path / "empty").mkdir()
    sf.load(model.save(tmp_path / "empty"))
