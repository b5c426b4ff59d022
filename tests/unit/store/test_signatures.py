"""Signatures of releases: whose they are, what they cover, and what is refused."""

import json
import os
import shutil

import numpy as np
import pytest
from command_line import run
from model_folders import as_of_format_1, edit, sealed

import sfumato as sf
from sfumato.errors import ModelFileError, SettingError, SignatureError
from sfumato.store import signed_by


@pytest.fixture(scope="module")
def model():
    ratings = sf.synthetic.ratings_like(entries=300, seed=0)
    labels = {mode.name: mode.labels.tolist() for mode in ratings.modes}
    privacy = sf.Privacy(
        3.0, 1e-3, unit=ratings.mode_names[0], public=sf.Public(labels=labels, entries=300)
    )
    return sf.Biases(privacy=privacy, unseen="bias").fit(ratings)


@pytest.fixture
def folder(model, tmp_path):
    return model.save(tmp_path / "model")


@pytest.fixture
def key(tmp_path):
    return sf.new_key(tmp_path / "key")


def public(key):
    return key.with_name(f"{key.name}.pub")


def content_of(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "signature.json"
    }


# -- keys -----------------------------------------------------------------------------------------


def test_a_new_key_is_for_its_owner_alone_and_nothing_is_written_over(tmp_path):
    private = sf.new_key(tmp_path / "key")
    assert private.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" in private.read_bytes()
    assert b"PRIVATE" not in public(private).read_bytes()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ModelFileError, match="not written over"):
        sf.new_key(private)
    public(private).rename(tmp_path / "other.pub")
    for name in ("key", "other"):
        with pytest.raises(ModelFileError, match="not written over"):
            sf.new_key(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "other.pub"]
    assert (tmp_path / "key").read_bytes() == before[private]
    with pytest.raises(ModelFileError, match="cannot be written"):
        sf.new_key(tmp_path / "nowhere" / "key")


def test_files_that_are_no_keys(folder, key, tmp_path):
    (tmp_path / "empty").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for wrong in (public(key), tmp_path / "empty", tmp_path / "pipe", tmp_path / "none", tmp_path):
        with pytest.raises(ModelFileError):
            sf.sign(folder, wrong)
    sf.sign(folder, key)
    for wrong in (key, tmp_path / "empty", tmp_path / "pipe", tmp_path / "none", tmp_path):
        with pytest.raises(ModelFileError):
            sf.verify(folder, wrong)


def test_keys_of_another_kind(folder, tmp_path):
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    other = generate_private_key(SECP256R1())
    (tmp_path / "p256").write_bytes(
        other.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    )
    (tmp_path / "p256.pub").write_bytes(
        other.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(ModelFileError, match="not one of Ed25519"):
        sf.sign(folder, tmp_path / "p256")
    with pytest.raises(ModelFileError, match="not one of Ed25519"):
        sf.verify(folder, tmp_path / "p256.pub")


# -- signatures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", "release"])
def test_a_signature_is_verified_and_touches_nothing_else(model, folder, key, part):
    before = content_of(folder)
    name = sf.sign(folder / part, key)
    assert sf.verify(folder / part, public(key)) == name == signed_by(folder)
    assert content_of(folder) == before
    assert (folder / "release" / "signature.json").is_file()
    assert not (folder / "owner" / "signature.json").exists()
    for place in (folder, folder / "release"):
        assert sf.load(place).guarantee_ == model.guarantee_
    assert "signature.json" not in model.release_files()
    assert "manifest.json" in model.release_files()


def test_a_forged_release_is_refused(folder, key):
    release = folder / "release"
    sf.sign(folder, key)
    edit(release, "guarantee.json", epsilon=0.001)
    assert sf.load(release).guarantee_.epsilon == 0.001  # the forger made a manifest of it
    with pytest.raises(SignatureError, match="this is not the release that was signed"):
        sf.verify(folder, public(key))


def test_an_edited_release_is_refused_whoever_signed_it(folder, key):
    sf.sign(folder, key)
    file = folder / "release" / "guarantee.json"
    file.write_text(file.read_text().replace('"epsilon": ', '"epsilon":  '))
    for use in (sf.load, lambda path: sf.verify(path, public(key)), lambda path: sf.sign(path, key)):
        with pytest.raises(ModelFileError, match=r"guarantee.json"):
            use(folder)


def test_no_bit_of_a_guarantee_can_be_flipped(folder):
    file = folder / "release" / "guarantee.json"
    content = file.read_bytes()
    for bit in np.random.default_rng(0).choice(8 * len(content), 1200, replace=False).tolist():
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(ModelFileError):
            sf.load(folder)


def test_no_bit_of_a_signature_can_be_flipped(folder, key):
    sf.sign(folder, key)
    file = folder / "release" / "signature.json"
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), 3):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(ModelFileError):
            sf.verify(folder, public(key))


def test_another_key_and_none(folder, key, tmp_path):
    with pytest.raises(SignatureError, match="is not signed"):
        sf.verify(folder, public(key))
    assert signed_by(folder) is None
    other = sf.new_key(tmp_path / "other")
    name = sf.sign(folder, other)
    with pytest.raises(SignatureError, match=f"signed by another key: {name}"):
        sf.verify(folder, public(key))
    sf.sign(folder, key)  # takes the place of the other
    sf.verify(folder, public(key))


