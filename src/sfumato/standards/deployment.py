"""A record of a release for OpenDP's registry of deployments, at its third and fullest tier.

What the guarantee says is filled in, what people say is taken from them, and what neither says is marked
as missing. Without a date of publication, and one of the schema's words for who publishes, a record is a
draft that the schema refuses: they are not for a program to make up.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from sfumato.privacy.guarantee import Guarantee
from sfumato.standards.people import FACTS, MISSING, Fact, People, missing
from sfumato.standards.schema import Schema, deployments_schema
from sfumato.standards.yaml import to_yaml

TIER = 3
MODEL, DATASET = "Machine learning model", "Dataset"
_WIDTH = 100
_MODELS = {"whoever": "Central", "each": "Federated", "nobody": "Local"}  # by how `trusts` begins


def deployment_yaml(record: dict[str, Any], people: People) -> str:
    """The record as a file, which begins with what is missing."""
    lacking = ", ".join(fact.name for fact in missing(people))
    head = "A record for the registry of differential privacy deployments, https://registry.opendp.org."
    if lacking:
        head += (
            f" A DRAFT: people have not said {lacking}. `sfumato record --template people.toml` "
            "writes what to fill in, `sfumato record MODEL --facts people.toml` puts it here."
        )
    comment = textwrap.fill(head, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    return f"{comment}\n{to_yaml(record)}"


def deployment(guarantee: Guarantee, people: People, *, product: str, version: str) -> dict[str, Any]:
    """The record, as the schema nests it; ``version`` is that of sfumato which made the release."""
    said = dict(guarantee.said())  # of what is said several times, the last
    record: dict[str, Any] = {
        "url_slug": people.get("url_slug", _marked("url_slug")),
        "deployment": {
            "basic": {
                "description": _paragraphs(
                    f"{_description(product)} with {said['promise']}. Released: {said['released']}."
                ),
                "data_product_type": product,
            },
            "dp_variant": {
                "variant_name": variant(guarantee),
                "data_domain": _paragraphs(
                    "All data sets that the fit could have been given, the real one being one of them. "
                    "Of each of them is taken to be true:",
                    *_listed(guarantee.assumptions),
                ),
                "unprotected_quantities": _unprotected(guarantee),
            },
            "privacy_loss": {
                "privacy_unit": guarantee.unit,
                "privacy_unit_details": _relation(guarantee),
                "privacy_parameters": _parameters(guarantee),
                "privacy_parameters_details": _paragraphs(
                    f"Status: {said['status']}.",
                    *(f"{_capital(text)}." for title, text in guarantee.said() if title == "odds"),
                    *(f"Warning: {warning}." for warning in guarantee.warnings),
                ),
            },
            "deployment_model": {
                "model_name": model_name(guarantee),
                "trust_assumptions": _paragraphs(
                    f"Trusted: {guarantee.trust}. Not trusted: everybody who sees the release; they may "
                    "know the program, its settings and the data of all other units."
                ),
                "release_type": "One release" if guarantee.periods is None else "Many releases",
                "access_type": "Non-interactive",
                "access_type_details": "Files are handed out; nobody asks the data through them.",
            },
            "implementation": _implementation(guarantee, said, people, version),
            "administrative": {"status": "Draft", "tier": TIER},
        },
    }
    for fact in FACTS:
        _fill_in(record["deployment"], fact, people)
    return _in_order(record, deployments_schema())


def variant(guarantee: Guarantee) -> str:
    """What the registry calls the variant; it has no name for joint privacy."""
    if guarantee.joint:
        return "Custom"
    if guarantee.rho is not None:
        return "Zero-concentrated DP"
    return "Approximate DP" if guarantee.delta else "Pure DP"


def model_name(guarantee: Guarantee) -> str:
    """Where noise is added, by who is trusted."""
    return _MODELS.get(guarantee.trust.split(maxsplit=1)[0].strip(":,"), "Varies")


# -- parts ----------------------------------------------------------------------------------------


def _description(product: str) -> str:
    return "Noisy data" if product == DATASET else "Parameters of a model, fitted by sfumato"


def _parameters(guarantee: Guarantee) -> dict[str, float]:
    found = {"epsilon": guarantee.epsilon, "delta": guarantee.delta or None, "rho": guarantee.rho}
    return {name: number for name, number in found.items() if number is not None}


def _relation(guarantee: Guarantee) -> str:
    """Which data sets have to look alike, and to whom."""
    lines = [f"Neighbours: {guarantee.neighbours}."]
    if guarantee.cap is not None:
        lines.append(f"At most {guarantee.cap:,} entries of a unit are used.")
    if guarantee.joint:
        alike = "epsilon and delta" if guarantee.delta else "epsilon"
        lines += [
            "The variant is joint differential privacy, by this relation:",
            f"- Input metric: in how many units two data sets differ, where {guarantee.neighbours}.",
            "- Bound on the input distance: one.",
            f"- Output measure: for each {guarantee.owner} whose data differ, the divergence between "
            "all that is seen by everybody else together: the release, and the rows and predictions "
            f"of every other {guarantee.owner}. What that {guarantee.owner} itself is shown is not part "
            "of it.",
            f"- Bound on the output distance: {alike} as given, in both directions.",
        ]
    return _paragraphs(*lines)


def _unprotected(guarantee: Guarantee) -> str:
    public = [each for each in guarantee.assumptions if "public" in each]
    lines = (
        ["Taken to be public, and so not protected:", *_listed(public)]
        if public
        else ["Nothing that is released goes without protection."]
    )
    if guarantee.kept:
        lines.append(
            f"Not released, and not protected from who is shown them: {', '.join(guarantee.kept)}."
        )
    return _paragraphs(*lines)


def _implementation(
    guarantee: Guarantee, said: dict[str, str], people: People, version: str
) -> dict[str, Any]:
    tuning = guarantee.tuning or "no setting of the fit was chosen by looking at the data"
    covered = "as the proof says" if guarantee.proven else "as a paper claims"
    claimed = "" if guarantee.proven else "If what is CLAIMED holds: "
    own = (
        f" Rows of each {guarantee.owner} are solved by whoever holds its data."
        if guarantee.kept
        else ""
    )
    return {
        "preprocessing_and_hyperparameter_tuning": _paragraphs(
            f"Tuning: {tuning}.", f"Before the fit: {people.get('preparation', _marked('preparation'))}"
        ),
        "mechanisms": _paragraphs(
            f"Method {guarantee.method} of sfumato {version}. Arithmetic: {said['arithmetic']}.",
            f"Security of the data: {people.get('security', _marked('security'))}",
            f"Collection of the data: {people.get('collection', _marked('collection'))}",
        ),
        "composition": _paragraphs(
            f"All that the fit draws is accounted for together, {covered} ({guarantee.proof}).",
            f"Ledger: {said['ledger']}.",
        ),
        "post_processing": _paragraphs(
            f"{claimed}What is released is computed from noisy answers and public numbers, and so are "
            f"predictions from it.{own}"
        ),
        "additional_information": _paragraphs(
            f"Whom to ask: {people.get('contact', _marked('contact'))}",
            *([people["additional_information"]] if "additional_information" in people else []),
        ),
    }


def _fill_in(deployment: dict[str, Any], fact: Fact, people: People) -> None:
    """Put a fact in its place; of one that is missing a mark, where the schema has room for one."""
    if fact.path is None:
        return
    *parents, last = fact.path
    place = deployment
    for name in parents:
        place = place[name]
    if last in place:  # which holds it already, among what the guarantee says
        return
    if fact.name in people:
        place[last] = people[fact.name]
    elif fact.name == "data_curators":
        place[last] = [{"data_curator_name": _marked(fact.name), "data_curator_type": MISSING}]
    elif fact.name == "registry_authors":
        place[last] = [_marked(fact.name)]
    elif fact.text or fact.name == "publication_date":
        place[last] = _marked(fact.name)


def _in_order(record: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Fields in the order of the schema, in which people look for them."""
    return {
        name: _in_order(record[name], each) if "properties" in each else record[name]
        for name, each in schema["properties"].items()
        if name in record
    }


def _marked(name: str) -> str:
    return f"{MISSING}: {next(fact.asks for fact in FACTS if fact.name == name)}"


# -- text -----------------------------------------------------------------------------------------


def _listed(items: Sequence[str]) -> list[str]:
    return [f"- {item}" for item in items]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _paragraphs(*texts: str) -> str:
    """Lines that people read in a file; Markdown joins those of a paragraph again."""
    filled = (
        "\n".join(
            textwrap.wrap(
                text, _WIDTH, subsequent_indent="  " * text.startswith("- "), break_on_hyphens=False
            )
        )
        for text in texts
    )
    return "\n".join(filled)
