"""Each step has an address to come back to; tabs do not mix, and none of them spends twice."""

import re

import pytest
from paging import FILE, HOME, Visitor, fields, write_table, wrong_in

from sfumato.page import drafts
from sfumato.page.drafts import Draft, Drafts
from sfumato.page.jobs import Job


@pytest.fixture
def visitor(tmp_path):
    write_table(tmp_path / FILE)
    return Visitor(tmp_path).enter()


def address_of(visitor, answer):
    assert answer.status_code == 303
    return answer.headers["location"].removeprefix(HOME + visitor.shop.known.base)


def sent(visitor, step="budget", **changed):
    """The address that a step leads to."""
    return address_of(visitor, visitor.post("/fit", {**fields(**changed), "step": step}))


def test_every_form_leads_to_an_address(visitor, monkeypatch):
    monkeypatch.setattr(Job, "start", lambda _: None)
    monkeypatch.setattr(Job, "seconds", 0)
    answers = [
        visitor.post("/fit", {**fields(), "step": "columns"}),
        visitor.post("/open", {"path": "no"}),
    ]
    answers += [visitor.post("/open", {"path": FILE}), visitor.post("/start", fields())]
    answers += [visitor.start()]
    for answer in answers:
        assert answer.status_code == 303
        assert visitor.get(address_of(visitor, answer)).status_code in (200, 400)


def test_an_address_shows_the_same_fields_however_often(visitor):
    address = sent(visitor, low="-3")
    for _ in range(2):
        page = visitor.get(address).text
        assert 'value="-3"' in page
        assert 'name="nonce"' in page


def test_drafts_of_tabs_do_not_mix(visitor):
    first, second = sent(visitor, low="-1"), sent(visitor, low="-2")
    assert first != second
    assert 'value="-1"' in visitor.get(first).text
    assert 'value="-2"' in visitor.get(second).text


def test_coming_back_after_a_fit_asks_anew_with_the_ledger_as_it_is(visitor, monkeypatch):
    monkeypatch.setattr(Job, "start", lambda _: None)
    address = sent(visitor)
    nonce = re.search(r'name="nonce" value="([^"]+)"', visitor.get(address).text)[1]
    assert visitor.start(nonce).status_code == 303
    monkeypatch.setattr(Job, "state", "done")
    assert "has been used" in wrong_in(visitor.start(nonce))[0]  # a page that the browser had kept
    again = re.search(r'name="nonce" value="([^"]+)"', visitor.get(address).text)[1]
    assert again != nonce
    assert len(visitor.shop.ordered) == 1


def test_a_refusal_has_an_address_too(visitor):
    answer = visitor.post("/start", {**fields(), "nonce": "wrong"})
    page = visitor.get(address_of(visitor, answer))
    assert page.status_code == 400
    assert wrong_in(page)[0].startswith("This confirmation has been used")


def test_what_is_not_kept_is_told(visitor):
    page = visitor.get("/fit/nothing")
    assert page.status_code == 410
    assert "Open the file again" in page.text
    assert visitor.get("/", params={"draft": "nothing"}).status_code == 200


def test_as_many_drafts_are_kept_as_are_needed_and_no_secrets(monkeypatch):
    monkeypatch.setattr(drafts, "_MOST", 3)
    kept = Drafts()
    names = [kept.keep(Draft({"low": str(n), "csrf": "x", "nonce": "y"})) for n in range(5)]
    assert [kept.find(name) is None for name in names] == [True, True, False, False, False]
    assert kept.find(names[-1]).fields == {"low": "4"}


def test_what_is_listed_is_in_no_address(visitor, monkeypatch):
    monkeypatch.setattr(Job, "start", lambda _: None)
    job = address_of(visitor, visitor.start())
    address = address_of(visitor, visitor.post(f"{job}/top", {"mode": "drug", "label-0": "p17"}))
    assert address.startswith(f"{job}?draft=")
    assert "p17" not in address