def test_a_signature_of_other_bytes_is_none(folder, key):
    """What a key signs elsewhere cannot be taken for the signature of a manifest."""
    from sfumato.store import keys

    sf.sign(folder, key)
    file = folder / "release" / "signature.json"
    plain = keys.read_private(key).sign((folder / "release" / "manifest.json").read_bytes())
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "signature": plain.hex()}))
    with pytest.raises(SignatureError):
        sf.verify(folder, public(key))


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 10**5, '{"algorithm": "RSA"}'])
def test_signatures_that_are_none(folder, key, text):
    (folder / "release" / "signature.json").write_text(text)
    sf.load(folder)
    with pytest.raises(ModelFileError, match=r"signature.json is damaged"):
        sf.verify(folder, public(key))
    assert "signature.json is damaged" in run("explain", folder).stderr


def test_killed_while_signing_the_release_is_as_it_was(folder, key, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            sf.sign(folder, key)
    sf.load(folder)
    assert signed_by(folder) is None
    sf.sign(folder, key)
    assert not (folder / "release" / "signature.json.new").exists()
    sf.verify(folder, public(key))


def test_where_a_signature_cannot_be_written(folder, key):
    (folder / "release" / "signature.json.new").mkdir()
    with pytest.raises(ModelFileError, match="cannot be written"):
        sf.sign(folder, key)


def test_what_is_not_signed(folder, key):
    with pytest.raises(SignatureError, match="rows of owners"):
        sf.sign(folder / "owner", key)
    as_of_format_1(folder / "release")
    with (
        pytest.warns(sf.OldFormatWarning),
        pytest.raises(SignatureError, match="load it and save it again"),
    ):
        sf.sign(folder, key)


# -- folders that do not belong together ----------------------------------------------------------


def test_rows_of_owners_belong_to_their_release(model, folder, tmp_path):
    other = sf.Biases(privacy=model.privacy, unseen="bias").fit(
        sf.synthetic.ratings_like(entries=300, seed=0)
    )
    shutil.rmtree(folder / "owner")
    sf.load(folder)  # a release alone
    shutil.copytree(other.save(tmp_path / "other") / "owner", folder / "owner")
    with pytest.raises(ModelFileError, match="belongs to another release"):
        sf.load(folder)


def test_rows_of_owners_alone_are_no_model(folder):
    with pytest.raises(ModelFileError, match="rows of owners alone"):
        sf.load(folder / "owner")
    sealed(folder / "owner")


def test_the_best_of_a_release(model, folder):
    """Rows that stayed with their owners are nobody's; all else is there."""
    release = sf.load(folder / "release")
    user, *others = (mode.name for mode in release.modes_)
    cell = {name: release.modes_[1 + m].label(0) for m, name in enumerate(others)}
    item = others[0]
    best = release.top(item, 2, **{**{k: v for k, v in cell.items() if k != item}, user: "anybody"})
    for label, value in best:
        assert value == pytest.approx(release.predict(**{**cell, item: label, user: "anybody"}))
    with pytest.raises(SettingError, match="stay with their owners"):
        release.top(user, 2, **cell)


# -- on the command line --------------------------------------------------------------------------


def test_sign_and_verify(folder, tmp_path):
    key = tmp_path / "key"
    assert "not verified" not in run("explain", folder).stdout.lower()
    assert "shows accidents and not forgery" in run("explain", folder).stdout
    assert run("sign", "--new-key", key).exit_code == 0
    assert (tmp_path / "key.pub").is_file()
    signed = run("sign", folder / "release", "--key", key)
    assert signed.exit_code == 0, signed.stderr
    assert signed_by(folder) in signed.stdout
    said = run("verify", folder / "release", "--key", tmp_path / "key.pub")
    assert (said.exit_code, signed_by(folder) in said.stdout) == (0, True)
    explained = run("explain", folder / "release").stdout
    assert f"by the key {signed_by(folder)}, NOT VERIFIED" in explained
    edit(folder / "release", "guarantee.json", epsilon=0.001)
    wrong = run("verify", folder / "release", "--key", tmp_path / "key.pub")
    assert wrong.exit_code == 1
    assert "not the release that was signed" in wrong.stderr


@pytest.mark.parametrize("args", [[], ["model"], ["model", "--new-key", "k"], ["--key", "k"]])
def test_what_sign_cannot_mean(args):
    said = run("sign", *args)
    assert said.exit_code == 2
    assert "--new-key KEYFILE alone" in said.stderr


@pytest.mark.filterwarnings("error")
def test_an_older_folder_is_warned_of_on_the_command_line(folder):
    as_of_format_1(folder / "release")
    shutil.rmtree(folder / "owner")
    said = run("explain", folder)
    assert said.exit_code == 0, said.stderr
    assert said.stderr.startswith("warning: ")
    assert "without a manifest" in said.stderr
    assert "no change to them can be noticed" in said.stdout
