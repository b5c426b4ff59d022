"""What somebody writes who has installed the package: `make dist` runs and checks it outside."""

import sysconfig
from importlib.resources import files
from pathlib import Path

import numpy as np

import sfumato as sf
from sfumato.cli.command import where

assert "outside" in sf.__file__, sf.__file__
assert (files("sfumato.standards") / "deployments-schema.json").is_file()

page = Path(sysconfig.get_path("data")) / "share" / "doc" / "sfumato" / "docs" / "planner.md"
assert where("docs/planner.md#the-formulas") == f"{page}#the-formulas", page
assert (page.parents[1] / "proofs" / "moments.md").is_file()

cells = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], np.int32)
modes = (sf.Mode("user", 2), sf.Mode("item", 2))
tensor: sf.SparseTensor = sf.SparseTensor(cells, np.array([1.0, 2.0, 3.0, 4.0]), modes)
wrong = sf.CP(rank="two")  # type: ignore[arg-type]  # an error of its own where types are not found
print(f"sfumato {sf.__version__} is whole outside of its folder: {tensor.n_entries} entries, {wrong}")
