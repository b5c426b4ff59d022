"""Components on the command line: of tensors and of samples, openly and privately."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import run

import sfumato as sf

RNG = np.random.default_rng(0)
TRUTH = np.linalg.qr(RNG.standard_normal((12, 2))).Q.T
TENSOR = np.einsum("r,ri,rj,rk->ijk", [900.0, 600.0], TRUTH, TRUTH, TRUTH)
SAMPLES = (RNG.exponential(size=(20_000, 2)) - 1) @ TRUTH
FACTORS = [np.linalg.qr(RNG.standard_normal((size, 2))).Q.T for size in (4, 5, 6)]
UNLIKE = np.einsum("r,ri,rj,rk->ijk", [2.0, 1.0], *FACTORS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("power")
    np.save(folder / "tensor.npy", TENSOR)
    np.save(folder / "samples.npy", SAMPLES.astype(np.float32))
    names = [f"gene{n}" for n in range(12)]
    pd.DataFrame(SAMPLES[:2000], columns=names).to_csv(folder / "samples.csv", index=False)
    pd.DataFrame(SAMPLES[:2000], columns=names).to_parquet(folder / "samples.parquet")
    cells = np.argwhere(UNLIKE != 0)
    rows = pd.DataFrame(cells, columns=["a", "b", "c"]).assign(value=UNLIKE[tuple(cells.T)])
    rows.to_csv(folder / "unlike.csv", index=False)
    return folder


def power(folder, words):
    file, *rest = words.split()
    return run("power", folder / file, "--components", 2, "--quiet", *rest)


def told(folder, words):
    answer = power(folder, f"{words} --json")
    assert answer.exit_code == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_tensor_is_what_the_components_add_up_to(folder, tmp_path):
    found = told(folder, f"tensor.npy --out {tmp_path / 'out'} --factors csv")
    np.testing.assert_allclose([each["weight"] for each in found["components"]], [900, 600])
    assert found["error"] < 1e-6
    assert not found["private"]
    method = sf.load(tmp_path / "out")
    assert sf.match_components(method.components_, TRUTH).errors.max() < 1e-6
    written = pd.read_csv(tmp_path / "out-factors" / "mode1.csv")
    np.testing.assert_allclose(written[["f1", "f2"]].to_numpy().T, method.components_)


def test_a_table_has_labels_and_each_mode_vectors(folder):
    words = "unlike.csv --modes a b c --value value --asymmetric"
    found = told(folder, words)
    assert found["error"] < 1e-6
    largest = found["components"][0]["largest"]
    assert list(largest) == ["a", "b", "c"]
    assert next(iter(largest["c"])) == str(np.abs(FACTORS[2][0]).argmax())
    printed = power(folder, words)
    assert "error: the components leave 0.00%" in printed.stdout
    assert "not private" in printed.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("samples.npy --samples --again", "0"),
        ("samples.csv --samples --again", "gene"),
        ("samples.parquet --samples --again", "gene"),
    ],
)
def test_samples_of_any_kind_of_file(folder, words, named):
    found = told(folder, words)
    assert found["error"] is None
    assert all(each["moves"] < 1e-3 for each in found["components"])
    assert found["components"][0]["weight"] == pytest.approx(2, rel=0.4)
    largest = found["components"][0]["largest"]["feature"]
    assert len(largest) == 3
    assert all(named in label or label.isdigit() for label in largest)


def test_what_is_private_is_released_and_explained(folder, tmp_path):
    out = tmp_path / "release"
    budget = "--epsilon 5 --delta 1e-6 --noise-seed 1 --force"
    words = f"samples.npy --samples {budget} --unit sample --norm 4 --public-entries 20000 --out {out}"
    answer = power(folder, f"{words} --ledger {tmp_path / 'ledger'}")
    assert answer.exit_code == 0, answer.stderr
    assert "error" not in answer.stdout
    assert f"hand out: {out}" in answer.stdout
    assert "sample" in run("explain", out).stdout
    assert (tmp_path / "ledger").exists()
    found = told(folder, f"tensor.npy {budget} --unit entry --change 1")
    assert found["private"]
    assert not found["error_for_release"]
    assert found["error"] < 0.2
    assert all(each["deviation"] > 0 for each in found["components"])


BUDGET = "--epsilon 1 --delta 1e-6"


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (f"unlike.csv --modes a b c --value value {BUDGET} --unit entry --change 1", "shape is public"),
        (f"tensor.npy {BUDGET} --change 1", "--unit entry"),
        (f"tensor.npy {BUDGET} --unit entry", "--change"),
        (f"tensor.npy {BUDGET} --unit entry --change 1 --norm 2", "--norm"),
        (f"samples.npy --samples {BUDGET} --unit sample", "--norm"),
        (f"samples.npy --samples {BUDGET} --unit sample --norm 4 --again", "--again"),
        ("tensor.npy --delta 1e-6", "--epsilon"),
        ("tensor.npy --factors csv", "--out"),
        ("tensor.npy --columns a b", "--samples"),
        ("samples.npy --samples --modes a b", "--modes"),
        ("unlike.csv --modes a b c --value value", "--asymmetric"),
        ("samples.csv --samples --columns gene1 gene99", "gene99"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(folder, words, match):
    answer = power(folder, words)
    assert answer.exit_code == 1
    assert match in answer.stderr


def test_a_word_among_private_samples_is_missing_and_nothing_is_said(folder, tmp_path):
    text = (folder / "samples.csv").read_text().splitlines()
    (tmp_path / "word.csv").write_text("\n".join([*text, ",".join(["word"] * 12)]))
    words = "--samples --epsilon 5 --delta 1e-6 --unit sample --norm 4 --public-entries 2000"
    said = run("power", tmp_path / "word.csv", "--components", 2, "--quiet", *words.split(), "--json")
    assert said.exit_code == 0, said.stderr
    assert "word" not in json.dumps(json.loads(said.stdout)["guarantee"])


def test_what_is_left_is_told_of_sparse_and_dense_tensors_alike():
    sparse = sf.SparseTensor(
        np.argwhere(UNLIKE != 0).T.astype(np.int32),
        UNLIKE[UNLIKE != 0],
        tuple(sf.Mode(name, size) for name, size in zip("abc", UNLIKE.shape, strict=True)),
    )
    method = sf.PowerMethod(1, symmetric=False).fit(UNLIKE)
    left = np.linalg.norm(UNLIKE - method.to_tensor()) / np.linalg.norm(UNLIKE)
    assert method.error(UNLIKE) == pytest.approx(left)
    assert method.error(sparse) == pytest.approx(left)
    with pytest.raises(sf.DataError, match="shape"):
        method.error(TENSOR)
