"""Find the cards on which a PyTorch program fits.

The program runs on an emulated device with a card's memory, in a process of its own. Cards on which it would do the
same share a run: those for which its questions about the card, and those of its kernels, have the same answers, and
whose memory suffices. By default the program computes only shapes, so that a model of any size needs little memory and
time. A program that reads a value, such as loss.item(), gets an assumed one: each such line is listed, as the answer is
as good as these. With --strict it ends there. What it prints is discarded, and so are its changes of files: they go to
a private overlay, unless --compute is given. The memory of the processes that it starts counts, too: SCRIPT may be a
command that starts others, such as torchrun. Arguments after SCRIPT, MODULE or CODE are passed to the program.

For each card, the verdict is one of:

fits; tight (it fits, but not with all of what may be outside the allocator on such a card); fits after caught
out-of-memory errors; fits with other settings of the allocator, as a replay of the whole program shows; does not fit;
did not finish (an exception, a signal, a status other than 0, or a value that is not computed: the figures are the
peak so far); no device memory used.

The exit status is 0 if it fits on every card, 3 if it is tight on a card, 1 if it does not fit on a card, or only with
other settings, and 4 if it did not finish on a card or used no device memory. Of several cards, 4 counts before 1, and
1 before 3. It is 2 if the command is wrong.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.verdicts import exit_status
from forebay.commands import CommandError, command_output, count_argument, reserve_argument, size_argument
from forebay.commands.assumption_options import add_assumption_options, chosen_assumptions
from forebay.commands.base_commit import check_commit, results_of_commit
from forebay.commands.dask_executor import dask_executor
from forebay.commands.fit_formats import FORMATS, About
from forebay.commands.fit_output import print_fit
from forebay.commands.fit_progress import fit_progress
from forebay.commands.fit_solve import CARDS, Case, answer_questions, arguments_with, parse_prices, parse_question
from forebay.commands.program_environment import need_torch
from forebay.commands.programs import (
    add_mode_arguments,
    add_program_arguments,
    argv_of,
    mode_sentence,
    python_arguments,
)

if TYPE_CHECKING:
    from forebay._base.assumption_choices import AssumptionChoices
    from forebay.interop.torch.fit import FitTable
    from forebay.interop.torch.program_versions import Versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "forebay fit [OPTIONS] SCRIPT [ARGS ...]\n"
        "       forebay fit [OPTIONS] -m MODULE [ARGS ...]\n"
        "       forebay fit [OPTIONS] -c CODE [ARGS ...]\n"
        "       forebay fit [OPTIONS] COMMAND [ARGS ...]"
    )
    parser.add_argument(
        "--cards", type=_cards, metavar="NAME,...",
        help=f"profiles of the cards, see forebay's page on profiles (default: {','.join(CARDS)})",
    )  # fmt: skip
    parser.add_argument("--count", type=count_argument, default=1, metavar="N", help="number of devices (default: 1)")
    parser.add_argument(
        "--memory", type=size_argument, metavar="SIZE", help="memory of each device (default: the profile's)"
    )
    parser.add_argument(
        "--reserve", type=reserve_argument, metavar="SIZE",
        help="memory of each device outside the allocator, such as 512MiB (default: as recorded on such cards)",
    )  # fmt: skip
    parser.add_argument("--settings", default="", metavar="TEXT", help="allocator settings, as in PYTORCH_ALLOC_CONF")
    parser.add_argument(
        "--solve", type=parse_question, action="append", default=[], metavar="QUESTION",
        help="NAME=LEAST..MOST: the largest value of the program's argument --NAME, or of {NAME} in its arguments, with"
        " which it fits each card; NAME=VALUE,VALUE: for each of these; card: the smallest card on which it fits, of"
        " all or of --cards",
    )  # fmt: skip
    parser.add_argument(
        "--prices", type=parse_prices, default={}, metavar="CARD=PRICE,...", help="with --solve card: the cheapest one"
    )
    add_mode_arguments(parser)
    add_assumption_options(parser)
    parser.add_argument("--jobs", type=count_argument, metavar="N", help="runs at a time (default: one per processor)")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of a Dask scheduler, such as tcp://host:8786"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument(
        "--format", choices=(*FORMATS,), metavar="FORMAT",
        help="markdown: a table for a comment; slurm, k8s: the smallest request that fits (the status is then 0 if it "
        "fits on any of the cards)",
    )  # fmt: skip
    parser.add_argument(
        "--base", metavar="COMMIT", help="run the program of this commit, too, and print in Markdown what has changed"
    )
    add_program_arguments(parser)


def run(args: argparse.Namespace) -> int:
    with command_output():
        if args.base is not None and (args.json or args.format not in (None, "markdown")):
            raise CommandError("--base prints a comparison in Markdown: leave out --json and --format")
        if args.base is not None:
            check_commit(args.base)
        mode = args.mode or "shapes"
        chosen = chosen_assumptions(args, mode)
        if args.program and args.scheduler is None:  # else its workers need PyTorch
            elsewhere = need_torch(args.arguments)
            if elsewhere is not None:
                return elsewhere
        runs = partial(_answer, args, mode, chosen)
        sentence = mode_sentence(mode, is_default=args.mode is None)
        if args.solve:
            return answer_questions(args.solve, args.cards, runs, args.prices, sentence, as_json=args.json)
        found = runs([Case(card) for card in args.cards or CARDS])
        versions = _versions(args)
        name = "markdown" if args.base is not None and args.format is None else args.format
        if name is not None:
            base = [] if args.base is None else results_of_commit(args.base, args.arguments[1:])
            print(FORMATS[name](found, About(versions, args.count, base)))
            if name != "markdown" and any(each.fits for each in found):
                return 0
        elif args.json:
            valid_for = {"versions": asdict(versions)}
            print(json.dumps([{**each, **valid_for} for each in found.as_json()], indent=2))
        else:
            print_fit(found, sentence, versions)
    return exit_status(each.verdict for each in found)


def _answer(args: argparse.Namespace, mode: str, chosen: AssumptionChoices, cases: Sequence[Case]) -> FitTable:
    """Run the program on cards, each with values of its arguments."""
    from forebay.interop.torch.fit import FitTable
    from forebay.interop.torch.fit.questions import run_tasks
    from forebay.interop.torch.fit.tasks import FitTask

    (form, (program, *arguments)), folder = argv_of(args, "fit"), str(Path.cwd())
    tasks = [
        FitTask(
            card,
            mode,
            args.count,
            args.memory,
            args.settings,
            args.reserve,
            timeout=args.max_seconds,
            parameters=values,
            script=python_arguments(form, [program, *arguments_with(arguments, values)]),
            folder=folder,
            assumptions=chosen,
            check_assumptions=args.check_assumptions,
            explain=explain,
            check_kernels=args.check_kernels,
        )
        for card, values, explain in cases
    ]
    try:
        with _executor(args) as executor, fit_progress() as progress:
            return FitTable(run_tasks(tasks, executor, progress))
    except ValueError as error:
        raise CommandError(str(error)) from error


@contextmanager
def _executor(args: argparse.Namespace) -> Iterator[Executor | None]:
    if args.scheduler is not None:
        with dask_executor(args.scheduler) as executor:
            yield executor
    elif args.jobs is not None:
        with ThreadPoolExecutor(args.jobs) as threads:
            yield threads
    else:
        yield None


def _versions(args: argparse.Namespace) -> Versions:
    """Return the versions that the answer is valid for; other runs of a Dask scheduler have the workers' own."""
    from forebay.interop.torch.program_versions import find_versions

    form, argv = argv_of(args, "fit")
    return find_versions(Path(argv[0]).parent if form is None else Path())


def _cards(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
