"""Shards on the command line: cutting tables, fitting what was cut, and what is refused with advice."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from command_line import run

import sfumato as sf
from sfumato.cli.shard import _memory

NAMES = ["user", "item", "day"]
COLUMNS = ["--modes", *NAMES, "--value", "rating"]
MEANT = {"modes": NAMES, "value": "rating", "bounds": (1.0, 5.0), "bins": {"day": "day"}}
READ = [*COLUMNS, "--bounds", "1", "5", "--bin", "day=day"]
QUICK = ["--rank", "2", "--rounds", "2"]
PRIVATE = ["--epsilon", "3", "--delta", "1e-6", "--unit", "entry", "--labels-are-public"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ratings as one CSV file, as three Parquet files, and as shards."""
    made = tmp_path_factory.mktemp("shards")
    tensor = sf.synthetic.ratings_like(30, 15, 6, 400)
    columns = {
        mode.name: mode.labels[levels]
        for mode, levels in zip(tensor.modes, tensor.coordinates, strict=True)
    }
    table = pa.table({**columns, "rating": tensor.values})
    pacsv.write_csv(table, made / "ratings.csv")
    for mode in tensor.modes[:2]:
        (made / f"{mode.name}s.txt").write_text("\n".join(mode.labels))
    (made / "parts").mkdir()
    for part in range(3):
        pq.write_table(table.slice(150 * part, 150), made / "parts" / f"{part}.parquet")
    assert run("shard", made / "ratings.csv", *READ, "--shards", 3, "--out", made / "cut").exit_code == 0
    return made


def completed_json(*words):
    result = run("complete", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# -- cutting --------------------------------------------------------------------------------------


def test_a_command_makes_the_shards_that_the_library_would(folder, tmp_path):
    words = [*READ, "--by", "item", "--shards", 4, "--dtype", "float32", "--out", tmp_path / "cut"]
    result = run("shard", folder / "parts", *words)
    assert result.exit_code == 0, result.stderr
    more = {"by": "item", "shards": 4, "dtype": "float32"}
    expected = sf.make_shards(folder / "parts", tmp_path / "expected", **MEANT, **more)
    found = sf.Shards(tmp_path / "cut")
    assert found.header == expected.header
    assert "400 entries in 4 shards by item, float32, bounds 1 to 5" in result.stdout
    assert f"fit it: sfumato complete {tmp_path / 'cut'} --out model" in result.stdout


def test_several_files_are_one_source(folder, tmp_path):
    parts = sorted((folder / "parts").iterdir())
    result = run("shard", *parts, *READ, "--out", tmp_path / "cut", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["entries"], found["by"], found["bounds"]) == (400, "user", [1.0, 5.0])
    sizes = sum(path.stat().st_size for path in (tmp_path / "cut").rglob("*.npy"))
    assert 400 * 20 < sizes < found["bytes"]
    one = sf.make_shards(folder / "ratings.csv", tmp_path / "one", **MEANT)
    np.testing.assert_array_equal(sf.Shards(tmp_path / "cut").whole().values, one.whole().values)


def test_labels_are_those_of_a_list(folder, tmp_path):
    labels = tmp_path / "items.txt"
    labels.write_text("\n".join(f"i{item:03}" for item in range(1, 41)))
    words = ["shard", folder / "ratings.csv", *READ, "--out", tmp_path / "cut"]
    result = run(*words, "--labels", f"item={labels}")
    assert result.exit_code == 0, result.stderr
    assert sf.Shards(tmp_path / "cut").shape[1] == 40
    labels.write_text("i001")
    refused = run(*words, "--force", "--labels", f"item={labels}")
    assert "--labels" in refused.stderr
    assert sf.Shards(tmp_path / "cut").shape[1] == 40


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 gib", 3 << 29),
        ("64kib", 1 << 16),
        ("70000", 70_000),
    ],
)
def test_memory_is_written_as_people_write_it(text, size):
    assert _memory(text) == size


def test_memory_bounds_a_shard(tmp_path):
    out = tmp_path / "cut"
    big = sf.synthetic.ratings_like(300, 60, 6, 5000)
    sf.write_completed(tmp_path / "big.csv", big.coordinates, big.values, big.modes, "rating")
    result = run("shard", tmp_path / "big.csv", *READ, "--memory", "64KiB", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert len(sf.Shards(out)) == 4  # of 32 bytes an entry in three quarters of the memory
    refused = run("shard", tmp_path / "big.csv", *READ, "--memory", "1KB", "--out", tmp_path / "no")
    assert "--memory must be a whole number from 65536 on" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 1, "--modes which columns hold labels"),
        (["--modes", "user", "itm", "--value", "rating"], 1, "there is no column 'itm'"),
        ([*COLUMNS, "--by", "planet"], 1, "there is no mode 'planet'"),
        ([*COLUMNS, "--memory", "lots"], 2, "written as 2GiB"),
        ([*COLUMNS, "--shards", "0"], 2, "--shards"),
        ([*COLUMNS, "--labels", "item"], 2, "--labels"),
        ([*COLUMNS, "--dtype", "int8"], 2, "--dtype"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(folder, tmp_path, words, code, message):
    result = run("shard", folder / "ratings.csv", *words, "--out", tmp_path / "cut")
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_older_shards_are_replaced_when_that_is_asked_for(folder, tmp_path):
    words = ["shard", folder / "ratings.csv", *READ, "--out", tmp_path / "cut"]
    assert run(*words, "--shards", 2).exit_code == 0
    refused = run(*words, "--shards", 3)
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)
    assert len(sf.Shards(tmp_path / "cut")) == 2
    assert run(*words, "--shards", 3, "--force").exit_code == 0
    assert len(sf.Shards(tmp_path / "cut")) == 3


