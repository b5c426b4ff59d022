"""What is said of the package in several files is the same everywhere."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import sfumato

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changed = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert PROJECT["version"] == sfumato.__version__ == cited["version"] == changed[1]
    assert PROJECT["license"] == cited["license"]


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_extra_has_a_version_that_is_used_here(extra):
    """But for those that are said to be installed by hand."""
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    names = [re.split(r"[\[<>=!~ ;]", each)[0] for each in PROJECT["optional-dependencies"][extra]]
    missing = [name for name in names if f"\n{name.lower()}==" not in f"\n{pinned}"]
    assert set(missing) <= {"sfumato", "torch", "opacus", "jax-privacy"}
