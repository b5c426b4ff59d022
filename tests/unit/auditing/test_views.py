"""What an adversary sees of a release: all of it, and nothing else."""

import json

import numpy as np
import pytest
from safetensors.numpy import load, save

import sfumato as sf
from sfumato.auditing.neighbours import built
from sfumato.auditing.views import View, observed
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.store.manifest import with_manifest
from sfumato.store.names import MANIFEST

SHAPE = (Mode("user", 7), Mode("item", 6), Mode("week", 4))
CELL = np.array([[6], [5], [3]])
PUBLIC = sf.Public(labels={"user": range(7), ...: True}, entries=90)


def fitted(estimator=sf.CP, **settings):
    given = {"epsilon": 5.0, "delta": 1e-3, "unit": "entry", "public": PUBLIC, "seed": 1, **settings}
    return estimator(2, privacy=sf.Privacy(**given)).fit(built(SHAPE))


@pytest.fixture(scope="module")
def release():
    return fitted(sf.Tucker, method=sf.PrivateSGD(passes=2)).release_files(force=True)


@pytest.fixture(scope="module")
def shared():
    """A release without the rows of users, but with what they need to solve theirs."""
    return fitted(unit="user", method=sf.PrivateAlternating(sweeps=1))


def seen(files, **how):
    return observed(files, CELL, **how)


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def rewritten(files, name, content):
    """A release with one file another, and a manifest that says so."""
    rest = {each: kept for each, kept in files.items() if each != MANIFEST}
    return with_manifest({**rest, name: content})


def with_tensors(files, tensors, notes=None):
    return rewritten(files, "model.safetensors", save(tensors, notes))


def changed(files, part, place, by=0.0):
    """The release with one number another: by a little, or in its last bit."""
    tensors = {name: array.copy() for name, array in load(files["model.safetensors"]).items()}
    flat = tensors[part].reshape(-1)
    flat[place] = np.nextafter(flat[place] + by, np.inf)
    return with_tensors(files, tensors)


def test_the_same_release_is_seen_the_same(release):
    assert same(seen(release), seen(dict(reversed(release.items()))))


@pytest.mark.parametrize("part", ["factor_0", "factor_2", "bias_1", "core"])
def test_the_last_bit_of_every_number_is_seen(release, part):
    count = load(release["model.safetensors"])[part].size
    for place in range(count):
        assert not same(seen(release), seen(changed(release, part, place))), place


def test_numbers_that_owners_solve_their_rows_with_are_seen(shared):
    files = shared.release_files(force=True)
    own = [name for name in load(files["model.safetensors"]) if not name.startswith(("factor", "bias"))]
    assert own
    for part in own:
        assert not same(seen(files), seen(changed(files, part, 0))), part


def test_many_numbers_are_seen_in_sums():
    """Of more than are kept one by one, each is part of a sum."""
    noise = np.random.default_rng(0)
    big = fitted(method="constant").release_files(force=True)
    tensors = {name: array.copy() for name, array in load(big["model.safetensors"]).items()}
    tensors["extra"] = noise.standard_normal((500, 4))
    files = with_tensors(big, tensors)
    assert seen(files)["rest"].size == 256
    for place in (0, 1000, 1999):
        assert not same(seen(files), seen(changed(files, "extra", place, 1e-9)))


@pytest.mark.parametrize("file", ["model.json", "guarantee.json", "LABEL.md"])
def test_every_digit_and_every_letter_of_the_texts_is_seen(release, file):
    text, before, tried = release[file].decode(), View.of(release), 0
    for place, letter in enumerate(text):
        if not letter.isalnum():
            continue
        other = str((int(letter) + 1) % 10) if letter.isdigit() else ("x" if letter != "x" else "y")
        edited = text[:place] + other + text[place + 1 :]
        try:
            if file.endswith("json") and json.loads(edited) == json.loads(text):
                continue  # a digit beyond those that a number has
        except ValueError:  # no JSON any more
            continue
        after = View.of(rewritten(release, file, edited.encode()))
        tried += 1
        numbers = np.array_equal(before.parts["texts"], after.parts["texts"])
        assert not (numbers and before.form == after.form), text[place - 20 : place + 20]
    assert tried > 0.8 * sum(map(str.isalnum, text))