# -- fitting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [[], ["--engine", "disk"]], ids=["by itself", "disk"])
def test_a_folder_of_shards_is_fitted_as_its_file_would_be(folder, tmp_path, engine):
    found = completed_json(folder / "cut", *QUICK, *engine, "--out", tmp_path / "m")
    file = completed_json(folder / "ratings.csv", *READ, *QUICK, "--out", tmp_path / "file")
    for name in ("modes", "entries", "density", "bounds", "ranks", "private"):
        assert found[name] == file[name]
    assert found["training_rmse"] == pytest.approx(file["training_rmse"], rel=1e-9)
    whole = sf.Shards(folder / "cut").whole()
    one, other = (sf.load(tmp_path / name).predict(whole) for name in ("m", "file"))
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_the_usual_rank_is_that_of_the_file(folder, tmp_path):
    found = completed_json(folder / "cut", "--rounds", "1", "--out", tmp_path / "m")
    file = completed_json(folder / "ratings.csv", *READ, "--rounds", "1", "--out", tmp_path / "m")
    assert found["ranks"] == file["ranks"]


def test_private_fits_release_the_same_bytes(folder, tmp_path):
    seeded = [*PRIVATE, "--noise-seed", "1", "--force", "--quiet"]
    result = run("complete", folder / "cut", *seeded, "--out", tmp_path / "cut")
    assert result.exit_code == 0, result.stderr
    run("complete", folder / "ratings.csv", *READ, *seeded, "--out", tmp_path / "file")
    released = [
        {path.name: path.read_bytes() for path in (tmp_path / name / "release").iterdir()}
        for name in ("cut", "file")
    ]
    assert released[0] == released[1]


def test_users_are_protected_where_their_labels_are_listed(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    listed = ["user=users.txt"]
    cut = ["--labels", *listed, "--shards", 2, "--out", tmp_path / "cut"]
    made = run("shard", "ratings.csv", *READ, *cut)
    assert made.exit_code == 0, made.stderr
    asked = [*PRIVATE[:4], "--unit", "user", "--labels-are-public", "--public-labels", *listed]
    asked += ["--noise-seed", "1", "--force", "--quiet"]
    released = []
    for source in ([tmp_path / "cut"], ["ratings.csv", *READ]):
        result = run("complete", *source, *asked, "--out", tmp_path / "m")
        assert result.exit_code == 0, result.stderr
        files = (tmp_path / "m" / "release").iterdir()
        released.append({path.name: path.read_bytes() for path in files})
    assert released[0] == released[1]


@pytest.mark.parametrize("solver", ["sgd", "minibatch"])
def test_passes_fit_shards_and_are_refused_on_ray(folder, tmp_path, solver):
    words = [folder / "cut", *QUICK, "--solver", solver, "--out", tmp_path / "m"]
    assert completed_json(*words)["solver"] == solver
    pytest.importorskip("ray")
    refused = run("complete", *words, "--engine", "ray")
    assert refused.exit_code == 1
    assert "use --solver als, or leave --engine out" in refused.stderr


def test_ray_fits_files_as_shards_are_fitted_here(folder, tmp_path):
    pytest.importorskip("ray")
    on_ray = ["--engine", "ray", "--workers", 2, "--timeout", 120]
    here = completed_json(folder / "cut", *QUICK, "--out", tmp_path / "m")
    there = completed_json(folder / "ratings.csv", *READ, *QUICK, *on_ray, "--out", tmp_path / "m")
    assert there["training_rmse"] == pytest.approx(here["training_rmse"], rel=1e-9)


# What is asked of shards, or of a file, and what the answer names.
REFUSED = {
    "cut --test 0.2": "before `sfumato shard`",
    "cut --bounds 1 4": "leave --bounds out",
    "cut --modes user item": "leave --modes out",
    "cut --bin day=week": "leave --bin out",
    "cut --duplicates mean": "--duplicates mean would change what lies on disk",
    f"cut {' '.join(PRIVATE)} --tune-rank 1 2": "--tune-rank",
    f"listed {' '.join(PRIVATE[:4])} --unit item --labels-are-public --public-labels item=items.txt": (
        "make them with --by item"
    ),
    "cut --epsilon 3 --unit item --labels-are-public --public-units 50": "(--labels)",
    f"cut {' '.join(PRIVATE)} --max-entries 3": "--max-entries",
    "single --epsilon 1 --delta 1e-6 --unit entry --labels-are-public": "--dtype float64",
    "open --epsilon 1 --unit value": "`sfumato shard --bounds LOW HIGH`",
    "cut --workers 3": "--engine ray",
    "cut --ray-address auto": "--engine ray",
    "cut --engine ray --workers 0": "--workers",
    "ratings.csv --modes user item day --value rating --engine disk": "`sfumato shard ratings.csv`",
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_would_change_shards_is_refused_with_advice(asked, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    made = {"single": [*READ, "--dtype", "float32"], "open": COLUMNS}
    made["listed"] = [*READ, "--labels", "item=items.txt"]
    if (name := asked.split()[0]) in made:
        result = run("shard", "ratings.csv", *made[name], "--force", "--out", name)
        assert result.exit_code == 0, result.stderr
    result = run("complete", *asked.split(), "--out", tmp_path / "m")
    assert result.exit_code in (1, 2)
    assert REFUSED[asked] in result.stderr, result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_other_commands_say_that_they_do_not_read_shards(folder):
    result = run("describe", folder / "cut")
    assert result.exit_code == 1
    assert "is a folder of shards" in result.stderr


def test_damaged_shards_are_no_folder_of_something_else(tmp_path):
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "shards.json").write_text("{}")
    result = run("complete", tmp_path / "cut", "--out", tmp_path / "m")
    assert (result.exit_code, "sfumato-shards" in result.stderr) == (1, True)
