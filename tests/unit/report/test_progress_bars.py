"""``progress=True``: a bar on a terminal, HTML in a notebook, nothing where nobody looks."""

import contextlib
import io
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import sfumato as sf

TENSOR = sf.synthetic.ratings_like(20, 15, 4, entries=200)


class Screen(io.StringIO):
    def isatty(self):
        return True


class Notebook(ModuleType):
    """What IPython is in a kernel, without the widgets that a notebook may lack."""

    def __init__(self):
        super().__init__("IPython")
        self.shown, self.anew = [], []
        self.display = SimpleNamespace(HTML=str, display=self._display)

    def get_ipython(self):
        return SimpleNamespace(kernel=None)

    def _display(self, html, display_id):
        assert display_id
        self.shown.append(html)
        return SimpleNamespace(update=self.anew.append)


@pytest.fixture
def notebook(monkeypatch):
    made = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", made)
    monkeypatch.setitem(sys.modules, "IPython.display", made.display)
    monkeypatch.setattr("sfumato.report.progress._BETWEEN", 0.0)
    return made


def fit(**settings):
    return sf.CP(1, **settings).fit(TENSOR)


def said_by(call):
    screen = Screen()
    with contextlib.redirect_stderr(screen):
        call()
    return screen.getvalue()


def test_a_terminal_shows_a_bar_and_takes_it_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    said = said_by(lambda: fit(progress=True))
    assert "fitting CP" in said
    assert said.rstrip().endswith("\x1b[2K")  # the line is empty again
    assert not said_by(lambda: fit(progress=False))


def test_where_nobody_looks_nothing_is_said(capsys):
    fit(progress=True)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_has_one_line_that_stays(notebook, capsys):
    fit(progress=True)
    assert len(notebook.shown) == 1
    bars = [html for html in notebook.anew if html.startswith("<progress ")]
    assert 'value="1"' in bars[0]
    assert "training RMSE" in bars[-1]
    assert re.fullmatch(r"fitting CP: (\d+) of \1, training RMSE [\d.]+, [\d.]+ s", notebook.anew[-1])
    assert capsys.readouterr() == ("", "")


PUBLIC = sf.Public(labels=True, entries=TENSOR.n_entries)


def privacy(unit, **more):
    return sf.Privacy(5.0, 1e-5, unit, seed=0, **more)


def a_search(progress):
    candidates = [sf.CP(rank, progress=progress) for rank in (1, 2)]
    return sf.PrivateSearch(candidates, privacy("entry", public=PUBLIC)).fit(TENSOR)


FITS = {
    "private": lambda progress: sf.CP(1, progress=progress, privacy=privacy("entry", public=PUBLIC)).fit(
        TENSOR
    ),
    "search": a_search,
    "power": lambda progress: sf.PowerMethod(1, progress=progress).fit(np.ones((3, 3, 3))),
    "coupled": lambda progress: sf.Coupled(1, progress=progress).fit({"a": TENSOR}),
}


@pytest.mark.parametrize("kind", FITS)
def test_every_estimator_has_a_bar(kind, notebook):
    wanted = {"private": "fitting CP", "search": "searching", "power": "fitting PowerMethod"}
    FITS[kind](True)
    assert notebook.anew[-1].startswith(wanted.get(kind, "fitting Coupled"))
    assert " of " in notebook.anew[-1]


def test_a_fit_that_fails_ends_its_bar(notebook):
    def fails(progress):
        with sf.CP(1, progress=progress)._watched() as told:
            told(1, 9, SimpleNamespace(train_rmse=None))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails(True)
    assert notebook.anew[-1].startswith("fitting CP: 1 of 9, ")


def test_what_is_neither_a_function_nor_a_bar_is_refused():
    with pytest.raises(sf.SettingError, match="True for a bar"):
        fit(progress="yes")
