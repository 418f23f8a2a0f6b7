"""Run programs over packages of PyPI: python3 dev.py packages [NAME ...]

Each trains a small model on the CPU and on an emulated GPU, with and without values. The losses must be equal, the
peaks of both modes too, and nothing may stay allocated. NAME is a part of the names of the programs to run.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
import warnings

import transformers

from packages.comparison import Comparison, compare
from packages.program import PROGRAMS, Program

MODULES = ("transformers_models", "training_loops", "other_models")


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    warnings.simplefilter("ignore")  # of the packages
    transformers.logging.set_verbosity_error()
    logging.getLogger("torch").setLevel(logging.ERROR)
    logging.getLogger("torchao").setLevel(logging.ERROR)
    for name in MODULES:
        importlib.import_module(f"packages.{name}")
    chosen = [each for each in PROGRAMS.values() if not arguments or any(part in each.name for part in arguments)]
    if not chosen:
        print(f"no program has a name with {' or '.join(arguments)}; known: {', '.join(PROGRAMS)}")
        return 2
    failed = sum(not _report(each) for each in chosen)
    print(f"{len(chosen) - failed} of {len(chosen)} programs are as expected")
    return 1 if failed else 0


def _report(program: Program) -> bool:
    """Run a program, print a line, and return True if it is as expected."""
    try:
        found = compare(program)
    except Exception as error:  # noqa: BLE001 -- of any package
        traceback.print_exc()
        found = Comparison([repr(error)], "")
    print(
        f"{'FAILED' if found.problems else 'ok':6} {program.name}: {'; '.join(found.problems) or found.text}",
        flush=True,
    )
    return not found.problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
