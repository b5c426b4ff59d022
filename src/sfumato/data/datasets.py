"""Public data sets for examples, tests and benchmarks.

Each is looked for in the folder named by the environment variable ``SFUMATO_DATA``, then in the
user's cache; what is missing is downloaded into the cache where that is allowed, and its checksum
compared. The folder has subfolders ``ml-100k``, ``ml-1m``, ``uclaf`` and ``mnist``.

Examples
--------
>>> import sfumato as sf
>>> train, test = sf.datasets.movielens("100k").split(0.2)
>>> sf.Biases().fit(train).rmse(test) < 0.96
True
"""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from sfumato.data.io.labels import check_bin
from sfumato.data.io.read import labels_of, read
from sfumato.data.tensor import Mode, SparseTensor, locate
from sfumato.errors import DataError, SettingError

_LOG = logging.getLogger(__name__)

_MOVIELENS_URL = "https://files.grouplens.org/datasets/movielens/"
_MOVIELENS_MD5 = {
    "ml-100k": "0e33842e24a9c977be4e0107933c0723",
    "ml-1m": "c4d9eecfca2ab87c1945afe126590906",
}
_MOVIELENS_LICENCE = (
    "GroupLens allows the use of MovieLens data for research, with acknowledgement; it may be "
    "neither redistributed nor used commercially without permission"
)
_RATING_BOUNDS = (1.0, 5.0)
_RATING_COLUMNS = ["user", "item", "rating", "time"]

_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}

_UCLAF_FILE = "aaai10.uclaf.data.mat"


# -- MovieLens ----------------------------------------------------------------------------------


def movielens(size: str = "100k", *, time: str | None = None) -> SparseTensor:
    """MovieLens ratings from 1 to 5, by user and item, and by time bin if ``time`` names one.

    ``size`` is "100k" (943 users, 1,682 items) or "1m" (6,040 users, 3,706 items). ``time`` is
    "hour", "day", "week" or "month"; the third mode has that name. Labels are the numbers in the
    files.

    GroupLens allows use for research, with acknowledgement: F. M. Harper and J. A. Konstan, "The
    MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015. The data may be neither
    redistributed nor used commercially without permission.

    Parameters
    ----------
    size : str
        "100k" or "1m".
    time : str or None
        "hour", "day", "week" or "month"; None leaves times out.

    Returns
    -------
    SparseTensor
        With bounds from 1 to 5.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.datasets.movielens("100k", time="week")
    SparseTensor(user 943 x item 1,682 x week 32; 100,000 entries, density
        0.00197, float64, values in [1, 5])
    """
    if size not in ("100k", "1m"):
        raise SettingError(f"unknown MovieLens size {size!r}: use 100k or 1m")
    if size == "100k":
        return _tensor(_ratings(_movielens_files("ml-100k", ["u.data"]) / "u.data", time), time)
    folder = _movielens_files("ml-1m", ["ratings.dat"], ["ratings.npz"])
    if (folder / "ratings.dat").exists():
        return _tensor(_ratings(folder / "ratings.dat", time), time)
    if time is not None:
        raise DataError(f"{folder / 'ratings.npz'} has no times: put GroupLens' ratings.dat beside it")
    with np.load(folder / "ratings.npz") as arrays:
        columns = {"user": arrays["user"], "item": arrays["movie"], "rating": arrays["rating"]}
    return _tensor(pa.table(columns), None)


def movielens_split(
    size: str = "100k", split: str = "ua", *, time: str | None = None
) -> tuple[SparseTensor, SparseTensor]:
    """GroupLens' own train and test ratings: split "ua" or "ub", ten test ratings for each user.

    Both have the modes of all ratings, hence the same shape. See :func:`movielens`.

    Parameters
    ----------
    size, time : str or None
        As of :func:`movielens`.
    split : str
        "ua" or "ub".

    Returns
    -------
    tuple of two SparseTensor
        Train and test.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.datasets.movielens_split("100k", "ua")
    >>> train.n_entries, set(test.counts("user").tolist())
    (90570, {10})
    """
    if size != "100k" or split not in ("ua", "ub"):
        raise SettingError(f"MovieLens 100k has the splits ua and ub; got {size!r}, {split!r}")
    names = ["u.data", f"{split}.base", f"{split}.test"]
    folder = _movielens_files("ml-100k", names)
    modes = _tensor(_ratings(folder / "u.data", time), time).modes
    train, test = (_part(_ratings(folder / name, time), modes) for name in names[1:])
    return train, test


def _movielens_files(dataset: str, *choices: Sequence[str]) -> Path:
    folder = _local_folder(dataset, *choices)
    if folder is None:
        import pooch

        archive = f"{dataset}.zip"
        _LOG.info("%s: %s", archive, _MOVIELENS_LICENCE)
        _download(dataset, archive, _MOVIELENS_URL, _MOVIELENS_MD5[dataset], pooch.Unzip(None, "."))
        folder = _local_folder(dataset, *choices)
    if folder is None:
        raise DataError(f"{dataset}.zip was downloaded but lacks {', '.join(choices[0])}")
    return folder


def _ratings(path: Path, time: str | None) -> pa.Table:
    """A ratings file, its column of times named after the bin."""
    if time is not None:
        check_bin(time)
    text = path.read_bytes().replace(b"::", b"\t")
    table = pacsv.read_csv(
        pa.BufferReader(text),
        pacsv.ReadOptions(column_names=_RATING_COLUMNS),
        pacsv.ParseOptions(delimiter="\t"),
    )
    return table if time is None else table.rename_columns([*_RATING_COLUMNS[:3], time])


