"""Public data sets: their known sizes where the files are, and what is said where they are not."""

import gzip
import os
from pathlib import Path

import numpy as np
import pooch
import pytest

from sfumato.data.datasets import mnist, movielens, movielens_split, uclaf
from sfumato.errors import DataError, SettingError


@pytest.fixture
def needs():
    """Skips the test unless a file is in the data folder."""

    def check(file):
        root = os.environ.get("SFUMATO_DATA")
        if not root or not (Path(root) / file).exists():
            pytest.skip(f"{file} is not in the folder SFUMATO_DATA ({root or 'unset'})")

    return check


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty data folder, an empty cache and no network."""

    def refuse(*args, **options):
        raise ConnectionError("no network")

    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.setattr(pooch, "retrieve", refuse)
    return tmp_path


def test_movielens_100k(needs):
    needs("ml-100k/u.data")
    tensor = movielens("100k")
    assert tensor.shape == (943, 1682)
    assert tensor.n_entries == 100_000
    assert tensor.bounds == (1, 5)
    assert tensor.modes[0].labels.tolist() == list(range(1, 944))
    days = movielens("100k", time="day")
    assert days.shape == (943, 1682, 213)
    assert days.mode_names == ("user", "item", "day")
    assert days.modes[2].bin == "day"
    assert days.modes[2].label(0) == "1997-09-20"
    assert days.values.sum() == tensor.values.sum()


@pytest.mark.parametrize("split", ["ua", "ub"])
def test_movielens_split_shares_modes_and_covers_all(needs, split):
    needs(f"ml-100k/{split}.base")
    train, test = movielens_split("100k", split, time="day")
    whole = movielens("100k", time="day")
    assert train.modes == test.modes == whole.modes
    assert (train.n_entries, test.n_entries) == (90_570, 9_430)
    cells = np.concatenate([train.coordinates, test.coordinates], axis=1)
    order = np.lexsort(cells[::-1])
    np.testing.assert_array_equal(cells[:, order], whole.coordinates)
    assert np.all(test.counts("user") == 10)


def test_movielens_1m(needs):
    needs("ml-1m/ratings.npz")
    tensor = movielens("1m")
    assert tensor.shape == (6040, 3706)
    assert tensor.n_entries == 1_000_209


def test_uclaf(needs):
    needs("uclaf/aaai10.uclaf.data.mat")
    data = uclaf()
    assert data.tensor.shape == (164, 168, 5)
    assert data.tensor.n_entries == 1436
    assert data.tensor.mode_names == ("user", "location", "activity")
    assert data.user_location.shape == (164, 168)
    assert data.location_feature.shape == (168, 14)
    assert data.user_user.shape == (164, 164)
    assert data.activity_activity.shape == (5, 5)


def test_mnist(needs):
    needs("mnist/t10k-labels-idx1-ubyte.gz")
    data = mnist()
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.dtype == np.uint8
    assert data.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(data.train_labels).tolist()[:2] == [5923, 6742]


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (movielens, r"ml-100k.zip could not be downloaded: no network.*holds ml-100k/u.data"),
        (lambda: movielens("1m"), r"ml-1m.zip could not be downloaded.*holds ml-1m/ratings.dat"),
        (movielens_split, r"ml-100k.zip could not be downloaded"),
        (mnist, r"mnist/train-images-idx3-ubyte.gz could not be downloaded.*Set SFUMATO_DATA"),
        (uclaf, r"not downloaded by sfumato.*holds uclaf/aaai10.uclaf.data.mat"),
    ],
)
def test_offline_the_message_says_what_was_tried_and_what_to_do(offline, load, message):
    with pytest.raises(DataError, match=message) as caught:
        load()
    assert f"Looked in {offline}/data/" in str(caught.value)
    assert f"{offline}/cache" in str(caught.value)


def test_without_the_variable_the_message_says_so(offline, monkeypatch):
    monkeypatch.delenv("SFUMATO_DATA")
    with pytest.raises(DataError, match=r"Looked in no SFUMATO_DATA \(unset\) and"):
        uclaf()


def test_a_download_lands_in_the_cache_and_is_used(offline, monkeypatch):
    calls = []

    def retrieve(url, known_hash, fname, path, processor):
        calls.append((url, known_hash, fname))
        folder = Path(path) / "ml-100k"
        folder.mkdir(parents=True)
        (folder / "u.data").write_text("1\t2\t3\t0\n2\t2\t4\t86400\n")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert movielens(time="week").shape == (2, 1, 1)
    assert movielens().shape == (2, 1)
    url = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
    assert calls == [(url, "md5:0e33842e24a9c977be4e0107933c0723", "ml-100k.zip")]


def test_an_archive_without_the_file_is_noticed(offline, monkeypatch):
    monkeypatch.setattr(pooch, "retrieve", lambda *args: None)
    with pytest.raises(DataError, match=r"ml-100k.zip was downloaded but lacks u.data"):
        movielens()


def test_the_two_forms_of_movielens_1m(offline):
    folder = offline / "data" / "ml-1m"
    folder.mkdir(parents=True)
    np.savez(folder / "ratings.npz", user=[0, 1], movie=[3, 2], rating=[5, 4])
    assert [mode.labels.tolist() for mode in movielens("1m").modes] == [[0, 1], [2, 3]]
    with pytest.raises(DataError, match=r"has no times: put GroupLens' ratings\.dat"):
        movielens("1m", time="day")
    (folder / "ratings.dat").write_text("1::1193::5::978300760\n1::661::3::978302109\n")
    tensor = movielens("1m", time="day")
    assert [mode.labels.tolist() for mode in tensor.modes] == [[1], [661, 1193], ["2000-12-31"]]
    assert tensor.values.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: movielens("10m"), "unknown MovieLens size '10m'"),
        (lambda: movielens_split("1m"), "has the splits ua and ub; got '1m'"),
        (lambda: movielens_split("100k", "u1"), "got '100k', 'u1'"),
    ],
)
def test_choices_there_are_not(load, message):
    with pytest.raises(SettingError, match=message):
        load()


def test_unknown_time_bin(offline):
    folder = offline / "data" / "ml-100k"
    folder.mkdir(parents=True)
    (folder / "u.data").write_text("1\t2\t3\t0\n")
    with pytest.raises(SettingError, match="unknown time bin 'year'"):
        movielens(time="year")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x05abc", mtime=0), "is not an idx file"),
        (gzip.compress(b"PNG", mtime=0), "is not an idx file"),
        (b"not gzip", "cannot be read"),
    ],
)
def test_damaged_mnist(offline, content, message):
    folder = offline / "data" / "mnist"
    folder.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{part}-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        mnist()
