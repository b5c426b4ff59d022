"""``python -m benchmarks [PART] [--quick] [--json FILE]``; without a part, all of them.

Of ``networks`` and ``gpu`` some can be named: ``python -m benchmarks networks digits speed``.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from importlib import import_module
from pathlib import Path

from benchmarks.report import Figure, say, table

PARTS = (
    "accuracy",
    "private_accuracy",
    "public",
    "planner",
    "targets",
    "settings",
    "pairs",
    "intervals",
    "speed",
    "private_speed",
    "gpu",
    "power",
    "coupled",
    "coupled_private",
    "local",
    "gibbs",
    "implicit",
    "links",
    "networks",
    "memory",
    "shards",
    "scaling",
    "owners",
    "rounds",
    "compile",
    "startup",
    "ledger",
    "updates",
    "walk",
)
CHOOSING = ("networks", "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure sfumato.")
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("which", nargs="*", help="of networks and gpu: which of their measurements")
    parser.add_argument("--quick", action="store_true", help="small sizes: proves that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    chosen = parser.parse_args()
    if chosen.which and chosen.part not in CHOOSING:
        parser.error(f"only {', '.join(CHOOSING)} have measurements that can be chosen")
    figures: list[Figure] = []
    failed: list[str] = []
    for part in PARTS if chosen.part == "all" else (chosen.part,):
        say(f"-- {part}{' (quick)' if chosen.quick else ''}")
        try:
            figures += import_module(f"benchmarks.{part.replace('-', '_')}").run(
                chosen.quick, *chosen.which
            )
        except Exception:  # the figures of the other parts are not to be lost
            failed.append(part)
            traceback.print_exc()
    say("")
    if chosen.quick:
        say("Quick run: small sizes. The bars are those of the full run and say little here.")
    say(table(figures))
    if chosen.json is not None:
        content = {"quick": chosen.quick, "figures": [figure.record() for figure in figures]}
        chosen.json.write_text(json.dumps(content, indent=1) + "\n")
    if failed:
        sys.exit(f"failed, see above: {', '.join(failed)}")


if __name__ == "__main__":
    main()
