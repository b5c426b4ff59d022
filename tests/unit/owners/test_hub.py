"""What holds for every hub, with sites in this process."""

import logging
import subprocess
import sys

import pytest

import sfumato.owners
from sfumato.errors import DataError, MissingExtraError, SettingError, SiteLostError
from sfumato.owners import cells
from sfumato.owners.hub import MOST_TOPIC, UNEXPECTED, Answers, InProcess, Reply, replied


def echo(topic, message):
    return topic.encode() + b":" + message


def raising(error):
    def handler(topic, message):
        raise error

    return handler


def test_each_site_gets_its_message_and_answers_are_by_name():
    with InProcess({"a": echo, "b": echo}) as hub:
        assert hub.sites == hub.present() == ("a", "b")
        hub.wait(1)
        answers = hub.ask("sum", {"a": b"1", "b": b""}, 5)
        assert answers == Answers({"a": b"sum:1", "b": b"sum:"}, {})
        assert hub.ask("sum", {"b": b"2"}, 5).given == {"b": b"sum:2"}
    assert hub.present() == ()
    with pytest.raises(SettingError, match="closed"):
        hub.ask("sum", {"a": b"1"}, 5)


@pytest.mark.parametrize("error", [ConnectionError(), TimeoutError(), ConnectionResetError()])
def test_whoever_is_lost_is_in_neither(error):
    hub = InProcess({"a": echo, "b": raising(error)})
    assert hub.ask("t", {"a": b"", "b": b""}, 5) == Answers({"a": b"t:"}, {})
    hub.away.add("a")
    assert hub.ask("t", {"a": b"", "b": b""}, 5) == Answers({}, {})


def test_errors_of_ours_are_refusals_even_if_they_are_connection_errors():
    hub = InProcess({"a": raising(DataError("too few")), "b": raising(SiteLostError("gone"))})
    answers = hub.ask("t", {"a": b"", "b": b""}, 5)
    assert answers == Answers({}, {"a": "DataError: too few", "b": "SiteLostError: gone"})


@pytest.mark.parametrize(
    "handler", [raising(ValueError("entry 17")), lambda t, m: "text", lambda t, m: None]
)
def test_other_errors_stay_at_the_site(handler, caplog):
    with caplog.at_level(logging.ERROR, "sfumato.owners"):
        answers = InProcess({"a": handler}).ask("t", {"a": b""}, 5)
    assert answers == Answers({}, {"a": UNEXPECTED})
    assert caplog.records[0].exc_info is not None


def test_interrupts_are_no_refusals():
    with pytest.raises(KeyboardInterrupt):
        replied(raising(KeyboardInterrupt()), "t", b"")


def test_the_text_of_a_refusal_is_one_short_line_whatever_was_sent():
    assert Reply(False, b"a\nb\x1b[31m\xff c").text == "a b [31m\ufffd c"
    assert len(Reply(False, b"x" * 10**6).text) == 2000
    assert Reply(False, "\ud800".encode(errors="replace")).text == "?"


@pytest.mark.parametrize(
    ("topic", "messages", "seconds"),
    [
        ("t", {"c": b""}, 5),
        ("t", {"a": "text"}, 5),
        ("t", {"a": bytearray(b"1")}, 5),
        ("", {"a": b""}, 5),
        ("t" * (MOST_TOPIC + 1), {"a": b""}, 5),
        (7, {"a": b""}, 5),
        ("t", {"a": b""}, 0),
        ("t", {"a": b""}, float("nan")),
    ],
)
def test_what_cannot_be_asked_is_an_error_before_anybody_is(topic, messages, seconds):
    asked = []
    hub = InProcess({"a": lambda *it: asked.append(it) or b"", "b": echo})
    with pytest.raises(SettingError):
        hub.ask(topic, messages, seconds)
    assert not asked


def test_a_hub_has_sites():
    with pytest.raises(SettingError, match="at least one site"):
        InProcess({})


def test_waiting_names_who_is_missing_and_ends_when_all_are_there():
    hub, told = InProcess({"a": echo, "b": echo, "c": echo}), []
    hub.away |= {"b", "c"}
    with pytest.raises(SiteLostError, match="b, c") as raised:
        hub.wait(0.01, told.append)
    assert "a," not in str(raised.value)
    assert told == [("b", "c")]

    def arriving(missing):
        told.append(missing)
        hub.away.discard(missing[0])

    hub.wait(60, arriving)
    assert told[1:] == [("b", "c"), ("c",)]


def test_flare_is_imported_by_those_who_need_it_and_asked_for_where_it_is_missing(monkeypatch):
    code = "import sys, sfumato.owners.cells; sys.exit(any('nvflare' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.delattr(sfumato.owners, "flare", raising=False)
    monkeypatch.setitem(sys.modules, "sfumato.owners.flare", None)
    with pytest.raises(MissingExtraError, match=r"sfumato\[owners\]"):
        cells._flare()
