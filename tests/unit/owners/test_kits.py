"""Kits are whole or not there, and nothing that was done to one goes unnoticed."""

import json
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.errors import DataError, SettingError, SfumatoError
from sfumato.owners import kits as module
from sfumato.owners.kits import Kit, make_kits

FILES = ["kit.json", "certificate.pem", "key.pem", "root.pem"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("some") / "kits", "fits.example.org:8443", ["a.b", "c"])


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("other") / "kits", "127.0.0.1:8443", ["a.b"], "hub", 30)


@pytest.fixture
def copy(kits, tmp_path):
    return shutil.copytree(kits["a.b"], tmp_path / "copy")


def test_a_kit_says_who_one_is_and_where_to_meet(kits):
    assert list(kits) == ["leader", "a.b", "c"]
    kit = Kit.read(kits["a.b"])
    assert (kit.name, kit.role, kit.leader, kit.sites) == ("a.b", "site", "leader", ("a.b", "c"))
    assert (kit.address, kit.host, kit.port) == ("fits.example.org:8443", "fits.example.org", 8443)
    assert Kit.read(str(kits["leader"])).role == "leader"
    with pytest.raises(SettingError, match="kit of a leader"):
        kit.check_role("leader")


def test_keys_are_for_their_owner_alone_and_the_roots_key_is_nowhere(kits):
    folder = kits["leader"].parent
    assert sorted(path.name for path in folder.iterdir()) == ["a.b", "c", "leader"]
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert sum(b"BEGIN PRIVATE KEY" in content for content in files) == len(kits)
    for kit in kits.values():
        assert sorted(path.name for path in kit.iterdir()) == sorted(FILES)
        assert stat.S_IMODE((kit / "key.pem").stat().st_mode) == 0o600
        assert stat.S_IMODE(kit.stat().st_mode) == 0o700
    assert len({(kit / "key.pem").read_bytes() for kit in kits.values()}) == len(kits)


def test_certificates_are_for_one_role_and_last_as_long_as_was_said(others):
    certificates = {
        name: x509.load_pem_x509_certificate((folder / "certificate.pem").read_bytes())
        for name, folder in others.items()
    }
    uses = {
        name: [use._name for use in each.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value]
        for name, each in certificates.items()
    }
    assert uses == {"hub": ["serverAuth"], "a.b": ["clientAuth"]}
    left = certificates["a.b"].not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < left < timedelta(days=30)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sites": []}, "sites"),
        ({"sites": "abc"}, "sites"),
        ({"sites": ["a", 7]}, "sites"),
        ({"sites": ["a", "A"]}, "two sites are called"),
        ({"sites": ["Leader"]}, "a site and the leader"),
        ({"sites": [".."]}, "cannot be the name"),
        ({"sites": ["a/b"]}, "cannot be the name"),
        ({"sites": ["-a"]}, "cannot be the name"),
        ({"sites": ["a\n"]}, "cannot be the name"),
        ({"sites": ["ä"]}, "cannot be the name"),
        ({"sites": ["a" * 65]}, "cannot be the name"),
        ({"leader": ""}, "cannot be the name"),
        ({"leader": None}, "leader"),
        ({"address": "here"}, "a host and a port"),
        ({"address": "here:0"}, "a host and a port"),
        ({"address": "here:65536"}, "a host and a port"),
        ({"address": "here:80 "}, "a host and a port"),
        ({"address": ":80"}, "a host and a port"),
        ({"address": "[::1]:80"}, "a host and a port"),
        ({"address": "http://here:80"}, "a host and a port"),
        ({"address": 80}, "address"),
        ({"days": 0}, "days"),
        ({"days": 10**6}, "days"),
        ({"folder": 3}, "folder"),
    ],
)
def test_what_no_kit_can_have_is_an_error_before_anything_is_written(changes, said, tmp_path):
    right = {"folder": tmp_path / "kits", "address": "here:80", "sites": ["a"]}
    with pytest.raises(SettingError, match=said):
        make_kits(**(right | changes))
    assert not any(tmp_path.iterdir())


