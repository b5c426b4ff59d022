"""``sf.show``: a page in a notebook, or in the browser; and pages of what is no estimator."""

from __future__ import annotations

import tempfile
import webbrowser
from os import PathLike
from pathlib import Path
from typing import Any

from sfumato.checks import as_path
from sfumato.data.io.privatised_files import is_privatised, read_privatised
from sfumato.errors import SettingError
from sfumato.estimators.loading import load
from sfumato.estimators.reporting import read_audit
from sfumato.markup import tag
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.page.contents import Shown
from sfumato.report.page.page import Page, audit_page, page

_HEIGHT = 720  # of a page in a notebook


def show(model: Any, **options: Any) -> Path | None:
    """Show the report of a fitted model or of an audit: below a notebook's cell, else in the browser.

    Parameters
    ----------
    model : a fitted estimator, an :class:`Audit`, or the folder of a model.
    options : those of the estimator's ``report``, such as ``held_out``.

    Returns
    -------
    Path or None : the temporary file that the browser was given; None in a notebook.

    Examples
    --------
    >>> import sfumato as sf
    >>> model = sf.Biases().fit(sf.synthetic.ratings_like())
    >>> path = sf.show(model)  # doctest: +SKIP
    """
    made = load(model) if isinstance(model, str | PathLike) else model
    if not hasattr(made, "report"):
        raise SettingError(f"there is no page about a {type(made).__name__}: give a model or an audit")
    folder = Path(tempfile.mkdtemp(prefix="sfumato-"))  # for nobody else to read
    file = made.report(folder / "report.html", **options)
    shell = _notebook()
    if shell is None:
        webbrowser.open(file.as_uri())
        return Path(file)
    text = Path(file).read_text("utf-8")
    file.unlink()
    folder.rmdir()
    shell(_framed(text))
    return None


def _notebook() -> Any:
    """What displays HTML below a notebook's cell; None elsewhere."""
    try:
        from IPython import get_ipython
        from IPython.display import HTML, display
    except ImportError:
        return None
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return lambda text: display(HTML(text))


def _framed(text: str) -> str:
    """A page in a frame of its own, which can do nothing but run its own script."""
    return tag(
        "iframe",
        srcdoc=text,
        sandbox="allow-scripts allow-modals",
        width="100%",
        height=_HEIGHT,
        title="Report",
        style="border:1px solid #ccc",
    )


def privatised_page(file: str | PathLike[str]) -> Page:
    """Of a file of privatised values: what they have passed, and what that promises."""
    path = as_path("file", file)
    if not is_privatised(path):
        raise SettingError(f"{path} holds no privatised values")
    said = read_privatised(path)
    promise, passed = Guarantee.from_json(dict(said.promises[0])), said.passed[0]
    if passed is None:
        raise SettingError(f"values of {path} have passed nothing")
    modes = " \u00d7 ".join(f"{mode.size:,} {mode.name}" for mode in said.modes)
    facts = (("modes", modes), ("values", f"{said.n_entries:,}"))
    return page(Shown("Values that were privatised", facts, promise, passed=passed.in_words))


def audit_page_of(file: str | PathLike[str]) -> Page:
    """Of what an audit has written."""
    return Page(audit_page(read_audit(file)), for_release=False)
