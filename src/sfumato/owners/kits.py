"""What each party of a fit between owners is given beforehand: who it is, whom to trust, where to meet.

A *kit* is a folder with four files:

=====================  ==============================================================================
``kit.json``           version, name and role (``leader`` or ``site``) of who has the kit; the leader's
                       name and address; the names of all sites
``certificate.pem``    the name, bound to a key by the root
``key.pem``            that key. Whoever has it can pose as this party: send it to its owner alone
``root.pem``           the root that all parties' certificates are checked against
=====================  ==============================================================================

The leader's certificate is good for listening alone and a site's for dialling alone, so that no site can
play the leader.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sfumato.checks import as_names, as_path, check_count, check_text, shown, wrong
from sfumato.data.io.folders import new_folder, sync, writing
from sfumato.errors import DataError, SettingError

VERSION = 1
LEADER, SITE = "leader", "site"
ABOUT, CERTIFICATE, KEY, ROOT = "kit.json", "certificate.pem", "key.pem", "root.pem"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_BITS = 3072
_EARLY = timedelta(days=1)  # clocks of several owners differ
_MOST_DAYS = 3650
_MOST_SITES = 1000
_MOST_BYTES = 1 << 20  # of a file in a kit
_USES = {LEADER: ExtendedKeyUsageOID.SERVER_AUTH, SITE: ExtendedKeyUsageOID.CLIENT_AUTH}
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    UnsupportedAlgorithm,
    InvalidSignature,
    RecursionError,
)


@dataclass(frozen=True)
class Kit:
    """A kit that was read and found good."""

    folder: Path
    name: str
    role: str
    leader: str
    sites: tuple[str, ...]
    address: str  # host:port, as sites dial it

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def certificate(self) -> Path:
        return self.folder / CERTIFICATE

    @property
    def key(self) -> Path:
        return self.folder / KEY

    @property
    def root(self) -> Path:
        return self.folder / ROOT

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Kit:
        """A kit from its folder, or an error that says what is wrong with it."""
        place = as_path("folder", folder).absolute()
        if not place.is_dir():
            raise SettingError(f"{place} is no folder: name the folder of a kit, as make_kits made it")
        if not (place / ABOUT).exists():
            raise SettingError(
                f"{place} has no {ABOUT}, so it is no kit. A party's kit is a folder inside of the one "
                "that make_kits was given"
            )
        kit = cls(place, **_described(place / ABOUT))
        _check_certificate(kit)
        return kit

    def check_role(self, role: str) -> None:
        """Refuse a kit that was made for the other side."""
        if self.role != role:
            raise SettingError(
                f"{self.folder} is the kit of {self.name}, a {self.role}; this needs the kit of a {role}"
            )


def make_kits(
    folder: str | os.PathLike[str], address: str, sites: list[str], leader: str = LEADER, days: int = 365
) -> dict[str, Path]:
    """Kits for a leader and for all sites, each in a folder of its party's name inside of ``folder``.

    A new root is made for them. Its key is not kept: nobody can make a further certificate, and a site
    that joins later needs a new set of kits for everybody. All kits are there, or none.

    Parameters
    ----------
    folder : a new folder, or an empty one.
    address : where sites reach the leader, such as ``"fits.example.org:8443"``.
    sites : their names: letters, digits, ``-``, ``_`` and ``.``, up to 64 of them.
    leader : its name.
    days : until kits are of no use any more.

    Returns
    -------
    The folder of each kit, by name.
    """
    place = as_path("folder", folder).absolute()
    check_count(1, _MOST_DAYS, days=days)
    names = as_names("sites", sites)
    check_names(names, leader)
    check_address(address)
    if os.path.lexists(place) and not (place.is_dir() and not any(place.iterdir())):
        raise SettingError(f"{place} is there already: name a new folder for the kits")
    root = _Root(days)
    with new_folder(place) as (new, _), writing(place):
        for name in (leader, *names):
            role = LEADER if name == leader else SITE
            about = {"version": VERSION, "name": name, "role": role, "address": address}
            about |= {"leader": leader, "sites": names}
            _write(new / name, root.issued(name, role, address.rpartition(":")[0]), about)
    return {name: place / name for name in (leader, *names)}


def check_names(sites: list[str], leader: str) -> None:
    """Refuse names that no certificate, folder or message could carry, or that look alike."""
    check_text(leader=leader)
    if not 0 < len(sites) <= _MOST_SITES:
        raise wrong("sites", f"a list of 1 to {_MOST_SITES} names", sites)
    for name in (leader, *sites):
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"{shown(name)} cannot be the name of a party: use 1 to 64 letters (a to z), digits, "
                "'-', '_' and '.', with a letter or a digit first"
            )
    folded = [name.lower() for name in sites]  # names are folders, and some disks do not tell case
    for name in sites:
        if name.lower() == leader.lower():
            raise SettingError(f"a site and the leader are both called {name}: rename one of them")
        if folded.count(name.lower()) > 1:
            raise SettingError(f"two sites are called {name} (case does not count): rename one of them")


def check_address(address: str) -> None:
    """Refuse what is not a host and a port."""
    check_text(address=address)
    host, _, port = address.rpartition(":")
    if not (_HOST.fullmatch(host) and re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) < 2**16):
        raise wrong("address", 'a host and a port, such as "fits.example.org:8443"', address)


# -- making ---------------------------------------------------------------------------------------


class _Root:
    """A new root, for as long as kits are made with it."""

    def __init__(self, days: int) -> None:
        now = datetime.now(UTC)
        self._from, self._until = now - _EARLY, now + timedelta(days=days)
        self._key = generate_private_key(65537, _BITS)
        self._name = _named("sfumato owners")
        self.certificate = self._signed(self._name, self._key, x509.BasicConstraints(True, 0))

    def _signed(
        self, name: x509.Name, key: RSAPrivateKey, kind: x509.BasicConstraints, *more: x509.ExtensionType
    ) -> x509.Certificate:
        usage = x509.KeyUsage(
            digital_signature=not kind.ca,
            key_encipherment=not kind.ca,
            key_cert_sign=kind.ca,
            crl_sign=kind.ca,
            content_commitment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
            .add_extension(kind, critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (issuer, *more):
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issued(self, name: str, role: str, host: str) -> dict[str, bytes]:
        """A key and its certificate, and this root, as files."""
        key = generate_private_key(65537, _BITS)
        others = [_host_name(host)] if role == LEADER else []
        certificate = self._signed(
            _named(name),
            key,
            x509.BasicConstraints(False, None),
            x509.SubjectAlternativeName([x509.DNSName(name), *others]),
            x509.ExtendedKeyUsage([_USES[role]]),
        )
        return {
            CERTIFICATE: certificate.public_bytes(Encoding.PEM),
            KEY: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            ROOT: self.certificate.public_bytes(Encoding.PEM),
        }


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(folder: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    folder.mkdir(mode=0o700)
    content = dict(files) | {ABOUT: json.dumps(about, indent=2).encode() + b"\n"}
    for name, part in content.items():
        mode = 0o600 if name == KEY else 0o644
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(handle, "wb") as file:
            file.write(part)
        sync(folder / name)


# -- reading --------------------------------------------------------------------------------------


def _content(path: Path) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise _damaged(path, "missing, or not a file of a kit")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _damaged(path: Path, why: object) -> DataError:
    return DataError(
        f"{path} is damaged ({why}): ask whoever made the kits for a new copy, or have all made anew"
    )


def _described(path: Path) -> dict[str, Any]:
    """What kit.json says, every part checked."""
    try:
        about = json.loads(_content(path).decode("utf-8"))
        version = about.pop("version")
    except (*_UNREADABLE, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise _damaged(path, "no JSON of a kit") from error
    if version != VERSION:
        raise DataError(
            f"{path} is of version {shown(version)}, and this version of sfumato reads {VERSION}: use "
            "the same version everywhere, or have the kits made anew"
        )
    if about.keys() != {"name", "role", "address", "leader", "sites"}:
        raise _damaged(path, f"it has the parts {shown(sorted(about))}")
    try:
        sites = as_names("sites", about["sites"])
        check_names(sites, about["leader"])
        check_address(about["address"])
    except SettingError as error:
        raise _damaged(path, error) from error
    who = {LEADER: [about["leader"]], SITE: sites}
    if not isinstance(about["role"], str) or about["name"] not in who.get(about["role"], []):
        raise _damaged(path, f"nobody is called {shown(about['name'])} there")
    return {**about, "sites": tuple(sites)}


def _check_certificate(kit: Kit) -> None:
    """A certificate of this party, for its role, by this root, not expired, and with its own key."""
    certificate, root = (_certificate(path) for path in (kit.certificate, kit.root))
    try:
        key = load_pem_private_key(_content(kit.key), password=None)
        fits = key.public_key() == certificate.public_key()
    except _UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        raise _damaged(kit.key, "no private key, or one with a password") from error
    if not fits:
        raise _damaged(kit.key, f"it is not the key of {CERTIFICATE}")
    try:
        certificate.verify_directly_issued_by(root)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        (name,) = (attribute.value for attribute in names)
    except (*_UNREADABLE, x509.ExtensionNotFound) as error:
        raise _damaged(kit.certificate, f"not a certificate of the root in {ROOT}") from error
    if name != kit.name or list(uses) != [_USES[kit.role]]:
        raise DataError(
            f"{kit.certificate} is of {shown(name)}, and {ABOUT} of {kit.name}, a {kit.role}: files of "
            "two kits were mixed. Use one kit as it was made"
        )
    _check_dates(kit, min(certificate.not_valid_after_utc, root.not_valid_after_utc), certificate)


def _check_dates(kit: Kit, until: datetime, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now > until:
        raise SettingError(
            f"the kit of {kit.name} expired on {until:%d %B %Y}: have new kits made for all parties"
        )
    if now < certificate.not_valid_before_utc:
        raise SettingError(
            f"the kit of {kit.name} is good from {certificate.not_valid_before_utc:%d %B %Y} on: see "
            "whether this machine's clock is right"
        )


def _certificate(path: Path) -> x509.Certificate:
    content = _content(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except _UNREADABLE as error:
        raise _damaged(path, "no certificate") from error
