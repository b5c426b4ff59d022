"""The floor plan, as far as import-linter does not hold it: names of modules, and their lengths."""

import ast
from collections import defaultdict
from pathlib import Path

import sfumato as sf

PACKAGE = Path(sf.__file__).parent
MODULES = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
LONGEST = 475  # lines beside docstrings: these are the reference, and as long as there is to say
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)

SAME_NAME = {
    "audit.py": "auditing a fit, and the command that does it",
    "cells.py": "cells of tables, and FLARE's, which is its word for who sends and gets messages",
    "completion.py": "completions as they are carried out and as people call them",
    "components.py": "models of the power method, and folders that they are kept in",
    "coupled.py": "coupled models, where their data are held, their folders, and what people call",
    "ermis.py": "paper E's algorithms as printed, and its studies",
    "page.py": "the page of a report, and the command that serves one",
    "passes.py": "passes over the entries, open and private",
    "plan.py": "plans, and the command that shows one",
    "power.py": "the power method as it is carried out and as people call it",
    "protocol.py": "what every model is, and every solver",
    "queries.py": "what the solver of a folder asks",
    "received.py": "privatised values: their holder, their solver, and what a fit of them promises",
    "records.py": "plain data: how it is marked, and what is found of data and fits",
    "search.py": "searches as they are carried out and as people call them",
    "settings.py": "the settings of a folder's solver, and its draws",
    "several.py": "several relations of one private fit: models, holders of their entries, folders",
    "shape.py": "what is fitted: to one tensor, and to several that share modes",
    "shards.py": "tensors in parts on disk, and the holders of such parts",
    "solver.py": "the solver in a folder of one family",
    "state.py": "where the solver of a folder is",
    "networks.py": "what audits attack of networks, and what is said of them",
    "network.py": "networks: the model, its training, its folder, and what people call",
    "study.py": "what owners agree on, and the commands that plan it and carry it out",
    "wei.py": "paper W's algorithms as printed, and its studies",
    "update.py": "an update as it is carried out, and the command that does it",
}

LONG = {
    "data/samples.py": "one reader of streams for each kind of source, with what they share",
    "data/synthetic.py": "one maker of invented data after the other",
    "papers/ermis_sharing.py": "the rows of three tables of sites, each with its reading of the paper",
    "solvers/private/sides/solver.py": "one solver, and how it is put beside each method of a relation",
}


def test_modules_of_one_name_have_one_subject():
    """Kernels are called after what they are for, twins after kernels; others have to be listed."""
    places = defaultdict(list)
    for module in MODULES:
        if module.parts[0] != "kernels":
            places[module.name].append(str(module))
    several = {name: found for name, found in places.items() if len(found) > 1}
    assert several.keys() == SAME_NAME.keys(), several


def lines_of(module):
    """How many lines a module has beside its docstrings."""
    text = (PACKAGE / module).read_text(encoding="utf-8")
    parts = [each for each in ast.walk(ast.parse(text)) if isinstance(each, DOCUMENTED)]
    docstrings = [each.body[0] for each in parts if ast.get_docstring(each) is not None]
    return len(text.splitlines()) - sum(each.end_lineno - each.lineno + 1 for each in docstrings)


def test_long_modules_have_a_reason():
    lines = {str(module): lines_of(module) for module in MODULES}
    long = {module: count for module, count in lines.items() if count > LONGEST}
    assert long.keys() == LONG.keys(), long