def _tensor(table: pa.Table, time: str | None) -> SparseTensor:
    modes = ["user", "item"] if time is None else ["user", "item", time]
    bins = None if time is None else {time: time}
    return read(table, modes, "rating", bounds=_RATING_BOUNDS, bins=bins)


def _part(table: pa.Table, modes: Sequence[Mode]) -> SparseTensor:
    coordinates = locate(modes, labels_of(table, modes))
    values = table.column("rating").to_numpy().astype(np.float64)
    return SparseTensor(coordinates, values, tuple(modes), _RATING_BOUNDS)


# -- UCLAF --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uclaf:
    """The UCLAF data: how often users did activities at locations, and what else is known.

    Parameters
    ----------
    tensor : SparseTensor
        The counts.
    user_location, location_feature, user_user, activity_activity : array
        Side matrices, dense.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.datasets.uclaf().location_feature.shape
    (168, 14)
    """

    tensor: SparseTensor
    user_location: NDArray[Any]
    location_feature: NDArray[Any]
    user_user: NDArray[Any]
    activity_activity: NDArray[Any]


def uclaf() -> Uclaf:
    """User x location x activity counts, 164 x 168 x 5, with four side matrices.

    The file holds dense counts. The tensor has the 1,436 that are not zero: a zero says that
    nothing was noted, not that nothing was done. Levels are numbered from 0.

    V. W. Zheng, B. Cao, Y. Zheng, X. Xie and Q. Yang, "Collaborative filtering meets mobile
    recommendation: a user-centered approach", AAAI 2010. It is not downloaded: the file has to be
    put in place.

    Returns
    -------
    Uclaf
        The tensor and its side matrices.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.datasets.uclaf().tensor
    SparseTensor(user 164 x location 168 x activity 5; 1,436 entries, density
        0.0104, float64)
    """
    folder = _local_folder("uclaf", [_UCLAF_FILE])
    if folder is None:
        raise DataError(
            f"UCLAF is not downloaded by sfumato. Get {_UCLAF_FILE} from its authors and set "
            f"SFUMATO_DATA to a folder that holds uclaf/{_UCLAF_FILE}. {_places('uclaf')}"
        )
    import scipy.io

    content = scipy.io.loadmat(folder / _UCLAF_FILE)
    counts = content["UserLocAct"]
    names = ("user", "location", "activity")
    modes = tuple(Mode(name, n) for name, n in zip(names, counts.shape, strict=True))
    cells = np.nonzero(counts)
    return Uclaf(
        SparseTensor(np.stack(cells), counts[cells].astype(np.float64), modes),
        content["UserLoc"],
        content["LocFea"],
        content["UserUser"],
        content["ActAct"],
    )


# -- MNIST --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mnist:
    """Handwritten digits: images of 28 x 28 grey levels from 0 to 255, and which digit each is.

    Parameters
    ----------
    train_images, test_images : array
        A picture in every plane.
    train_labels, test_labels : array
        Digits.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.datasets.mnist().test_labels[:5]
    array([7, 2, 1, 0, 4], dtype=uint8)
    """

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


def mnist() -> Mnist:
    """The 60,000 training and 10,000 test images of MNIST (Y. LeCun, C. Cortes, C. Burges).

    Returns
    -------
    Mnist
        The images and what is on them.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.datasets.mnist().train_images.shape
    (60000, 28, 28)
    """
    folder = _local_folder("mnist", list(_MNIST_MD5))
    if folder is None:
        folder = _cache() / "mnist"
        for name, md5 in _MNIST_MD5.items():
            _download("mnist", f"mnist/{name}", _MNIST_URL, md5)
    return Mnist(*(_read_idx(folder / name) for name in _MNIST_MD5))


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes in the idx format: two zeros, type 8, the number of dimensions, each."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    dimensions = content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], ">u4").astype(int)
    if not dimensions or len(content) != start + shape.prod():
        raise DataError(f"{path} is not an idx file of bytes, or is damaged")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# -- finding and downloading --------------------------------------------------------------------


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("sfumato"))


def _local_folder(dataset: str, *choices: Sequence[str]) -> Path | None:
    """The first folder that holds all files of one of the choices."""
    given = os.environ.get("SFUMATO_DATA")
    for root in [*([Path(given)] if given else []), _cache()]:
        folder = root / dataset
        if any(all((folder / name).is_file() for name in names) for names in choices):
            return folder
    return None


def _download(dataset: str, file: str, url: str, md5: str, processor: Any = None) -> None:
    import pooch

    target = _cache() / file
    url += target.name
    try:
        pooch.retrieve(url, f"md5:{md5}", target.name, target.parent, processor)
    except (OSError, ValueError) as error:
        example = {"mnist": "mnist/train-images-idx3-ubyte.gz", "ml-1m": "ml-1m/ratings.dat"}
        raise DataError(
            f"{dataset} is not here and {url} could not be downloaded: {error}. Set SFUMATO_DATA "
            f"to a folder that holds {example.get(dataset, 'ml-100k/u.data')}. {_places(dataset)}"
        ) from error


def _places(dataset: str) -> str:
    given = os.environ.get("SFUMATO_DATA")
    places = [f"{given}/{dataset}" if given else "no SFUMATO_DATA (unset)", str(_cache() / dataset)]
    return f"Looked in {' and '.join(places)}"
