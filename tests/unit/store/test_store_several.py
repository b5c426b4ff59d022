"""Folders of private fits of several relations."""

import json

import numpy as np
import pytest

import sfumato as sf
from sfumato.store import guarantee_of

USERS = [f"secret-{n}" for n in range(12)]


@pytest.fixture(scope="module")
def fitted():
    g = np.random.default_rng(0)
    labels = np.array(USERS, object)
    modes = {"user": sf.Mode("user", 12, labels), "item": sf.Mode("item", 6), "tag": sf.Mode("tag", 5)}

    def table(second):
        size = modes[second].size
        cells = np.stack(np.unravel_index(g.choice(12 * size, 40, False), (12, size)))
        return sf.SparseTensor(
            cells, g.normal(3, 1, 40).clip(1, 5), (modes["user"], modes[second]), (1, 5)
        )

    tensors = {"ratings": table("item"), "tags": table("tag")}
    public = sf.Public(labels={"item": range(6), "tag": range(5)}, units=20)
    privacy = sf.Privacy(5.0, 1e-5, unit="user", public=public, seed=1)
    return sf.Coupled(privacy=privacy).fit(tensors), tensors


def test_a_saved_fit_predicts_the_same(fitted, tmp_path):
    model, tensors = fitted
    model.save(tmp_path / "model", force=True)
    again = sf.load(tmp_path / "model")
    for name, tensor in tensors.items():
        assert np.array_equal(again.predict(name, tensor), model.predict(name, tensor))
    assert again.guarantee_ == model.guarantee_ == guarantee_of(tmp_path / "model")
    assert again.factor("item", "ratings").shape[0] == 6


def test_a_release_says_nothing_of_owners(fitted, tmp_path):
    model, tensors = fitted
    model.release(tmp_path / "release", force=True)
    for path in (tmp_path / "release").iterdir():
        assert b"secret-" not in path.read_bytes()
    again = sf.load(tmp_path / "release")
    with pytest.raises(sf.SettingError, match="stay with their owners"):
        again.predict("ratings", tensors["ratings"])
    shapes = {name: array for name, array in _arrays(model).items() if "factor_0" in name}
    assert not shapes  # the user's mode is the first of both


def _arrays(model):
    from safetensors.numpy import load

    return load(model.release_files(force=True)["model.safetensors"])


def test_seeded_noise_and_open_models_are_not_released(fitted, tmp_path):
    model, tensors = fitted
    with pytest.raises(sf.ReleaseError):
        model.release(tmp_path / "release")
    with pytest.raises(sf.ReleaseError):
        sf.Coupled(2).fit(tensors).release(tmp_path / "release")
    assert not (tmp_path / "release").exists()


def test_rows_of_another_release_are_refused(fitted, tmp_path):
    model, tensors = fitted
    other = sf.Coupled(privacy=model.privacy, seed=3).fit({"tags": tensors["tags"], **tensors})
    model.save(tmp_path / "one", force=True)
    other.save(tmp_path / "two", force=True)
    (tmp_path / "one" / "owner").rename(tmp_path / "kept")
    (tmp_path / "two" / "owner").rename(tmp_path / "one" / "owner")
    with pytest.raises(sf.ModelFileError):
        sf.load(tmp_path / "one")


@pytest.mark.parametrize("seed", range(25))
def test_damage_is_told_and_never_followed(fitted, tmp_path, seed):
    """Changed JSON with a manifest that fits it: whatever is wrong is said in words."""
    from sfumato.store.manifest import manifest_of

    model, _ = fitted
    model.release(tmp_path / "release", force=True)
    folder, g = tmp_path / "release", np.random.default_rng(seed)
    about = json.loads((folder / "model.json").read_text())
    part = about["relations"][int(g.integers(len(about["relations"])))]
    key = str(g.choice(list(part)))
    value = [None, -1, "x", [], {}, 1e300, [[1]], True][int(g.integers(8))]
    if g.random() < 0.3:
        del part[key]
    else:
        part[key] = value
    (folder / "model.json").write_text(json.dumps(about))
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    (folder / "manifest.json").write_bytes(manifest_of(files))
    try:
        loaded = sf.load(folder)
    except sf.ModelFileError:
        return
    assert set(loaded.relations_) <= {"ratings", "tags", "x"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("at", 10**6),
        ("at", -1),
        ("times", 50),
        ("ridge", 0),
        ("reach", -1.0),
        ("longest", "x"),
        ("strength", None),
        ("sources", []),
        ("sources", [{"relation": 0, "clip": 1.0}]),
        ("sources", [{"relation": 2, "clip": 1.0}]),
        ("sources", [{"relation": 1, "clip": 0.0}]),
        ("sources", [{"relation": 1, "clip": 1.0}] * 2),
    ],
)
def test_own_means_that_do_not_fit_are_refused(fitted, tmp_path, key, value):
    from sfumato.store.manifest import manifest_of

    model, _ = fitted
    folder = model.release(tmp_path / "release", force=True)
    about = json.loads((folder / "model.json").read_text())
    (means,) = [part["own_means"] for part in about["relations"] if "own_means" in part]
    means[key] = value
    (folder / "model.json").write_text(json.dumps(about))
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    (folder / "manifest.json").write_bytes(manifest_of(files))
    with pytest.raises(sf.ModelFileError):
        sf.load(folder)
