"""The page in a real browser, as somebody uses it: with the mouse, and with the keyboard alone."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from paging import write_table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="there is no Chromium, which these tests drive"
)
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGS += ["--disable-sync", "--no-first-run"]
PATIENCE = 60_000  # milliseconds: the machine may be busy, and the first fit compiles
SERVE = "from sfumato.cli import main; main()"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "Debian's chromium has to be installed: apt-get install chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of the command itself, on a folder with a table."""
    folder = tmp_path_factory.mktemp("browser")
    for name in ("trial.csv", "plain.csv"):
        write_table(folder / name)
    (folder / "few.csv").write_text("a,b\n1,2\n")
    words, notes = ["page", "--folder", str(folder), "--no-browser"], folder / "notes.txt"
    with (  # a file: a pipe that nobody empties would stop the page once it is full
        notes.open("w") as said,
        subprocess.Popen([sys.executable, "-c", SERVE, *words], stderr=said) as served,
    ):
        until(lambda: "\n" in notes.read_text() or served.poll() is not None)
        first = notes.read_text().partition("\n")[0]
        assert first.startswith("the page is at "), first
        yield first.split()[-1]
        served.terminate()


@pytest.fixture
def page(browser, address):
    """A browser that has been let in, and may ask nobody else for anything."""
    context = browser.new_context(viewport={"width": 900, "height": 900})
    opened, asked, wrong = context.new_page(), [], []
    opened.set_default_timeout(PATIENCE)
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console", lambda message: wrong.append(message.text) if "Policy" in message.text else None
    )
    opened.goto(address)
    opened.wait_for_url("**/")
    yield opened
    home = address.partition("/enter")[0]
    assert not wrong
    assert all(url.startswith(home) for url in asked), asked
    context.close()


def until(holds):
    """Wait for what a page comes to by itself, asked from outside: its policy forbids to poll inside."""
    end = time.monotonic() + PATIENCE / 1000
    while not holds():
        assert time.monotonic() < end, "this never came to hold"
        time.sleep(0.05)


def fill(field, text):
    """Type into a field, again where a page that is still being shown takes the focus away meanwhile."""

    def kept():
        field.fill(text)
        return field.input_value() == text

    until(kept)


def shown(page):
    """Wait until a page has come, and has put the focus where it wants it."""
    page.wait_for_load_state()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def choose_columns(page, file="trial.csv"):
    fill(page.get_by_label("A file below"), file)
    page.get_by_role("button", name="Open").click()
    for column, role in {"patient": "mode", "drug": "mode", "score": "value"}.items():
        page.get_by_label(f"What {column} is").select_option(role)
    go_on(page)
    page.get_by_role("group", name="Protect").wait_for()


def go_on(page):
    page.get_by_role("button", name="Go on", exact=True).last.click()


def fill_in(page, epsilon, file="trial.csv", wait=None):
    """Everything up to what is expected."""
    choose_columns(page, file)
    say_what_is_public(page)
    choose_epsilon(page, epsilon, wait or shown)


def choose_epsilon(page, epsilon, wait=shown):  # without scripts there are no frames to wait for
    """Once the step has come to rest: what is clicked while it moves to its place is not hit."""
    field = page.get_by_label("epsilon, the budget")
    field.wait_for()
    wait(page)
    fill(field, epsilon)


def say_what_is_public(page):
    page.get_by_label("Everything about one patient").check()
    go_on(page)
    fill(page.get_by_label("Lowest value"), "1")
    fill(page.get_by_label("Highest value"), "5")
    fill(page.get_by_role("group", name="patient").get_by_label("How many there are at most"), "80")
    drug = page.get_by_role("group", name="drug")
    fill(drug.get_by_label("How many there are"), "20")
    drug.get_by_label("Which there are").select_option("range")
    fill(page.get_by_label("About how many entries"), "900")
    go_on(page)


def go_on_to_what_is_expected(page):
    say_what_is_public(page)
    choose_epsilon(page, "0.1")  # as other tests may have spent some
    page.get_by_role("button", name="See what to expect").click()
    page.get_by_role("button", name="Spend epsilon").wait_for()


def test_the_whole_journey(page):
    fill_in(page, "2")
    expected = page.locator("#expected")
    expected.get_by_text("2 (yours)").wait_for()
    fill(page.locator("#slide"), "0")  # one: what is expected follows at once
    expected.get_by_text("1 (yours)").wait_for()
    fill(page.get_by_label("Share to hold out"), "0.2")
    fill(page.get_by_label("The most that all fits"), "1.2")
    page.get_by_role("button", name="See what to expect").click()
    page.get_by_role("button", name="Try it on invented data").click()
    page.locator("#preview").get_by_text("constant, not private").wait_for()
    page.get_by_role("button", name="Spend epsilon 1 and fit").click()
    page.get_by_role("heading", name="Take it with you").wait_for()
    page.get_by_text("NOT FOR RELEASE.").wait_for()
    page.get_by_text("all entries of one patient, their presence included").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="The release").click()
    assert download.value.suggested_filename == "release.zip"
    fill(page.get_by_label("for this patient"), "p1")
    page.get_by_role("button", name="List").click()
    page.get_by_text("This uses the own row of one patient").wait_for()
    again_within_the_limit(page)


