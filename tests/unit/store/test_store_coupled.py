"""Folders of coupled models: kernels read wherever they are told to, and nothing may be broadcast."""

import json

import numpy as np
import pytest
from model_folders import edit, sealed
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import sfumato as sf
from sfumato.errors import ModelFileError

SOLVERS = {
    "ML": sf.Multiplicative(3),
    "VB": sf.Variational(3),
    "Langevin": sf.Langevin("poisson", samples=3, burn_in=1, thin=1, chains=2),
}


@pytest.fixture(scope="module")
def models():
    counts = np.random.default_rng(0).poisson(2.0, 20).astype(float)
    cells = np.indices((5, 4)).reshape(2, -1)
    tables = {
        "ratings": sf.SparseTensor(cells, counts, (sf.Mode("user", 5), sf.Mode("item", 4))),
        "visits": sf.SparseTensor(cells, counts[::-1], (sf.Mode("user", 5), sf.Mode("place", 4))),
    }
    relations = sf.Relations(tables, structure={"visits": "tucker"})
    return {name: sf.Coupled(2, solver, threads=1).fit(relations) for name, solver in SOLVERS.items()}


@pytest.mark.parametrize("name", SOLVERS)
def test_whole_folders_predict_the_same(models, tmp_path, name):
    again = sf.load(models[name].save(tmp_path / "model"))
    cell = {"user": 3, "item": 2}
    assert again.predict("ratings", **cell) == models[name].predict("ratings", **cell)


def ones(*shape, dtype=np.float64):
    return np.ones(shape, dtype)


TENSORS = [
    ("ML", "factor_0", ones(5, 1), "should be"),
    ("ML", "factor_0", ones(1, 2), "should be"),
    ("ML", "factor_0", ones(5, 2, dtype=np.float32), "not all of float64"),
    ("ML", "factor_0", ones(5, 2, dtype=np.int64), "not all of float64"),
    ("ML", "factor_0", np.full((5, 2), np.nan), "not finite"),
    ("ML", "core_1", ones(1), "should be"),
    ("ML", "evidence_0_1", ones(1, dtype=np.int64), "should be"),
    ("ML", "evidence_0_1", ones(4), "holds no counts"),
    ("ML", "evidence_0_1", -ones(4, dtype=np.int64), "holds no counts"),
    ("VB", "shape_0", ones(5, 1), "should be"),
    ("VB", "rate_1", np.zeros((4, 2)), "above zero"),
    ("VB", "shape_1", -ones(4, 2), "above zero"),
    ("VB", "prior_means", ones(1), "should be"),
    ("VB", "prior_shapes", np.zeros(4), "above zero"),
    ("Langevin", "draws", ones(2, 3, 13, 1), "should be"),
    ("Langevin", "draws", ones(1, 3, 13, 2), "should be"),
    ("Langevin", "draws", ones(2, 3, 13, 2, dtype=np.float32), "not all of"),
    ("Langevin", "density", np.empty((0, 0)), "no draws"),
    ("Langevin", "density", ones(6), "damaged"),
    ("Langevin", "noise", ones(2, 3, 1), "should be"),
    ("Langevin", "noise", np.zeros((2, 3, 2)), "above zero"),
    ("Langevin", "core_draws_1", ones(2, 3, 1), "should be"),
]


@pytest.mark.parametrize(("name", "part", "array", "message"), TENSORS)
def test_no_array_is_broadcast_or_cast(models, tmp_path, name, part, array, message):
    folder = models[name].save(tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(save_tensors({**load_tensors(path.read_bytes()), part: array}))
    with pytest.raises(ModelFileError, match=message):
        sf.load(sealed(folder))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("rank", lambda _: 2**40),
        ("rank", float),
        ("sizes", lambda sizes: [10**12, *sizes[1:]]),
        ("sizes", lambda _: "many"),
        ("parts", lambda parts: [{**part, "modes": [0, 0]} for part in parts]),
        ("parts", lambda parts: [{**part, "modes": [0]} for part in parts]),
        ("parts", lambda parts: [{**part, "name": "one"} for part in parts]),
        ("parts", lambda parts: [{**part, "tucker": "no"} for part in parts]),
        ("parts", lambda parts: [{**part, "weighted": True} for part in parts]),
        ("parts", lambda parts: [{**part, "colour": "red"} for part in parts]),
        ("posterior", lambda _: "gamma"),
        ("posterior", lambda _: "poisson"),
        ("posterior", lambda _: ["normal"]),
        ("settings", lambda _: {}),
        ("settings", lambda settings: {**settings, "rank": "two"}),
        ("notes", lambda notes: {**notes, "history": [{"completed": "all"}]}),
        ("notes", lambda notes: {**notes, "solver": {**notes["solver"], "sweeps": "many"}}),
    ],
)
def test_nothing_is_made_room_for_that_is_not_there(models, tmp_path, what, change):
    folder = models["ML"].save(tmp_path / "model")
    kept = json.loads((folder / "model.json").read_text())
    edit(folder, **{what: change(kept[what])})
    with pytest.raises(ModelFileError, match="is damaged"):
        sf.load(folder)
