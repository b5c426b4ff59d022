"""Saving over an older model: killed at any step, there is a whole one, and the next save cleans up."""

import os
import shutil
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.io import folders
from sfumato.data.tensor import Mode
from sfumato.errors import ModelFileError
from sfumato.store import check_destination, load_model, save_private

SPAWN = get_context("spawn")
RATINGS = sf.SparseTensor(
    np.array([[0, 0, 1, 2, 2], [0, 1, 0, 1, 2]]),
    np.array([1.0, 2.0, 4.0, 5.0, 3.0]),
    (
        Mode("user", 3, np.array(["ann", "bob", "cat"], object)),
        Mode("item", 3, np.array(["x", "y", "z"], object)),
    ),
    bounds=(1, 5),
)


def fitted():
    public = sf.Public(labels={"user": ["ann", "bob", "cat"], "item": ["x", "y", "z"]}, entries=5)
    privacy = sf.Privacy(3.0, 1e-3, unit="user", public=public)
    return sf.Biases(privacy=privacy).fit(RATINGS)


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Folders of two fits, whose noise tells them apart."""
    folder = tmp_path_factory.mktemp("models")
    return fitted().save(folder / "old"), fitted().save(folder / "new")


def mean_of(folder):
    return sf.load(folder).model_.mean


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# -- killed ---------------------------------------------------------------------------------------


def killed_saves(*args):
    """Folders in which a save was killed, each before another step."""
    script = Path(__file__).with_name("killed_saves.py")
    command = [sys.executable, str(script), *map(str, args)]
    steps = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert steps > 10
    return [args[1] / str(step) for step in range(steps)]


@pytest.mark.parametrize("how", ["exchange", "renames"])
def test_killed_at_any_step_there_is_a_whole_model(pair, tmp_path, how):
    old, new = pair
    found = set()
    for place in killed_saves(new, tmp_path, how, old):
        found.add(mean_of(place / "model"))
        save_private(load_model(new), place / "model")
        assert mean_of(place / "model") == mean_of(new)
        assert names(place) == ["model"]
    assert found == {mean_of(old), mean_of(new)}


def test_killed_before_the_first_model_is_there_nothing_is(pair, tmp_path):
    old, new = pair
    for place in killed_saves(new, tmp_path, "exchange"):
        if (place / "model").exists():
            assert mean_of(place / "model") == mean_of(new)
        save_private(load_model(old), place / "model")
        assert names(place) == ["model"]


def test_an_old_model_that_was_moved_aside_is_put_back_by_loading(pair, tmp_path):
    work = tmp_path / ".model.saving-abcdefgh"
    shutil.copytree(pair[0], work / "old")
    shutil.copytree(pair[1], work / "new")
    assert mean_of(tmp_path / "model") == mean_of(pair[0])
    assert names(tmp_path) == ["model"]


def test_where_two_folders_cannot_change_places(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "exchanged", lambda *_: False)
    for folder in pair:
        save_private(load_model(folder), tmp_path / "model")
        assert mean_of(tmp_path / "model") == mean_of(folder)
        assert names(tmp_path) == ["model"]


def test_here_two_folders_change_places(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    if not folders.exchanged(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system has no renameat2, or its file system no exchange")
    assert names(tmp_path / "a") == ["b.txt"]
    assert names(tmp_path / "b") == ["a.txt"]
    with pytest.raises(FileNotFoundError):
        folders.exchanged(tmp_path / "a", tmp_path / "none")


# -- leftovers ------------------------------------------------------------------------------------


def save_slowly(source, target, begun, go_on):
    stored = load_model(source)
    write = Path.write_bytes

    def slow(*args):
        begun.set()
        go_on.wait(60)
        return write(*args)

    Path.write_bytes = slow
    save_private(stored, target)


def test_what_a_living_process_writes_is_left_alone(pair, tmp_path):
    begun, go_on = SPAWN.Event(), SPAWN.Event()
    child = SPAWN.Process(target=save_slowly, args=(pair[0], tmp_path / "model", begun, go_on))
    child.start()
    assert begun.wait(60)
    (tmp_path / ".model.saving-00000000").mkdir()  # of one that lives no more
    save_private(load_model(pair[1]), tmp_path / "model")
    assert len(names(tmp_path)) == 2
    assert mean_of(tmp_path / "model") == mean_of(pair[1])
    go_on.set()
    child.join()
    assert child.exitcode == 0
    assert mean_of(tmp_path / "model") == mean_of(pair[0])
    assert names(tmp_path) == ["model"]


def test_nothing_else_is_taken_for_a_leftover(pair, tmp_path):
    others = [".model.saving-", ".model.saving-b.saving-12345678", "model.saving-12345678", ".mode"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".model.saving-12345678").write_text("a file")
    save_private(load_model(pair[0]), tmp_path / "model")
    assert names(tmp_path) == sorted([*others, ".model.saving-12345678", "model"])


def test_a_model_that_is_being_replaced_is_not_moved(pair, tmp_path):
    import fcntl

    work = tmp_path / ".model.saving-abcdefgh"
    shutil.copytree(pair[0], work / "old")
    handle = os.open(work, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(ModelFileError, match="being replaced at this moment"):
        sf.load(tmp_path / "model")
    os.close(handle)
    assert mean_of(tmp_path / "model") == mean_of(pair[0])


# -- where to -------------------------------------------------------------------------------------


def test_owners_rows_are_for_nobody_else(pair):
    assert (pair[0] / "owner").stat().st_mode & 0o777 == 0o700


def test_a_link_leads_to_the_folder_that_is_replaced(pair, tmp_path):
    shutil.copytree(pair[0], tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save_private(load_model(pair[1]), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert mean_of(tmp_path / "real") == mean_of(pair[1])


def test_a_destination_is_tried_by_writing(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    for folder in (tmp_path / "model", tmp_path / "not" / "yet" / "there"):
        check_destination(folder)
    assert len(synced) == 2
    assert min(synced) >= 4096
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("file", "is a file; name a folder"),
        ("file/model", "Not a directory"),
        ("loop/model", "no folder"),
        ("loop", "no folder"),
        ("x" * 250, "File name too long"),
        ("/", "where a disk is mounted"),
        ("/proc/model", "cannot be written"),
    ],
)
def test_a_destination_that_cannot_be(tmp_path, where, message):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelFileError, match=message):
        check_destination(tmp_path / where)


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(28, "No space left")]
)
def test_a_destination_without_right_or_room(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        ModelFileError, match=f"cannot be written: {error.strerror}; name another folder"
    ):
        check_destination(tmp_path / "model")
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_destination_that_is_read_only(pair, tmp_path):
    shutil.copytree(pair[0], tmp_path / "model")
    for shut in (tmp_path / "model", tmp_path):
        shut.chmod(0o555)
        with pytest.raises(ModelFileError, match="Permission denied"):
            check_destination(tmp_path / "model")
        shut.chmod(0o755)


@pytest.mark.parametrize("where", ["model/release", "model/owner", "alone"])
def test_no_model_is_put_where_a_release_is(pair, tmp_path, where):
    """Rows of owners would come to lie in what is handed out."""
    shutil.copytree(pair[0], tmp_path / "model")
    shutil.copytree(pair[0] / "release", tmp_path / "alone")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused = "is a release, to be handed out" if where == "alone" else "is a part of the model in"
    with pytest.raises(ModelFileError, match=refused):
        check_destination(tmp_path / where)
    with pytest.raises(ModelFileError, match=refused):
        fitted().save(tmp_path / where)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    fitted().release(tmp_path / "alone")  # another release may take its place


def test_components_take_the_place_of_earlier_ones(tmp_path):
    check_destination(tmp_path / "found")
    privacy = sf.Privacy(5.0, 1e-6, unit=sf.TensorEntry(0.1))
    components = sf.PowerMethod(1, restarts=2, iterations=2, privacy=privacy).fit(np.ones((3, 3, 3)))
    components.save(tmp_path / "found")
    check_destination(tmp_path / "found", in_parts=False)
