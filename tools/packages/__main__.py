"""Run programs over packages of PyPI: python3 dev.py packages [--public FOLDER] [NAME ...]

Each trains a small model on the CPU and on an emulated GPU, with and without values. The losses must be equal, the
peaks of both modes too, and nothing may stay allocated. With --public, public programs run unedited from a cache of
repositories (see public_programs.py). NAME is a part of the names of the programs to run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from packages.public_programs import compare_public, public_programs

MODULES = (
    "transformers_models", "training_loops", "other_models", "text_models", "vision_models", "science_models",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py packages", description=__doc__)
    parser.add_argument("--public", type=Path, metavar="FOLDER", help="run public programs from this cache")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    return run_public(options.public, options.names) if options.public else run_own(options.names)


def run_own(parts: Sequence[str]) -> int:
    """Run the programs of this folder, and return the status."""
    import transformers

    from packages.comparison import Comparison, compare
    from packages.program import PROGRAMS

    warnings.simplefilter("ignore")  # of the packages
    transformers.logging.set_verbosity_error()
    logging.getLogger("torch").setLevel(logging.ERROR)
    logging.getLogger("torchao").setLevel(logging.ERROR)
    for name in MODULES:
        importlib.import_module(f"packages.{name}")
    outcomes: Counter[str] = Counter()
    for each in chosen(PROGRAMS, parts):
        if absent := [need for need in PROGRAMS[each].needs if importlib.util.find_spec(need) is None]:
            outcomes += report("not run", each, f"it needs {', '.join(absent)}")
            continue
        try:
            found = compare(PROGRAMS[each])
        except Exception as error:  # noqa: BLE001 -- of any package
            traceback.print_exc()
            found = Comparison([repr(error)], "")
        outcomes += report("FAILED" if found.problems else "ok", each, "; ".join(found.problems) or found.text)
    return summary(outcomes)


def run_public(cache: Path, parts: Sequence[str]) -> int:
    """Run public programs, and return the status."""
    programs = {each.name: each for each in public_programs()}
    outcomes: Counter[str] = Counter()
    for each in chosen(programs, parts):
        try:
            outcome, text = compare_public(programs[each], cache)
        except Exception as error:  # noqa: BLE001 -- such as a commit that the cache lacks
            outcome, text = "FAILED", repr(error)
        outcomes += report(outcome, each, text)
    return summary(outcomes)


def chosen(programs: Iterable[str], parts: Sequence[str]) -> list[str]:
    """Return the names that contain one of the parts, or all. Ends the program if there is none."""
    names = list(programs)
    found = [each for each in names if not parts or any(part in each for part in parts)]
    if not found:
        sys.exit(f"no program has a name with {' or '.join(parts)}; known: {', '.join(names)}")
    return found


def report(outcome: str, name: str, text: str) -> Counter[str]:
    """Print a line, and return the outcome as a count."""
    print(f"{outcome:7} {name}: {text}", flush=True)
    return Counter([outcome])


def summary(outcomes: Counter[str]) -> int:
    """Print the counts, and return the status."""
    left_out = f", {outcomes['not run']} were not run" if outcomes["not run"] else ""
    print(f"{outcomes['ok']} of {outcomes['ok'] + outcomes['FAILED']} programs are as expected{left_out}")
    return 1 if outcomes["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
