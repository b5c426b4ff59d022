"""Reports in a real browser: on paper, and with a mouse on the map."""

import os
import shutil

import numpy as np
import pytest
from releases import KINDS, ratings

import sfumato as sf
from sfumato.estimators.showing import privatised_page
from sfumato.report.page.contents import AuditRecord, Levels, Part, Shown
from sfumato.report.page.page import audit_page, page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="there is no Chromium, which these tests drive"
)
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGS += ["--disable-sync", "--no-first-run"]
UNSEEN = """
    () => [...document.querySelectorAll("details > :not(summary)")]
        .filter((part) => part.getBoundingClientRect().height < 5
            || !part.checkVisibility({contentVisibilityAuto: true}))
        .length
"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "Debian's chromium has to be installed: apt-get install chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield launched
        launched.close()


def of_audit(_):
    curve = tuple((x, x / 2, min(1.0, 2 * x), x, x / 2, min(1.0, 2 * x)) for x in (0.01, 0.1, 1.0))
    found = AuditRecord("consistent", False, 1.0, 1e-5, 0.2, 0.95, ("Attacked.",), 100, curve, curve[1])
    return audit_page(found)


def of_values(folder):
    sf.write_privatised(sf.privatise(ratings(), epsilon=3), folder.with_suffix(".csv"))
    return privatised_page(folder.with_suffix(".csv")).text


def of_model(kind):
    def made(folder):
        KINDS[kind](folder)
        sf.load(folder).report(folder.with_suffix(".html"))
        return folder.with_suffix(".html").read_text("utf-8")

    return made


def of_open_model(folder):
    sf.CP(2).fit(ratings()).report(folder.with_suffix(".html"))
    return folder.with_suffix(".html").read_text("utf-8")


PAGES = {
    "audit": of_audit,
    "values": of_values,
    "open": of_open_model,
    **{kind: of_model(kind) for kind in KINDS},
}


@pytest.mark.parametrize("scripts", [True, False], ids=["", "without scripts"])
@pytest.mark.parametrize("kind", PAGES)
def test_what_is_folded_is_there_on_paper(kind, scripts, browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGES[kind](tmp_path / "made"), "utf-8")
    context = browser.new_context(java_script_enabled=scripts)
    opened, wrong = context.new_page(), []
    opened.on("console", lambda message: wrong.append(message.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto(file.as_uri())
    assert opened.locator("details").count()
    opened.emulate_media(media="print")
    for _ in range(100):  # until it is laid out
        if not opened.evaluate(UNSEEN):
            break
        opened.wait_for_timeout(100)
    assert opened.evaluate(UNSEEN) == 0
    if scripts:
        opened.emulate_media(media="screen")
        opened.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert opened.locator("details:not([open])").count() == 0
        opened.evaluate("dispatchEvent(new Event('afterprint'))")
        assert opened.locator("details[open]").count() == 0
    assert not wrong
    context.close()


def test_a_click_on_the_map_shows_what_was_found(browser, tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 3))
    part = Part("", (Levels("item", lambda n: f"level {n}", rows),))
    file = tmp_path / "page.html"
    file.write_text(page(Shown("A model", (), None, (part,))).text, "utf-8")
    opened = browser.new_page(viewport={"width": 900, "height": 600})
    opened.goto(file.as_uri())
    dot = opened.locator("circle[data-level='17']")
    dot.scroll_into_view_if_needed()
    dot.dispatch_event("click")
    assert opened.locator(".found h4").inner_text() == "level 17"
    top = opened.evaluate("document.querySelector('.explorer').getBoundingClientRect().top")
    assert -1 <= top < 600
    opened.close()


def test_a_long_label_leaves_numbers_in_sight(browser, tmp_path):
    biases = np.linspace(-1, 1, 6)
    part = Part("", (Levels("item", lambda n: "x" * 100 + str(n), np.eye(6), biases),))
    file = tmp_path / "page.html"
    file.write_text(page(Shown("A model", (), None, (part,))).text, "utf-8")
    opened = browser.new_page(viewport={"width": 360, "height": 800})
    opened.goto(file.as_uri())
    ends = opened.evaluate(
        "[...document.querySelectorAll('table td')].map((cell) => cell.getBoundingClientRect().right)"
    )
    assert max(ends) <= 360
    opened.close()


@pytest.mark.parametrize("width", [400, 1000])
def test_long_names_of_modes_and_labels_stay_within_the_page_and_the_map(width, browser, tmp_path):
    rows = np.random.default_rng(0).normal(size=(80, 2))
    name = "a_name_of_a_mode_" * 6
    part = Part("", (Levels(name, lambda n: f"WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW{n}", rows),))
    shown = Shown(f"CP model of {name}", (("modes", name),), None, (part,))
    file = tmp_path / "page.html"
    file.write_text(page(shown).text, "utf-8")
    opened = browser.new_page(viewport={"width": width, "height": 800})
    opened.goto(file.as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    frame, *texts = opened.evaluate(
        """() => [document.querySelector("svg.map"), ...document.querySelectorAll("svg.map text")]
            .map((each) => each.getBoundingClientRect())
            .map((box) => [box.left, box.right])"""
    )
    assert len(texts) > 4
    assert all(frame[0] + 1 < left < right < frame[1] - 1 for left, right in texts)
    opened.close()