def test_no_folder_is_written_over(kits, tmp_path):
    (tmp_path / "note").write_text("mine")
    for place in (tmp_path, tmp_path / "note", kits["leader"].parent):
        with pytest.raises(SettingError, match="there already"):
            make_kits(place, "here:80", ["a"])
    assert (tmp_path / "note").read_text() == "mine"


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch):
    written = module._write

    def failing(folder, *parts):
        if folder.name == "a":
            raise OSError(28, "No space left on device")
        written(folder, *parts)

    monkeypatch.setattr(module, "_write", failing)
    with pytest.raises(SfumatoError, match="No space left"):
        make_kits(tmp_path / "kits", "here:80", ["a"])
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_no_kit_says_what_one_is(kits, tmp_path):
    with pytest.raises(SettingError, match="is no folder"):
        Kit.read(tmp_path / "nowhere")
    with pytest.raises(SettingError, match="is no kit"):
        Kit.read(kits["leader"].parent)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(SfumatoError, match=name):
        Kit.read(copy)
    (copy / name).mkdir()
    with pytest.raises(SfumatoError, match=name):
        Kit.read(copy)


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("whose", ["c", "others"])
def test_a_file_of_another_kit_does_not_pass(copy, kits, others, name, whose):
    if (whose, name) == ("c", "root.pem"):
        pytest.skip("kits that were made together share it")
    shutil.copy((others["a.b"] if whose == "others" else kits["c"]) / name, copy / name)
    with pytest.raises(DataError, match="damaged"):
        Kit.read(copy)


def test_a_name_that_is_not_the_certificates_is_an_error(copy, kits):
    shutil.copy(kits["c"] / "kit.json", copy / "kit.json")
    with pytest.raises(DataError, match="mixed"):
        Kit.read(copy)
    shutil.copy(kits["leader"] / "kit.json", copy / "kit.json")
    with pytest.raises(DataError, match="mixed"):
        Kit.read(copy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"name": "d"}, "damaged"),
        ({"name": ["a.b"]}, "damaged"),
        ({"role": "leader"}, "damaged"),
        ({"role": []}, "damaged"),
        ({"sites": "a.b"}, "damaged"),
        ({"sites": ["a.b", "../c"]}, "damaged"),
        ({"address": "here"}, "damaged"),
        ({"leader": 3}, "damaged"),
        ({"more": 1}, "damaged"),
    ],
)
def test_what_kit_json_cannot_say_is_an_error(copy, changes, said):
    about = json.loads((copy / "kit.json").read_text())
    (copy / "kit.json").write_text(json.dumps(about | changes))
    with pytest.raises(DataError, match=said):
        Kit.read(copy)


@pytest.mark.parametrize(("days", "said"), [(400, "expired on"), (-30, "clock")])
def test_a_kit_outside_of_its_dates_says_so(kits, monkeypatch, days, said):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr(module, "datetime", Clock)
    with pytest.raises(SettingError, match=said):
        Kit.read(kits["c"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_damage_is_an_error_of_ours_or_changes_nothing(kits, copy, data):
    name = data.draw(st.sampled_from(FILES))
    good = (kits["a.b"] / name).read_bytes()
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(start + 40, len(good))))
    damaged = good[:start] + data.draw(st.binary(max_size=20)) + good[end:]
    if data.draw(st.booleans()):
        damaged = damaged[:start]
    (copy / name).write_bytes(damaged)
    try:
        read = Kit.read(copy)
    except SfumatoError:
        pass
    else:  # spaces, or text around a certificate
        assert (read.name, read.role, read.leader) == ("a.b", "site", "leader")
    finally:
        (copy / name).write_bytes(good)


def test_a_kit_that_cannot_be_read_is_an_error_of_ours(copy):
    if os.geteuid() == 0:
        pytest.skip("nothing is kept from the superuser")
    (copy / "key.pem").chmod(0)
    with pytest.raises(DataError, match="cannot be read"):
        Kit.read(copy)
