"""The label: a page with all that is promised, and with what is not."""

import re
from dataclasses import replace

import pytest
from releases import KINDS
from test_deployment import made

import sfumato as sf
from sfumato.standards.label import label

PAGE = 70  # lines of a hundred characters


@pytest.mark.parametrize("changes", [{}, {"proven": False}, {"seeded": True}, {"warnings": ("weak",)}])
@pytest.mark.parametrize("joint", [False, True])
def test_all_that_is_promised_is_on_it_once(changes, joint):
    guarantee = made(**changes)
    if joint:
        guarantee = replace(guarantee, kept=("rows of user",), owner="user", cap=7)
    text = " ".join(label(guarantee).split())
    for _, said in guarantee.said():
        assert " ".join(said.split()) in text


def test_it_says_what_is_not_protected():
    text = " ".join(label(made()).split())
    assert "What is not protected" in text
    assert "in general" in text
    replaced = made(neighbours="one value is replaced", unit="one value")
    assert "may be seen" in label(replaced)
    assert "may be seen" not in text
    assert "is shown of its own" in label(made(kept=("rows of user",), owner="user"))


def test_whom_to_ask():
    assert "nobody is named" in label(made())
    assert "the reading room" in label(made(), "the reading room")


@pytest.mark.parametrize("kind", ["joint", "power"])
def test_it_fits_on_a_page(kind, tmp_path):
    KINDS[kind](tmp_path / "model")
    lines = label(sf.load(tmp_path / "model").guarantee_).splitlines()
    assert len(lines) <= PAGE
    assert max(map(len, lines)) <= 100
    assert sum(bool(re.match("## ", line)) for line in lines) == 8
