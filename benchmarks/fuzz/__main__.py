"""``python -m benchmarks.fuzz [readers|models|settings] [--cases N] [--seed S] [--show K]``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from rich.progress import track

from benchmarks.fuzz.harness import BAD, Finding, Subject, attack, cases_of, table

SUBJECTS = ("readers", "models", "settings")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("subject", nargs="?", choices=(*SUBJECTS, "all"), default="all")
    parser.add_argument("--cases", type=int, default=10_000, help="of each subject")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="how many of the bad endings to print")
    parser.add_argument("--only", metavar="KIND", help="cases of this kind alone")
    chosen = parser.parse_args()
    bad: list[Finding] = []
    for name in SUBJECTS if chosen.subject == "all" else (chosen.subject,):
        subject: Subject = import_module(f"benchmarks.fuzz.{name}").SUBJECT
        cases = cases_of(subject, chosen.cases, chosen.seed)
        cases = [case for case in cases if chosen.only in (None, case.kind)]
        findings = list(track(attack(subject, cases), description=name, total=len(cases)))
        print(f"\n{name}: {len(findings):,} cases, seed {chosen.seed}")
        print(table(findings))
        bad += [finding for finding in findings if finding.ending in BAD]
    for finding in bad[: chosen.show]:
        print(f"\n{finding.case.kind}, seed {finding.case.seed}: {finding.ending}\n{finding.words}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
