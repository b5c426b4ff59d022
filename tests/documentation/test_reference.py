"""The reference is made from docstrings: none is missing, they name what there is, examples run."""

import doctest
import inspect
import os
import sys
from collections import defaultdict
from functools import cached_property
from pathlib import Path

import pytest
from numpydoc.docscrape import NumpyDocString

import sfumato as sf
from sfumato import diagnostics, metrics
from sfumato.estimators.parameters import Parametrised
from sfumato.solvers.protocol import PrivateSolver, Silent, Solver

MODULES = [getattr(sf, name) for name in sf.__all__ if inspect.ismodule(getattr(sf, name))]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DATA, DATA_SETS = Path(os.environ.get("SFUMATO_DATA", "")), ("ml-100k", "mnist", "uclaf")
SAID_ONCE = (Solver, PrivateSolver, Silent)  # what all solvers have is told there


def own(module):
    """What a module defines for others."""
    there = {
        name: each
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", "") == module.__name__
    }
    return {n: each for n, each in there.items() if inspect.isclass(each) or inspect.isfunction(each)}


def public_names():
    """All that the reference is about, by the names that people write."""
    yield from ((name, getattr(sf, name)) for name in sf.__all__)
    for module in (metrics, diagnostics):
        yield module.__name__.rpartition(".")[2], module
    for module in (*MODULES, metrics, diagnostics):
        short = module.__name__.rpartition(".")[2]
        yield from ((f"{short}.{name}", each) for name, each in own(module).items())


def public_methods():
    """Methods and properties of the public classes, where a class of the package defines them."""
    for owner, each in NAMES.items():
        if not inspect.isclass(each):
            continue
        for name in (name for name in dir(each) if not name.startswith("_")):
            found = inspect.getattr_static(each, name)
            home = next(base for base in each.__mro__ if name in vars(base))
            described = (property, cached_property, classmethod, staticmethod)
            if home.__module__.startswith("sfumato") and (
                inspect.isfunction(found) or isinstance(found, described)
            ):
                yield f"{owner}.{name}", (each, name, found)


NAMES = dict(public_names())
METHODS = dict(public_methods())


def said(owner, name, found):
    """What is said of a method: by its class, by one above it, or once for all solvers."""
    once = SAID_ONCE if ".solvers." in owner.__module__ else ()
    above = [vars(base)[name] for base in (*owner.__mro__, *once) if name in vars(base)]
    texts = [inspect.getdoc(getattr(each, "__func__", each)) for each in (found, *above)]
    return next(filter(None, texts), "")


def parameters(each):
    """Names of what a function or a class of the package is called with."""
    if inspect.isclass(each) and issubclass(each, tuple):
        return list(each._fields)
    called = each.__init__ if inspect.isclass(each) else each
    if not getattr(called, "__module__", "").startswith("sfumato"):
        return []  # a module, or a class that is made as its built-in base is
    names = inspect.signature(called).parameters
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def documented(text):
    """Names under *Parameters*, in order; where the text is no numpydoc, that is a warning."""
    listed = NumpyDocString(text)["Parameters"]
    return [name.lstrip("*") for entry in listed for name in entry.name.split(", ")]


def test_every_name_is_explained_with_an_example():
    silent = [name for name, each in NAMES.items() if not inspect.getdoc(each)]
    assert not silent
    without = [n for n, each in NAMES.items() if not NumpyDocString(inspect.getdoc(each))["Examples"]]
    assert not without


def test_every_method_is_explained():
    assert not [name for name, method in METHODS.items() if not said(*method)]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_names_are_those_that_they_have(name):
    assert sorted(documented(inspect.getdoc(NAMES[name]))) == sorted(parameters(NAMES[name]))


def test_parameters_of_methods_are_those_that_they_have():
    """Estimators list all of them; elsewhere a line may say it."""
    wrong = {}
    for name, (owner, short, found) in METHODS.items():
        told, function = documented(said(owner, short, found)), getattr(found, "__func__", found)
        there = parameters(function) if inspect.isfunction(function) else []
        if (told or issubclass(owner, Parametrised)) and sorted(told) != sorted(there):
            wrong[name] = told
    assert not wrong


def examples():
    """Docstrings with examples, by the module that they are in."""
    texts = {name: (each, inspect.getdoc(each)) for name, each in NAMES.items()}
    texts |= {
        name: (owner, said(owner, short, found)) for name, (owner, short, found) in METHODS.items()
    }
    grouped = defaultdict(dict)
    for name, (each, text) in texts.items():
        home = each.__name__ if inspect.ismodule(each) else each.__module__
        if ">>>" in text and text not in grouped[home].values():
            grouped[home][name] = text
    return grouped


EXAMPLES = examples()


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_of_a_module_run(module, tmp_path, monkeypatch):
    if module.endswith(".datasets") and not all((DATA / name).is_dir() for name in DATA_SETS):
        pytest.skip(f"{', '.join(DATA_SETS)} are not all in the folder SFUMATO_DATA")
    runner, said_wrong = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS), []
    for name, text in EXAMPLES[module].items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        test = doctest.DocTestParser().get_doctest(text, {}, name, sys.modules[module].__file__, 0)
        runner.run(test, out=said_wrong.append)
    assert not said_wrong, "".join(said_wrong)