def test_a_manifest_says_nothing_but_a_wrong_one_does(release):
    """A true one changes with every number, and would hide all other words."""
    other = changed(release, "core", 0)
    assert View.of(release).form == View.of(other).form
    assert View.of(release).form != View.of({**other, MANIFEST: release[MANIFEST]}).form


def test_notes_beside_the_numbers_are_seen(release):
    tensors = load(release["model.safetensors"])
    noted = with_tensors(release, tensors, {"entries": "17"})
    assert View.of(noted).form != View.of(release).form


def test_files_names_and_shapes_are_seen(release):
    tensors = load(release["model.safetensors"])
    assert View.of(rewritten(release, "more.txt", b"")).form != View.of(release).form
    for other in (
        {**tensors, "core": tensors["core"].reshape(-1)},
        {**tensors, "core": tensors["core"].astype(np.float32)},
        {("heart" if name == "core" else name): array for name, array in tensors.items()},
    ):
        files = with_tensors(release, other)
        assert View.of(files).form != View.of(release).form


def test_levels_that_a_release_leaves_out_are_no_error(release):
    tensors = load(release["model.safetensors"])
    fewer = {**tensors, "factor_0": tensors["factor_0"][:5], "bias_0": tensors["bias_0"][:5]}
    view = seen(with_tensors(release, fewer))
    assert view["form"] != seen(release)["form"]
    assert view["factor_0"].shape == (0, 2)
    assert "prediction" not in view


def test_numbers_that_are_none_are_seen_and_can_be_reckoned_with(release):
    tensors = load(release["model.safetensors"])
    views = []
    for odd in (np.nan, np.inf, -np.inf):
        core = tensors["core"].copy()
        core.flat[0] = odd
        views.append(seen(with_tensors(release, {**tensors, "core": core})))
        assert all(np.isfinite(part).all() for name, part in views[-1].items() if name != "form")
    assert not same(views[0], views[1])
    assert not same(views[1], views[2])


# -- what is not released -------------------------------------------------------------------------


def test_rows_that_stay_with_their_owners_are_not_seen(shared):
    files = shared.release_files(force=True)
    assert "factor_0" not in seen(files)
    assert "bias_0" not in seen(files)
    before = seen(files)
    shared.model_.factors[0][:] += 1.0
    shared.model_.mode_biases[0][:] -= 2.0
    assert same(before, seen(shared.release_files(force=True)))


@pytest.mark.parametrize("kind", [sf.CP, sf.Tucker])
def test_the_prediction_is_that_of_the_released_model(kind):
    estimator = fitted(kind, method=sf.PrivateSGD(passes=2))
    found = View.of(estimator.release_files(force=True)).prediction(CELL)
    assert found == pytest.approx(estimator.model_.predict(CELL.astype(np.int32))[0])


def test_without_the_own_rows_the_prediction_is_mean_and_biases(shared):
    model = shared.model_
    expected = model.mean + model.mode_biases[1][5] + model.mode_biases[2][3]
    assert View.of(shared.release_files(force=True)).prediction(CELL) == pytest.approx(expected)


@pytest.mark.parametrize("unit", ["entry", "user"])
def test_the_files_of_a_release_are_what_is_written(unit, tmp_path):
    estimator = fitted(unit=unit, method=sf.PrivateSGD(passes=1))
    folder = estimator.release(tmp_path / "release", force=True)
    written = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert written == estimator.release_files(force=True)


# -- part of a release ----------------------------------------------------------------------------


def test_an_adversary_may_be_shown_one_part(release):
    one = seen(release, sees=["factor_2"])
    assert set(one) == {"form", "factor_2", "rest"}
    for place in range(8):
        assert not same(one, seen(changed(release, "factor_2", place), sees=["factor_2"]))
        assert same(one, seen(changed(release, "factor_1", place), sees=["factor_2"]))


def test_parts_that_are_not_there_are_refused(release):
    with pytest.raises(SettingError, match=r"no part factor_7; it has bias_0, .*texts"):
        seen(release, sees=["factor_2", "factor_7"])
