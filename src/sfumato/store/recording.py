"""Records of what is on disk: facts of people put into a release, and a page on how it conforms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sfumato.checks import as_path
from sfumato.data.io.privatised_files import is_privatised, read_privatised
from sfumato.data.io.write import replacing
from sfumato.errors import ModelFileError, SettingError
from sfumato.privacy.account import read_ledger
from sfumato.privacy.guarantee import Guarantee
from sfumato.standards.conformance import Conformance, answered
from sfumato.standards.deployment import DATASET, MODEL, deployment
from sfumato.standards.people import check_people, read_people
from sfumato.standards.schema import Problem, problems
from sfumato.store.manifest import Contents, existing_folder, read_folder, with_manifest
from sfumato.store.models import rebound_owner, write_folder, write_private
from sfumato.store.names import EARLIER, HOLDERS_REPORT, NOT_FOR_RELEASE, OWNER, RELEASE
from sfumato.store.reading import SMALL, damage, parse_json, read_file
from sfumato.store.signatures import signed_by
from sfumato.store.writing import record_files
from sfumato.surface import either
from sfumato.typed import check_fields, finite_number

_PathLike = str | os.PathLike[str]
Facts = Mapping[str, Any] | _PathLike | None
_UNSIGNED = "not signed, so that a forgery is not"


def write_record(folder: _PathLike, facts: Facts) -> tuple[Problem, ...]:
    """Put what people say into the label and the record of a release; gives what the registry refuses.

    The folder of a private fit, or a release, takes the place of the old one whole; a signature does not
    outlive it. Of a file of privatised values both are written beside it.

    Parameters
    ----------
    folder : path
        A release, the folder of a private fit, or a file of privatised values.
    facts : path or mapping
        A file of TOML, as ``sfumato record --template`` writes one, or a mapping like it.

    Returns
    -------
    tuple of Problem
        None of them where the registry takes the record as it is.

    Examples
    --------
    >>> import sfumato as sf
    >>> noisy = sf.privatise(sf.synthetic.ratings_like(30, 20, 5, 400), epsilon=3)
    >>> files = sf.write_privatised(noisy, "noisy.csv")
    >>> problems = sf.write_record(
    ...     "noisy.csv", {"intended_use": "Recommending films"}
    ... )
    >>> print(problems[0])
    deployment.basic.data_curators.0.data_curator_type: has to be one of
        Government, Industry, Nonprofit
    """
    people = _people(facts)
    if is_privatised(folder):
        return _write_beside(Path(folder), people)
    path = existing_folder(folder)
    holder = os.path.lexists(path / RELEASE)
    release = read_folder(path / RELEASE if holder else path)
    guarantee = _releasable(release)
    with damage(release.path):
        made_by = str(release.description["versions"]["sfumato"])
    kept = {name: content for name, content in release.files.items() if name != EARLIER}
    files = with_manifest({**kept, **record_files(guarantee, people, made_by)})
    if holder:
        there = os.path.lexists(path / OWNER)
        owner = rebound_owner(path / OWNER, release, files) if there else None
        mine = path / HOLDERS_REPORT
        beside = {HOLDERS_REPORT: read_file(mine)} if mine.is_file() else {}
        write_private(files, owner, path, beside)
    else:
        write_folder(files, path)
    return problems(deployment(guarantee, people, product=MODEL, version=made_by))


def _write_beside(file: Path, people: Mapping[str, Any]) -> tuple[Problem, ...]:
    guarantee, made_by = _privatised(file), version("sfumato")
    for name, content in record_files(guarantee, people, made_by, DATASET).items():
        with replacing(file.with_name(f"{file.name}.{name}")) as opened:
            opened.write(content)
    return problems(deployment(guarantee, people, product=DATASET, version=made_by))


def _privatised(file: _PathLike) -> Guarantee:
    return Guarantee.from_json(dict(read_privatised(file).promises[0]))


def _releasable(release: Contents) -> Guarantee:
    if NOT_FOR_RELEASE in release.files or release.guarantee is None:
        raise ModelFileError(f"{release.path} promises nothing that could be recorded: name a release")
    if release.manifest is None:
        raise ModelFileError(f"{release.path} is of an earlier version: load it and save it again")
    return release.guarantee


# -- conformance ----------------------------------------------------------------------------------


def conformance(
    model: _PathLike,
    facts: Facts = None,
    *,
    audit: _PathLike | None = None,
    ledger: _PathLike | None = None,
) -> Conformance:
    """Answer the questions of NIST SP 800-226 for a model, as far as they can be.

    Parameters
    ----------
    model : path
        A release, the folder of a private fit, or a file of privatised values.
    facts : path or mapping
        What people say, as :func:`write_record` takes it.
    audit, ledger : path or None
        Files that an audit and a ledger have written, for the folder of a private fit alone: they
        depend on the data, and a page about a release says nothing that the release does not.

    Returns
    -------
    Conformance
        Printed, it is a page.

    Examples
    --------
    >>> import sfumato as sf
    >>> noisy = sf.privatise(sf.synthetic.ratings_like(30, 20, 5, 400), epsilon=3)
    >>> files = sf.write_privatised(noisy, "noisy.csv")
    >>> print(str(sf.conformance("noisy.csv")).splitlines()[0])
    NIST SP 800-226, March 2025: 19 of 30 questions answered
    """
    people = _people(facts)
    if is_privatised(model):
        _refuse(audit, ledger)
        hashed = "no" if Path(model).suffix.lower() == ".parquet" else "by a hash, if by accident"
        return answered(_privatised(model), people, changes=f"{hashed}; {_UNSIGNED}")
    path = existing_folder(model)
    holder = os.path.lexists(path / RELEASE)
    if not holder:
        _refuse(audit, ledger)
    guarantee, key = _releasable(read_folder(path / RELEASE if holder else path)), signed_by(path)
    return answered(
        guarantee,
        people,
        changes=f"by its manifest, if by accident; {_UNSIGNED if key is None else f'signed by {key}'}",
        audit=None if audit is None else _audited(as_path("audit", audit), guarantee),
        ledger=None if ledger is None else _spent(ledger, guarantee),
    )


def _refuse(*files: _PathLike | None) -> None:
    if any(file is not None for file in files):
        raise SettingError(
            "this is what is released, and an audit or a ledger says more of the data: give the "
            f"folder of the fit, or leave out {either('audit= and ledger=', '--audit and --ledger')}"
        )


def _audited(file: Path, guarantee: Guarantee) -> str:
    """What an audit of such a fit has found."""
    path = file / "audit.json" if file.is_dir() else file
    found = parse_json(read_file(path, 64 * SMALL), path)
    with damage(path):
        promise = found["promise"]
        check_fields({"verdict": found["verdict"]}, {"verdict": str}, "an audit")
        about = {name: promise[name] for name in ("unit", "neighbours", "method")}
        amount = {name: finite_number(promise[name], name) for name in ("epsilon", "delta")}
    if about != {name: getattr(guarantee, name) for name in about}:
        raise SettingError(f"{path} is about another promise: {', '.join(map(str, about.values()))}")
    guarantee.odds().check_audit(about["unit"], **amount)
    said: str = found["verdict"]
    return said


def _spent(file: _PathLike, guarantee: Guarantee) -> str:
    """What a ledger says, which has to hold the charges of the model."""
    account = read_ledger(file)
    if guarantee.ledger_mark not in (None, *account.marks):
        raise SettingError(
            f"{os.fspath(file)} does not hold the charges of this model, which were made to "
            f"{guarantee.ledger}: give that file"
        )
    return " ".join(account.in_words().split())


def _people(facts: Facts) -> dict[str, Any]:
    if facts is None:
        return {}
    return read_people(facts) if isinstance(facts, str | os.PathLike) else check_people(facts)
