"""Messages name a setting as the surface does that they are read on."""

import ast
import re
from pathlib import Path

import pytest

import sfumato as sf
from sfumato.errors import ReleaseError
from sfumato.privacy.guarantee import Guarantee
from sfumato.surface import command_line, either, setting

SOURCES = Path(sf.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z]")
# A command that is quoted whole can be run from anywhere.
WHOLE_COMMAND = re.compile(r"`sfumato [^`]*`")
# Modules that are read on the command line, and on the page that runs it, alone.
NOT_PYTHONS = ("cli/", "demo.py", "estimators/planning.py", "page/", "papers/")


@pytest.mark.parametrize(
    ("words", "python", "shell"),
    [
        (("unseen", "bias"), 'unseen="bias"', "--unseen bias"),
        (("max_entries",), "max_entries", "--max-entries"),
        (
            ("duplicates", "mean", "last", "sum"),
            'duplicates="mean", "last" or "sum"',
            "--duplicates mean, last or sum",
        ),
    ],
)
def test_a_setting_is_an_argument_or_a_flag(words, python, shell):
    assert setting(*words) == python
    with command_line():
        assert setting(*words) == shell
        assert either("a", "b") == "b"
    assert setting(*words) == python
    assert either("a", "b") == "a"


def test_after_an_error_messages_are_read_from_python_again():
    with pytest.raises(ValueError, match="--seed"), command_line():
        raise ValueError(setting("seed"))
    assert setting("seed") == "seed"


def literals_outside_of_either(node):
    """Text of a module, without docstrings and without what is said on the command line alone."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "either":
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from literals_outside_of_either(child)


def test_from_python_no_flag_is_named():
    found = [
        (path.name, text)
        for path in SOURCES.rglob("*.py")
        if not str(path.relative_to(SOURCES)).startswith(NOT_PYTHONS)
        for text in literals_outside_of_either(ast.parse(path.read_text("utf-8")))
        if FLAG.search(WHOLE_COMMAND.sub("", text))
    ]
    assert not found


def test_a_fit_that_diverged_is_advised_on_both():
    tensor = sf.synthetic.ratings_like(20, 15, 6, 300)
    estimator = sf.CP(2, solver=sf.SGD(step=50.0, passes=20))
    with pytest.raises(sf.SfumatoError, match="smaller step"):
        estimator.fit(tensor)
    with command_line(), pytest.raises(sf.SfumatoError, match="--solver als"):
        estimator.fit(tensor)


def guarantee(**more):
    return Guarantee(
        **{
            "epsilon": 1.0,
            "delta": 0.0,
            "unit": "one entry",
            "neighbours": "one entry is added",
            "released": ("mean",),
            "method": "m",
            "proven": True,
            "proof": "p",
            "exact": True,
            "seeded": False,
            "assumptions": (),
            **more,
        }
    )


@pytest.mark.parametrize(
    ("doubt", "python", "shell"),
    [
        ({"proven": False}, 'analysis="proven"', "--analysis proven"),
        ({"seeded": True}, "seed=None", "without --noise-seed"),
    ],
)
def test_what_is_not_released_is_said_on_both(doubt, python, shell):
    with pytest.raises(ReleaseError, match=re.escape(python)):
        guarantee(**doubt).check_releasable(force=False)
    with command_line(), pytest.raises(ReleaseError, match=re.escape(shell)):
        guarantee(**doubt).check_releasable(force=False)
