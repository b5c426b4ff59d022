"""Messages in the words of the page: flags of the command line become names of fields."""

from __future__ import annotations

import re
from collections.abc import Iterable

_POLICY = r"(?:mean|last|sum|error)"
_NUMBER = r"(?: (?:N|-?[\d.]+(?:e-?\d+)?)(?![\w%]))"
_FLAGS = {  # with what may stand behind each, as messages write it
    "--public-units": (f"{_NUMBER}?", "“How many there are at most” in step 4"),
    "--public-labels": (r"(?: \S+=(?:FILE|\S+\.\.\d+))?", "“List them” in step 4"),
    "--labels-are-public": ("", "“those in the file, which everyone knows” in step 4"),
    "--public-entries": (f"{_NUMBER}?", "“About how many entries” in step 4"),
    "--public-spread": (f"{_NUMBER}?", "“About how far values lie from their mean” in step 4"),
    "--bounds": (f"{_NUMBER}{{0,2}}", "“Lowest value possible” and “Highest value possible” in step 4"),
    "--loss": (r"(?: (?:squared|poisson|logistic|seen))?", "what the value holds, in step 4"),
    "--duplicates": (
        f"(?: {_POLICY}(?:, {_POLICY})*(?: or {_POLICY})?)?",
        "“If a cell is given more than once” in step 4",
    ),
    "--max-entries": (f"{_NUMBER}?", "“how many of one owner, at most” in step 3"),
    "--local": (
        r"(?: (?:auto|none))?",
        "“rows of the model that stay with their owners” in step 3",
    ),
    "--unit": (r"(?: (?:value|entry)(?: or (?:value|entry))?)?", "what to protect, in step 3"),
    "--bin": ("", "“if it holds times” in step 2"),
    "--modes": ("", "the modes in step 2"),
    "--value": ("", "the value in step 2"),
    "--entries": ("", "“About how many entries” in step 4"),
    "--shape": (r"(?: \d+)*", "the numbers of levels in step 4"),
    "--epsilon": (f"{_NUMBER}?", "epsilon in step 5"),
    "--delta": (f"{_NUMBER}?", "delta in step 5"),
    "--target-rmse": (f"{_NUMBER}?", "the error that you can live with, in step 5"),
    "--target-odds": (f"{_NUMBER}?", "the odds that you can live with, in step 5"),
    "--test": (f"{_NUMBER}?", "“Share to hold out” in step 5"),
    "--ledger-limit": (
        f"{_NUMBER}?",
        "the most that all fits of this file may spend together, in step 5",
    ),
}
_FLAG = re.compile(
    "|".join(rf"{flag}(?![\w-]){behind}" for flag, (behind, _) in _FLAGS.items())
    + r"|(?<![\w-])--[a-z][a-z-]+"
)
_OWN = re.compile(r"[a-z]+(?=[ ,:]|$)")


def in_page_words(said: str) -> str:
    """A message of the command line as the page says it; flags without a field are said to be such."""
    return _FLAG.sub(_named, said)


def _named(found: re.Match[str]) -> str:
    flag = found[0].partition(" ")[0]
    return _FLAGS[flag][1] if flag in _FLAGS else f"{found[0]} on the command line"


def sentence(said: str, names: Iterable[str] = ()) -> str:
    """The same with a capital where it begins with a word of its own: names stay as they are written."""
    begins_with_name = any(said.startswith(name) for name in names if name)
    if begins_with_name or not _OWN.match(said):
        return said
    return said[0].upper() + said[1:]
