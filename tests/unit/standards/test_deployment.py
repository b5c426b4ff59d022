"""Records for the registry: valid by its schema, and of nothing but what is promised or said."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from releases import KINDS, PEOPLE

import sfumato as sf
from sfumato.fit.privatising import NOBODY
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.trust import Trust
from sfumato.standards.deployment import DATASET, MODEL, deployment, deployment_yaml, model_name, variant
from sfumato.standards.people import FACTS, MISSING
from sfumato.standards.schema import deployments_schema, problems

JUDGE = jsonschema.Draft7Validator(
    deployments_schema(), format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
)
# What a draft lacks that no marked text can stand for.
OPEN = {
    ("deployment", "basic", "data_curators", "0", "data_curator_type"),
    ("deployment", "basic", "publication_date"),
}


def made(**changes):
    said = Guarantee(
        epsilon=0.75,
        delta=1e-6,
        unit="all entries of one user, their presence included",
        neighbours="all entries of one user are added or removed",
        released=("mean", "rows of item"),
        method="moments",
        proven=True,
        proof="proofs/moments.md",
        exact=True,
        seeded=False,
        assumptions=("the bounds of the values are public", "no two users are the same one"),
    )
    return replace(said, **changes)


def judged(record):
    """Where the package that the registry uses finds a record wrong."""
    return {tuple(map(str, error.absolute_path)) for error in JUDGE.iter_errors(record)}


@pytest.fixture(scope="module", params=list(KINDS))
def release(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "model"
    KINDS[request.param](folder)
    inner = folder / "release"
    return request.param, folder, inner if inner.is_dir() else folder


def test_the_pinned_schema_is_a_schema_and_says_where_it_comes_from():
    schema = deployments_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    assert re.search(r"deployments-registry-data at commit [0-9a-f]{40}", schema["$comment"])


def test_records_of_all_kinds_of_releases(release):
    """Drafts lack what is of people; with it they are valid, and say all that tier 3 asks for."""
    kind, folder, inner = release
    draft = yaml.safe_load((inner / "deployment.yaml").read_text("utf-8"))
    assert judged(draft) == OPEN == {problem.path for problem in problems(draft)}
    assert sf.write_record(folder, PEOPLE) == ()
    text = (inner / "deployment.yaml").read_text("utf-8")
    record = yaml.safe_load(text)
    assert not judged(record)
    assert MISSING not in text
    assert record["deployment"]["administrative"]["tier"] == 3
    assert set(fields_of(record)) >= wanted_fields()
    parameters = record["deployment"]["privacy_loss"]["privacy_parameters"]
    guarantee = json.loads((inner / "guarantee.json").read_text("utf-8"))
    assert parameters["epsilon"] == guarantee["epsilon"]
    assert parameters.get("delta", 0.0) == guarantee["delta"]
    joint = record["deployment"]["dp_variant"]["variant_name"] == "Custom"
    assert joint == (kind in ("joint", "coupled"))
    trusted = record["deployment"]["deployment_model"]["model_name"]
    assert trusted == ("Local" if kind == "local" else "Central")


def fields_of(record, path=()):
    for name, value in record.items():
        if isinstance(value, dict):
            yield from fields_of(value, (*path, name))
        else:
            yield (*path, name)


def wanted_fields():
    """The fields that the schema asks for at any tier, but for what has parts and two remarks."""
    found = set()
    for block, schema in deployments_schema()["properties"]["deployment"]["properties"].items():
        for name, each in schema["properties"].items():
            if "tier" in each and each.get("type") != "object":
                found.add(("deployment", block, name))
    remarks = {"model_name_details", "data_source_type_details"}
    return {path for path in found if path[-1] not in remarks}


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def numbers_in(text):
    return {float(found.replace(",", "")) for found in NUMBER.findall(text)}


def test_no_number_comes_from_anywhere_else(release):
    """But from the guarantee and from people: beside the tier, and the version of sfumato."""
    _, folder, inner = release
    sf.write_record(folder, {**PEOPLE, "number_of_privacy_units": 123_457})
    guarantee = sf.load(folder).guarantee_
    record = yaml.safe_load((inner / "deployment.yaml").read_text("utf-8"))
    known = (
        numbers_in(str(guarantee).replace("\n", " ")) | numbers_in(json.dumps(PEOPLE)) | {123_457.0, 3.0}
    )
    known |= {guarantee.epsilon, guarantee.delta} | numbers_in(str(guarantee.epsilon))
    known |= numbers_in(sf.__version__)
    assert numbers_in(json.dumps(record)) <= known
    assert numbers_in((inner / "LABEL.md").read_text("utf-8")) <= known


def test_variants_have_the_names_of_the_registry():
    assert variant(made()) == "Approximate DP"
    assert variant(made(delta=0.0)) == "Pure DP"
    assert variant(made(rho=0.1)) == "Zero-concentrated DP"
    assert variant(made(kept=("rows of user",), owner="user")) == "Custom"


def test_joint_privacy_spells_out_its_relation():
    record = deployment(made(kept=("rows of user",), owner="user"), {}, product=MODEL, version="1")
    details = " ".join(record["deployment"]["privacy_loss"]["privacy_unit_details"].split())
    for part in (
        "Input metric",
        "Bound on the input distance: one",
        "Output measure",
        "output distance",
    ):
        assert part in details
    assert "every other user" in details


def test_the_deployment_model_follows_from_who_is_trusted():
    trusted = {
        "Central": Trust(),
        "Federated": Trust("each site", 3),
    }
    for name, trust in trusted.items():
        assert model_name(made(trust=trust.in_words())) == name
    assert model_name(made(trust=Trust("secure shares", 5, 2).in_words())) == "Federated"
    assert model_name(made(trust=NOBODY)) == "Local"
    assert model_name(made(trust="a friend")) == "Varies"


def test_a_claim_is_marked_as_one_everywhere():
    record = deployment(made(proven=False, proof="no proof"), {}, product=MODEL, version="1")
    assert "CLAIMED" in record["deployment"]["privacy_loss"]["privacy_parameters_details"]
    assert "CLAIMED" in record["deployment"]["implementation"]["post_processing"]


def test_the_records_of_privatised_values_lie_beside_them(tmp_path):
    from releases import ratings

    noisy = tmp_path / "noisy.csv"
    sf.write_privatised(sf.privatise(ratings(), epsilon=2), noisy)
    assert sf.write_record(noisy, PEOPLE) == ()
    record = yaml.safe_load((tmp_path / "noisy.csv.deployment.yaml").read_text("utf-8"))
    assert not judged(record)
    assert record["deployment"]["basic"]["data_product_type"] == DATASET
    assert record["deployment"]["deployment_model"]["model_name"] == "Local"
    assert PEOPLE["contact"] in (tmp_path / "noisy.csv.LABEL.md").read_text("utf-8")
    assert sf.conformance(noisy).for_release


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.sampled_from([fact.name for fact in FACTS])))
def test_whatever_people_leave_out_is_marked(left_out):
    people = {name: value for name, value in PEOPLE.items() if name not in left_out}
    record = deployment(made(), people, product=MODEL, version="1")
    text = deployment_yaml(record, people)
    assert yaml.safe_load(text) == record
    assert judged(record) == {problem.path for problem in problems(record)}
    assert judged(record) <= OPEN
    named = {name for name in left_out if name != "evidence_sources"}
    assert all(name in text.partition("url_slug:")[0] or name == "url_slug" for name in named)
    for name in named & {"name", "contact", "security", "collection", "justification"}:
        assert f"{MISSING}: {next(f.asks for f in FACTS if f.name == name)}" in " ".join(
            json.dumps(record).replace("\\n", " ").split()
        )


# -- the small validator --------------------------------------------------------------------------


def nodes(value, path=()):
    yield path
    parts = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, inner in parts:
        yield from nodes(inner, (*path, name))


WHOLE = deployment(made(), PEOPLE, product=MODEL, version="1")
JUNK = st.sampled_from(
    [None, True, 3, 2.0, 2.5, "", "x", "2026-01-01", [], ["x"], {}, {"x": 1}, "Dataset"]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([path for path in nodes(WHOLE) if path]),
    JUNK,
    st.sampled_from(["put", "drop", "add"]),
)
def test_it_judges_as_the_package_does(path, junk, how):
    record = json.loads(json.dumps(WHOLE))
    place = record
    for name in path[:-1]:
        place = place[name]
    if how == "drop" and isinstance(place, dict):
        del place[path[-1]]
    elif how == "add" and isinstance(place, dict):
        place["added"] = junk
    else:
        place[path[-1]] = junk
    assert bool(problems(record)) == bool(judged(record))
