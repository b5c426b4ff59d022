"""The best levels of a mode for all levels of another, beside `top` one by one."""

import numpy as np
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from command_line import run

import sfumato as sf

RNG = np.random.default_rng(0)
CELLS = np.argwhere(RNG.random((30, 20)) < 0.4).T.astype(np.int32)
USERS = sf.Mode("user", 30, labels=np.array([f"u{n:02}" for n in range(30)], object))
ITEMS = sf.Mode("item", 20)
TENSOR = sf.SparseTensor(CELLS, RNG.integers(1, 6, CELLS.shape[1]).astype(float), (USERS, ITEMS), (1, 5))


@pytest.fixture(scope="module")
def fitted():
    return sf.CP(2).fit(TENSOR)


def listed(table, owner):
    mine = table.filter([name == owner for name in table.column(0).to_pylist()])
    return list(zip(mine.column("item").to_pylist(), mine.column("prediction").to_pylist(), strict=True))


@pytest.mark.parametrize("seen", [None, TENSOR])
def test_lists_of_all_are_those_of_each(fitted, seen):
    table = fitted.top_all("item", 4, seen=seen)
    assert table.column_names == ["user", "rank", "item", "prediction"]
    assert table.column("rank").to_pylist() == [1, 2, 3, 4] * 30
    for user in ("u00", "u17", "u29"):
        alone = fitted.top("item", 4, seen=seen, user=user)
        assert [item for item, _ in listed(table, user)] == [item for item, _ in alone]
        np.testing.assert_allclose([value for _, value in listed(table, user)], [v for _, v in alone])


def test_either_mode_has_lists_and_short_ones_have_fewer_rows(fitted):
    assert fitted.top_all("user", 3).column_names[0] == "item"
    seen = TENSOR.take(TENSOR.coordinates[0] == 3)
    table = fitted.top_all("item", 50, seen=seen)
    assert len(listed(table, "u03")) == 20 - seen.n_entries
    assert len(listed(table, "u04")) == 20


def test_of_three_modes_the_label_of_one_is_given():
    rng = np.random.default_rng(1)
    cells = np.stack([rng.integers(0, size, 300) for size in (9, 8, 3)]).astype(np.int32)
    modes = (sf.Mode("user", 9), sf.Mode("item", 8), sf.Mode("day", 3))
    fit = sf.CP(1, duplicates="mean").fit(sf.SparseTensor(cells, rng.normal(size=300), modes))
    table = fit.top_all("item", 2, day=1, seen=fit_cells(cells))
    for user in range(9):
        alone = fit.top("item", 2, user=user, day=1, seen=fit_cells(cells))
        assert [item for item, _ in listed(table, user)] == [item for item, _ in alone]
    with pytest.raises(sf.SettingError, match="user and day"):
        fit.top_all("item")
    with pytest.raises(sf.SettingError, match="a label of day"):
        fit.top_all("item", of="user")
    with pytest.raises(sf.UnknownLabelError, match="no level 7"):
        fit.top_all("item", day=7)


def fit_cells(cells):
    return {"user": cells[0], "item": cells[1], "day": cells[2]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A private model whose rows of users stay with them, with its release."""
    public = sf.Public(labels=True, units=30)
    fit = sf.CP(2, privacy=sf.Privacy(20.0, 1e-5, "user", public=public, method="moments")).fit(TENSOR)
    return fit.save(tmp_path_factory.mktemp("model") / "model")


def test_a_release_has_lists_for_who_brings_entries(folder, tmp_path):
    whole, release = sf.load(folder), sf.load(folder / "release")
    assert whole.top_all("item", 2).num_rows == 60
    with pytest.raises(sf.SettingError, match=r"stay with their owners.*own"):
        release.top_all("item")
    mine = TENSOR.take(np.isin(TENSOR.coordinates[0], [3, 5]))
    table = release.top_all("item", 3, own=mine)
    assert table.column("user").to_pylist() == ["u03"] * 3 + ["u05"] * 3
    assert not set(mine.coordinates[1][mine.coordinates[0] == 3]) & {i for i, _ in listed(table, "u03")}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    """The same with places for more users than there are."""
    public = sf.Public(labels=True, units=37)
    fit = sf.CP(2, privacy=sf.Privacy(20.0, 1e-5, "user", public=public, method="moments")).fit(TENSOR)
    return fit.save(tmp_path_factory.mktemp("roomy") / "model")


def test_places_that_nobody_has_are_in_no_list_and_have_none(roomy):
    model = sf.load(roomy)
    owners = {str(label) for label in USERS.labels}
    table = model.top_all("item", 2)
    assert table.num_rows == 60
    assert set(table.column("user").to_pylist()) == owners
    table = model.top_all("user", 37)
    assert table.num_rows == 30 * 20
    assert set(table.column("user").to_pylist()) == owners
    few = model.top_all("user", 2)
    for item in (0, 13):
        best = [label for label, _ in model.top("user", 37, item=item) if label in owners][:2]
        assert [user for user, _ in listed_by(few, "item", item)] == best
    assert (model.lists(3).levels >= 0).all(axis=1).sum() == 30


def listed_by(table, of, level):
    mine = table.filter([name == level for name in table.column(of).to_pylist()])
    return list(zip(mine.column("user").to_pylist(), mine.column("prediction").to_pylist(), strict=True))


def test_one_list_on_the_command_line_has_nobody_who_is_not_there(roomy):
    told = run("top", roomy, "--mode", "user", "--k", 37, "--at", "item=3")
    assert told.exit_code == 0
    assert "nobody" not in told.stdout
    assert len(told.stdout.splitlines()) == 31


def test_lists_on_the_command_line(folder, fitted, tmp_path):
    model = fitted.save(tmp_path / "open")
    out = tmp_path / "lists.parquet"
    run("top", model, "--mode", "item", "--k", 3, "--for", "user", "--out", out)
    assert pq.read_table(out) == fitted.top_all("item", 3)
    told = run("top", model, "--mode", "item", "--k", 2, "--at", "user=u07")
    printed = told.stdout
    assert "NOT FOR RELEASE" not in told.stderr  # an open model: nothing of it is
    assert printed.splitlines()[0].replace('"', "") == "rank,item,prediction"
    assert len(printed.splitlines()) == 3
    (tmp_path / "seen.csv").write_text("user,item\nu07,3\n")
    run(
        "top",
        model,
        "--mode",
        "item",
        "--k",
        20,
        "--seen",
        tmp_path / "seen.csv",
        "--out",
        tmp_path / "a.csv",
    )
    assert pacsv.read_csv(tmp_path / "a.csv").num_rows == 30 * 20 - 1
    (tmp_path / "mine.csv").write_text("user,item,rating\nme,3,5\nme,4,1\n")
    release = folder / "release"
    told = run("top", release, "--mode", "item", "--k", 1, "--own", tmp_path / "mine.csv")
    assert told.stdout.splitlines()[1].replace('"', "").startswith("me,1,")
    assert told.stderr.startswith("NOT FOR RELEASE")
    refused = run("top", release, "--mode", "item")
    assert refused.exit_code == 1
    assert "--own" in refused.stderr
