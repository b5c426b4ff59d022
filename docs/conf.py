"""How Sphinx builds the site: ``make docs``, without a network and with warnings as errors.

Sources are the repository's own pages, so that a link between two files holds on a code host too. The
repository's root is the source folder, this folder the configuration's.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

import sfumato

ROOT = Path(__file__).resolve().parents[1]

project = "sfumato"
author = "The sfumato developers"
release = version = sfumato.__version__
root_doc = "docs/index"
language = "en-GB"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
]
include_patterns = ["docs/**", "proofs/*.md", "benchmarks/README.md", "*.md"]
exclude_patterns = [
    "docs/_static/**",
    "docs/reference/_templates/**",
    "README.md",
]  # the index has its place

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages may begin with a second level, as notes do

templates_path = [str(ROOT / "docs/reference/_templates")]
autosummary_generate = True
autodoc_typehints = "none"  # docstrings say types in words
autodoc_member_order = "bysource"
default_role = "literal"  # docstrings name things in single backticks, too
numpydoc_show_class_members = False  # the templates list them
numpydoc_class_members_toctree = False

html_theme = "furo"
html_title = "sfumato"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"


def pages_named(index: str) -> set[str]:
    """The pages of this folder that the index lists by name."""
    fences = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    return {line.split("<")[-1].rstrip(">").strip() for fence in fences for line in fence.splitlines()}


def list_other_pages(_app: Sphinx, page: str, source: list[str]) -> None:
    """New pages need no line in the index: those that it does not name go where it says so."""
    if page == root_doc:
        known = pages_named(source[0]) | {Path(root_doc).name, "../README"}
        pages = sorted(each.stem for each in (ROOT / "docs").glob("*.md"))
        files = sorted(f"../{each.stem}" for each in ROOT.glob("*.md"))
        for mark, found in (("OTHER-PAGES", pages), ("OTHER-FILES", files)):
            source[0] = source[0].replace(mark, "\n".join(each for each in found if each not in known))
    elif page == "proofs/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def lead_to_index(app: Sphinx, error: Exception | None) -> None:
    """A page at the top of the site that goes on to the index."""
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "index.html").write_text(
            '<!doctype html><html lang="en-GB"><meta charset="utf-8"><title>sfumato</title>'
            '<meta http-equiv="refresh" content="0; url=docs/index.html">'
            '<a href="docs/index.html">sfumato</a></html>\n',
            encoding="utf-8",
        )


def setup(app: Sphinx) -> None:
    app.connect("source-read", list_other_pages)
    app.connect("build-finished", lead_to_index)
