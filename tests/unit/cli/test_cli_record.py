"""``sfumato record`` and ``sfumato conformance``."""

import json

import pytest
from releases import joint
from typer.testing import CliRunner

from sfumato.cli import app

RUN = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "model"
    joint(folder)
    return folder


def test_a_person_fills_in_the_template(folder, tmp_path):
    facts = tmp_path / "people.toml"
    assert RUN.invoke(app, ["record", "--template", str(facts)]).exit_code == 0
    again = RUN.invoke(app, ["record", "--template", str(facts)])
    assert again.exit_code == 1
    assert "not written over" in again.output
    draft = RUN.invoke(app, ["record", str(folder), "--facts", str(facts)])
    assert draft.exit_code == 0, draft.output
    assert "missing  justification" in draft.output
    assert "refused  deployment.basic.publication_date" in draft.output
    text = facts.read_text().replace('publication_date = ""', "publication_date = 2026-03-31")
    curators = '[[data_curators]]\ndata_curator_name = "A"\ndata_curator_type = "Industry"\n'
    facts.write_text(f"{text}\n{curators}")
    filled = RUN.invoke(app, ["record", str(folder), "--facts", str(facts)])
    assert "valid" in filled.output
    assert "refused" not in filled.output
    assert "2026-03-31" in (folder / "release" / "deployment.yaml").read_text()


@pytest.mark.parametrize("words", [[], ["model"], ["model", "--template", "x"], ["--facts", "x"]])
def test_what_is_to_be_done_has_to_be_said(words):
    found = RUN.invoke(app, ["record", *words])
    assert found.exit_code == 2
    assert "--template FILE alone" in found.output


def test_conformance_as_text_and_as_json(folder, tmp_path):
    said = RUN.invoke(app, ["conformance", str(folder)])
    assert said.exit_code == 0, said.output
    assert "NIST SP 800-226" in said.output
    assert "unanswered" in said.output
    found = json.loads(RUN.invoke(app, ["conformance", str(folder / "release"), "--json"]).output)
    assert found["for_release"] is True
    assert len(found["blocks"]) == 5
    refused = RUN.invoke(app, ["conformance", str(folder / "release"), "--ledger", "x"])
    assert refused.exit_code == 1
    assert "--audit and --ledger" in refused.output