def again_within_the_limit(page):
    """What is left does not cover another fit: the page refuses, and says what to do."""
    page.get_by_role("link", name="Change something and fit again").click()
    page.get_by_text("This fit is refused").wait_for()
    page.get_by_text("choose a smaller epsilon in step 5").wait_for()
    assert page.get_by_role("button", name="Spend").count() == 0
    shown(page)
    fill(page.get_by_label("epsilon, the budget"), "0.1")
    page.get_by_role("button", name="See what to expect").click()
    assert page.get_by_role("button", name="Spend epsilon 0.1 and fit").is_enabled()
    shown(page)  # what is typed before that is the next test's
    fill(page.get_by_label("Highest value"), "6")
    assert page.get_by_role("button", name="Changed: see what to expect again").is_disabled()


def test_what_is_typed_before_the_script_has_come_counts_as_changed(page):
    fill_in(page, "0.1")
    held = []

    def hold(route):
        held.append(route)

    page.route("**/page.js", hold)
    page.get_by_role("button", name="See what to expect").click()
    spend = page.get_by_role("button", name="Spend epsilon 0.1 and fit")
    spend.wait_for()
    fill(page.get_by_label("Highest value"), "6")
    assert spend.is_enabled()
    held.pop().continue_()
    assert page.get_by_role("button", name="Changed: see what to expect again").is_disabled()


def test_a_wrong_file_and_wrong_numbers_are_told_beside_the_field(page):
    fill(page.get_by_label("A file below"), "few.csv")
    page.get_by_role("button", name="Open").click()
    field = page.get_by_label("A file below")
    assert field.get_attribute("aria-invalid") == "true"
    said = page.locator("#" + field.get_attribute("aria-describedby").split()[-1])
    assert "has 2 columns" in said.inner_text()
    field.and_(page.locator(":focus")).wait_for()  # the page is still being shown
    page.get_by_label("or a file from elsewhere").set_input_files(
        {"name": "notes.csv", "mimeType": "text/csv", "buffer": b"\xff\xfe"}
    )
    page.get_by_role("button", name="Open").click()
    page.locator("#wrong-upload").wait_for()


def test_the_keyboard_is_enough(page):
    """Tab, letters, arrows and Enter; where the focus is can be seen."""
    page.locator("[name=path]:focus").wait_for()  # from the start
    page.keyboard.type("trial.csv")
    page.keyboard.press("Enter")
    page.get_by_label("What patient is").wait_for()
    shown(page)
    for label, letters in {"patient": "a", "drug": "a", "score": "th"}.items():
        reach(page, f"What {label} is")
        page.keyboard.type(letters)
    page.keyboard.press("Enter")
    reach(page, "Go on")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.get_by_role("group", name="Protect").wait_for()
    shown(page)
    tab_to(page, "input[name=unit]")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    page.get_by_label("Lowest value").wait_for()
    assert page.get_by_label("Everything about one patient").is_checked()


def reach(page, name):
    tab_to(
        page,
        f"[aria-label='{name}'], button.go:not([aria-label])"
        if name == "Go on"
        else f"[aria-label='{name}']",
    )


def tab_to(page, selector):
    """Press Tab until what is wanted has the focus."""
    for _ in range(60):
        if page.evaluate(f'document.activeElement.matches("{selector}")'):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never comes to {selector}")


def test_a_fit_is_cancelled(page, monkeypatch):
    fill_in(page, "0.2")
    page.get_by_role("button", name="See what to expect").click()
    page.get_by_role("button", name="Spend epsilon").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("heading", name="Cancelled").wait_for()
    page.get_by_text("What was charged until then stays charged").wait_for()
    back_to_the_steps(page)


def back_to_the_steps(page):
    """The browser's own Back asks for nothing to be sent again: each step has an address."""
    for heading in ("Try it, and confirm", "How private, and how accurate"):
        assert page.go_back().request.method == "GET"
        page.get_by_role("heading", name=heading).wait_for()
    assert page.get_by_label("epsilon, the budget").input_value() == "1"  # as this step was first shown
    page.go_forward()
    page.get_by_role("button", name="Spend epsilon 0.2 and fit").wait_for()


def test_all_of_it_works_without_scripts(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.wait_for_url("**/")
    fill_in(page, "2", "plain.csv", wait=lambda each: each.wait_for_load_state())
    page.get_by_role("button", name="See what to expect").click()
    page.get_by_role("button", name="Spend epsilon 2 and fit").click()
    page.get_by_role("heading", name="Take it with you").wait_for()
    page.get_by_label("for this patient").fill("p1")
    page.get_by_role("button", name="List").click()
    page.get_by_text("This uses the own row of one patient").wait_for()
    assert page.reload().request.method == "GET"
    page.get_by_text("This uses the own row of one patient").wait_for()
    context.close()


# Cells with a word that is broken into lines elsewhere than at a dash.
BROKEN_WORDS = """[...document.querySelectorAll(".wide th, .wide td")].filter(cell => {
  const text = cell.firstChild;
  if (cell.querySelector("code") || text?.nodeType !== Node.TEXT_NODE) return false;
  return [...text.data.matchAll(/[^\\s-]+/g)].some(word => {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return range.getClientRects().length > 1;
  });
}).map(cell => cell.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_on_a_narrow_screen(page, scheme):
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme=scheme)
    choose_columns(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    until(lambda: page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgba(0, 0, 0, 0)")
    colours = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    bright = [sum(map(float, colour[4:-1].split(","))) for colour in colours]
    assert (bright[0] > bright[1]) == (scheme == "dark")
    go_on_to_what_is_expected(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(BROKEN_WORDS) == []
    unlabelled = page.evaluate(
        "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
        ".filter(field => !field.labels?.length && !field.ariaLabel).length"
    )
    assert unlabelled == 0
