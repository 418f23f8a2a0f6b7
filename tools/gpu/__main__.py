"""Run everything that needs a GPU: python3 dev.py gpu [--here] [--minutes N] [--output FOLDER] [PART ...]
take the results of a run into the repository: python3 dev.py gpu --keep FOLDER

The parts measure the memory of PyTorch programs and operators, test forebay on the GPU, and compare it with PyTorch and
other libraries. Each is reported as ok, failed, incomplete or not run with the reason. All results go to the output
folder while they are found: results.json and results.md are complete at every moment, and results.tar.xz has all files.

--here uses this interpreter and the packages that it has: nothing is installed, no network is used, and nothing is
written outside the checkout and the output folder. --minutes limits the whole run; fewer than 5 select few
repetitions, as --quick does, and a run with few repetitions or with a selection of parts verifies nothing.
--only-failed FOLDER repeats the parts that failed or did not end in an earlier run. --keep writes what an earlier run
has measured to tests/data/gpu-truth and, if the run verifies the hardware, docs/benchmarks-gpu.md and an entry of
src/forebay/backends/verified.toml.

Without a GPU a run is a rehearsal on the software driver of tests/softcuda.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from steps import fail

from gpu import rehearsal
from gpu.building import build, missing_tools, warm_up
from gpu.card import Card, NoCard, find_card
from gpu.keep import NotKept, keep
from gpu.part import REAL
from gpu.parts import MINUTES, PARTS, Part, stages
from gpu.results import Earlier, read_earlier
from gpu.run import Run
from gpu.run_folder import RunFolder
from gpu.verified import keep_verified

DEFAULT = Path("gpu-results")
FEW_MINUTES = 5.0  # below which few repetitions are made
BUILD = 2 / 3  # of the time, at most: what is left is enough for the tests with few repetitions
WARM_UP = 40.0  # seconds for the kernels, at most


def main(arguments: list[str]) -> int:
    start = time.monotonic()
    options = _options(arguments)
    if options.keep is not None:
        try:
            written = [*keep(options.keep), *keep_verified(options.keep)]
        except (NotKept, ValueError) as error:
            fail(str(error))
        print("\n".join(f"written: {path}" for path in written))
        return 0
    earlier = None
    if options.only_failed is not None:
        if options.only_failed.resolve() == options.output.resolve():
            fail("--only-failed and --output are the same folder: give another one for the results")
        try:
            earlier = read_earlier(options.only_failed)
        except ValueError as error:
            fail(str(error))
    selected = _selected(options.parts, earlier)
    if not selected:
        print("the earlier run has no part that failed or did not end")
        return 0
    if options.here and (missing := missing_tools()):
        print(f"dev.py: missing: {', '.join(missing)}; only parts that need nothing but PyTorch can run", flush=True)
    else:
        missing = []
    folder = RunFolder(options.output)
    try:
        folder.create()
    except OSError as error:
        fail(str(error))
    variables = folder.variables(os.environ)
    opened = _hold_devices()
    try:
        card = find_card(variables)
    except NoCard as reason:
        if rehearsal.has_device_nodes():
            fail(f"no GPU to test: {reason}")
        try:
            variables = rehearsal.with_software_driver(variables)
            card = find_card(variables)
        except (NoCard, rehearsal.Impossible) as why:
            fail(f"no GPU to test: {reason}; nor a rehearsal on the software driver: {why}")
    quick = options.quick or options.minutes < FEW_MINUTES
    run = Run(
        folder,
        variables,
        card,
        deadline=start + 60 * options.minutes,
        quick=quick,
        command=shlex.join(["python3", "dev.py", "gpu", *arguments]),
        complete=not quick and {*_names(selected), *(earlier.parts if earlier else ())} == {*_names(PARTS)},
    )
    variables |= {} if card.software else {REAL: "1"}
    print(_heading(card, options.minutes, quick=quick), flush=True)
    if earlier is not None:
        run.carry_over(earlier, options.only_failed)
    if options.here:
        run.compiling = _Compilation(folder, variables, card, run.deadline, missing)
    try:
        for stage, later in _with_later(selected):
            run.stage(stage, later)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return run.finish()


def _hold_devices() -> list[int]:
    """Open the devices of all GPUs, and return the descriptors.

    Without persistence mode, the driver initializes a GPU again for each process that finds it unused, which takes
    seconds. This process uses none of its functions, so that it has no context and no memory.
    """
    opened = []
    for path in Path("/dev").glob("nvidia[0-9]*"):
        with suppress(OSError):
            opened.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    return opened


class _Compilation:
    """The compilation of forebay's modules beside the parts that need none of them."""

    def __init__(
        self, folder: RunFolder, variables: Mapping[str, str], card: Card, deadline: float, missing: Sequence[str]
    ) -> None:
        self._folder, self._variables, self._card, self._deadline = folder, variables, card, deadline
        self._problem = f"missing: {', '.join(missing)}" if missing else ""
        self._thread = threading.Thread(target=self._compile, name="compilation")
        if not missing:
            self._thread.start()

    def _compile(self) -> None:
        start = time.monotonic()
        self._problem = build(self._folder, BUILD * (self._deadline - start))
        outcome = self._problem or f"ok after {time.monotonic() - start:.0f} s"
        print(f"Compilation of forebay: {outcome}", flush=True)
        if not self._problem:
            warm_up(self._folder, self._variables, self._card.capability, WARM_UP)

    def wait(self) -> str:
        """Return why forebay could not be compiled, or an empty text."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._problem


def _options(arguments: list[str]) -> argparse.Namespace:
    names = _names(PARTS)
    parser = argparse.ArgumentParser(
        "dev.py gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--here", action="store_true", help="use this interpreter and its packages")
    parser.add_argument("--minutes", type=_minutes, default=None, metavar="N", help=f"default: {MINUTES:g}")
    parser.add_argument("--output", type=Path, default=DEFAULT, metavar="FOLDER", help=f"default: {DEFAULT}")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--only-failed", type=Path, metavar="FOLDER", help="repeat parts of an earlier run")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="take the results into the repository")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    options = parser.parse_args(arguments)
    if unknown := {*options.parts} - {*names}:
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(names)}")
    if options.minutes is None:
        options.minutes = FEW_MINUTES if options.quick else MINUTES
    return options


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0.1 <= minutes <= 24 * 60:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and {24 * 60}")
    return minutes


def _selected(names: Sequence[str], earlier: Earlier | None) -> list[Part]:
    """Return the parts to run, in their order."""
    wanted = {*(names or _names(PARTS))}
    if earlier is not None:
        wanted &= {*earlier.to_repeat()}
    return [part for part in PARTS if part.name in wanted]


def _names(parts: Sequence[Part]) -> list[str]:
    return [part.name for part in parts]


def _with_later(selected: Sequence[Part]) -> list[tuple[list[Part], list[list[Part]]]]:
    """Return each stage with those after it."""
    found = list(stages(selected))
    return [(stage, found[number + 1 :]) for number, stage in enumerate(found)]


def _heading(card: Card, minutes: float, *, quick: bool) -> str:
    kind = " (rehearsal)" if card.software else ""
    lines = [f"{card.name}, driver {card.driver}{kind}, {minutes:g} minutes{', few repetitions' if quick else ''}"]
    return "\n".join([*lines, *([card.in_use] if card.in_use else [])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
