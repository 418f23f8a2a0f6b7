"""Run programs over packages of PyPI: python3 dev.py packages [--public FOLDER] [--results FILE] [NAME ...]

Each trains a small model on the CPU and on an emulated GPU, with and without values. The losses must be equal, the
peaks of both modes too, and nothing may stay allocated. With --public, public programs run unedited from a cache of
repositories (see public_programs.py). NAME is a part of the names of the programs to run. With --results, each result
is written to a file when its program ends. Programs that the file has are not run again, unless a NAME chooses them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from packages.public_programs import LIMIT, PublicProgram, compare_public, public_programs, why_not
from packages.results import Result, outcome, read_results, write_results

MODULES = (
    "transformers_models", "training_loops", "other_models", "text_models", "vision_models", "science_models",
    "triton_programs",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py packages", description=__doc__)
    parser.add_argument("--public", type=Path, metavar="FOLDER", help="run public programs from this cache")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write the results to this file, and continue it")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    known = read_results(options.results) if options.results else {}
    misses = {each.name: each.misses for each in public_programs()}
    outcomes: Counter[str] = Counter()
    for name, run in runs(options.public, options.names):
        if name in known and not options.names:
            continue
        found = run()
        if isinstance(found, str):
            outcomes += report("not run", name, found)
            continue
        is_ok, text = outcome(found, misses.get(name, ""))
        outcomes += report(is_ok, name, text)
        known[name] = found
        if options.results:
            write_results(options.results, known.values())
    return summary(outcomes)


def runs(cache: Path | None, parts: Sequence[str]) -> Iterator[tuple[str, Callable[[], Result | str]]]:
    """Yield the chosen programs, each with a function that runs it and returns its result or why it cannot run."""
    if cache is not None:
        public = {each.name: each for each in public_programs()}
        for name in chosen(public, parts):
            yield name, partial(run_public, public[name], cache)
        return
    import transformers

    from packages.program import PROGRAMS

    warnings.simplefilter("ignore")  # of the packages
    transformers.logging.set_verbosity_error()
    logging.getLogger("torch").setLevel(logging.ERROR)
    logging.getLogger("torchao").setLevel(logging.ERROR)
    for name in MODULES:
        importlib.import_module(f"packages.{name}")
    for name in chosen(PROGRAMS, parts):
        yield name, partial(run_own, name)


def run_own(name: str) -> Result | str:
    """Run a program of this folder in a child process, which no other program has changed."""
    from packages.comparison import compare
    from packages.program import PROGRAMS

    if absent := [need for need in PROGRAMS[name].needs if importlib.util.find_spec(need) is None]:
        return f"it needs {', '.join(absent)}"
    results, sent = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        sent.send(compare(PROGRAMS[name]))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    sent.close()
    try:
        found: Result = results.recv() if results.poll(LIMIT) else failure(name, f"it took more than {LIMIT} s")
    except EOFError:
        child.join()
        found = failure(name, f"its process ended with status {child.exitcode}")
    child.kill()
    child.join()
    return found


def run_public(program: PublicProgram, cache: Path) -> Result | str:
    """Run a public program."""
    if reason := why_not(program, cache):
        return reason
    try:
        return compare_public(program, cache)
    except Exception as error:  # noqa: BLE001 -- such as a commit that the cache lacks
        return failure(program.name, repr(error), program.repository, program.commit)


def failure(name: str, why: str, source: str = "", commit: str = "") -> Result:
    """Return the result of a program that could not be run."""
    return Result(name, source, commit, why, why, (0, 0), 0, 0)


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
