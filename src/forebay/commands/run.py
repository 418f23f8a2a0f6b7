"""Run a Python program on the CPU device and report its memory use.

While the program runs, its NumPy arrays are allocated on the CPU device; otherwise its behaviour does not change.
Arguments after SCRIPT, MODULE or CODE are passed to the program. SCRIPT is what python accepts: a file, - for standard
input, or a directory or zip file with __main__.py; or a COMMAND on PATH that is a Python script, such as torchrun. At
the end the report is printed on standard error, and two
files are written to the output directory: snapshot.forebay and report.html, and the key figures as summary.json. A
directory with an earlier report is kept: the new one gets a number, as in forebay-report-2. The exit status is that of
the program.

The report is also written before os._exit and os.exec*, and before SIGTERM or SIGHUP ends the program. The Python
processes that it starts have reports of their own, and the report of the program lists them.

With --emulate, devices of another kind are emulated in the program and in all processes that it starts; the report
has one section for each of them, and --memory is the memory of each.

With --emulate cuda, PyTorch uses the emulated devices if the program imports it, without a change of the program: the
report says whether it fits, with the verdicts of forebay fit, and what held the peak. The memory of all processes that
it starts counts. By default no values are computed, so that a model of any size needs little memory and time, and a
value that is read is assumed, as for forebay fit; --compute computes them. Without values, the program changes no
existing file: what it writes goes to a private overlay, which it reads back, and which is dropped at the end. Of new
files only texts are created, or none with --dry; the report lists them.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from forebay._base.config import EMULATE, Emulated, parse_emulated
from forebay._base.outside_memory import NOTHING, OutsideMemory, outside_memory
from forebay.commands import (
    CommandError,
    ProgramError,
    quiet_interrupt,
    reserve_argument,
    run_output,
    run_rehearsal,
    run_torch,
    size_argument,
)
from forebay.commands.assumption_options import add_assumption_options, chosen_assumptions
from forebay.commands.output_files import check_output
from forebay.commands.programs import add_mode_arguments, add_program_arguments, argv_of, is_isolated
from forebay.commands.run_devices import Sampling
from forebay.commands.run_session import RunSession
from forebay.commands.script_runner import Program
from forebay.commands.site_options import add_site_options, chosen_sites
from forebay.rehearsal.inside import is_inside, redirect_files

OUTPUT = Path("forebay-report")
ENTRIES = 1_000_000
SAMPLE = 512 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "forebay run [OPTIONS] SCRIPT [ARGS ...]\n"
        "       forebay run [OPTIONS] -m MODULE [ARGS ...]\n"
        "       forebay run [OPTIONS] -c CODE [ARGS ...]\n"
        "       forebay run [OPTIONS] COMMAND [ARGS ...]"
    )
    parser.add_argument(
        "--emulate", type=_emulated, metavar="KIND[:COUNT][@PROFILE]",
        help="emulate devices of another kind, such as cuda:2@h200, or one as a profile says: t4",
    )  # fmt: skip
    parser.add_argument(
        "--guard", action="store_true",
        help="with --emulate: abort the program, showing the line, if it accesses device memory outside queued work",
    )  # fmt: skip
    add_mode_arguments(parser, "with --emulate cuda: ")
    add_assumption_options(parser)
    parser.add_argument(
        "--dry", action="store_true",
        help="without values: create no new files either, apart from the report",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=size_argument, metavar="SIZE",
        help="memory of the CPU device, or of each emulated device, such as 512MiB or 2G (default: unlimited for the "
        "CPU device, otherwise the profile's)",
    )  # fmt: skip
    parser.add_argument(
        "--reserve", type=reserve_argument, metavar="SIZE",
        help="with --emulate cuda: memory of each device outside the allocator, such as 512MiB (default: as recorded "
        "on such cards)",
    )  # fmt: skip
    parser.add_argument(
        "--history", action=argparse.BooleanOptionalAction, default=True,
        help="record every allocation with its Python stack (default), or totals only",
    )  # fmt: skip
    parser.add_argument(
        "--entries",
        type=_count,
        default=ENTRIES,
        metavar="N",
        help=f"entries kept in the history (default: {ENTRIES:,})",
    )
    parser.add_argument(
        "--sample", type=reserve_argument, default=SAMPLE, metavar="SIZE",
        help="without --emulate: record one of the small arrays, which NumPy allocates itself, for each SIZE of them "
        "on average, such as 64KiB; 0 records none (default: 512KiB)",
    )  # fmt: skip
    parser.add_argument(
        "--sample-seed", type=_seed, metavar="N",
        help="choose the same small arrays as another run of the program with this number (default: random)",
    )  # fmt: skip
    parser.add_argument(
        "--children", action=argparse.BooleanOptionalAction, default=True,
        help="report the processes that the program forks or starts, too (default), each in a directory process-PID",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="DIR",
        help=f"output directory (default: {OUTPUT}, in HOME if the working directory belongs to another user; "
        f"{OUTPUT}-rank-N for the ranks of torchrun)",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite", action="store_true",
        help="replace an earlier report instead of numbering this, and any file of --trace"
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print no report, only errors; the files are written")
    parser.add_argument(
        "--json", action="store_true", help="print the summary on standard error as a line of JSON instead of tables"
    )
    parser.add_argument("--progress", action="store_true", help="print the memory in use while the program runs")
    parser.add_argument(
        "--monitor", action=argparse.BooleanOptionalAction, default=True,
        help="let forebay top and forebay exporter of the same user read the program's figures (default)",
    )  # fmt: skip
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace of the queues for ui.perfetto.dev")
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    add_site_options(parser)
    add_program_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if is_isolated() and args.program:
        from forebay.commands.program_environment import continue_there

        with quiet_interrupt():
            elsewhere = continue_there(args.arguments)
        if elsewhere is not None:
            return elsewhere
    mode = _mode_of(args)
    if args.dry and mode == "compute":
        raise CommandError("--dry requires a run without values: a program with values writes its files")
    check_output(args.trace, [], "--trace", overwrite=args.overwrite)
    chosen_sites(args)
    chosen_assumptions(args, mode)
    if args.max_seconds is not None and not uses_cuda(args.emulate):
        raise CommandError("--max-seconds requires emulated CUDA devices, as in --emulate cuda@h100")
    if args.check_kernels and not uses_cuda(args.emulate):
        raise CommandError("--check-kernels requires emulated CUDA devices, as in --emulate cuda@h100")
    if args.check_assumptions and (args.form, args.program[:1]) == (None, ["-"]):
        raise CommandError("--check-assumptions runs the program again: pass a file instead of standard input")
    if mode != "compute" and not is_inside():
        with quiet_interrupt():
            argv_of(args, "run")
            _check_profiles(args.emulate or ())
            named = [] if args.trace is None else [_absolute(args.trace)]
            return run_rehearsal.rehearse(args, _absolute(args.output or _default_output()), named)
    with quiet_interrupt():
        program, session = _prepare(args, mode)
    try:
        program.execute()
    except (CommandError, ProgramError):
        session.cancel()
        raise
    except BaseException as error:
        run_torch.note_end(error)
        session.interrupted = isinstance(error, KeyboardInterrupt)
        raise
    return 0


def _mode_of(args: argparse.Namespace) -> str:
    """Return what PyTorch computes: without emulated CUDA devices, the program is left as it is."""
    if uses_cuda(args.emulate):
        return args.mode or "shapes"
    if args.mode in ("shapes", "strict"):
        option = "--strict" if args.mode == "strict" else "--shapes-only"
        raise CommandError(f"{option} requires emulated CUDA devices, as in --emulate cuda@h100 {option}")
    return "compute"


def _prepare(args: argparse.Namespace, mode: str) -> tuple[Program, RunSession]:
    """Read the program and start the recording."""
    redirect_files()
    form, argv = argv_of(args, "run")
    program = Program(argv, form)
    session = RunSession(
        run_rehearsal.real_output(_absolute(args.output or _default_output())),
        argv,
        None if args.emulate else args.memory,
        args.entries if args.history else None,
        show_page=args.open,
        overwrite=args.overwrite,
        quiet=args.quiet or (args.json and args.check_assumptions),  # the process outside prints the summary
        as_json=args.json,
        children=args.children,
        started=not uses_cuda(args.emulate),  # PyTorch's devices have records of their own
        progress=args.progress,
        monitor=args.monitor,
        site_choice=chosen_sites(args),
        sampling=Sampling(args.sample, args.sample_seed) if args.sample and not args.emulate else None,
    )
    session.prepare()
    trace = None if args.trace is None else _absolute(args.trace)
    outside, profile = _emulate(args.emulate, guard=args.guard, memory=args.memory, reserve=args.reserve)
    try:
        session.start()
        if uses_cuda(args.emulate):
            folder = Path(argv[0]).parent if form is None else Path()
            about = (chosen_assumptions(args, mode), args.max_seconds, outside, folder, profile)
            checks = args.check_kernels
            run_torch.install(mode, *about, is_default=args.mode is None, check_kernels=checks)
        if trace is not None:
            session.start_trace(trace)
    except KeyboardInterrupt:
        session.cancel()
        raise
    return program, session


def _emulate(
    requested: tuple[Emulated, ...] | None, *, guard: bool, memory: int | None, reserve: int | None
) -> tuple[OutsideMemory, str]:
    """Check the devices to emulate and set the environment variable, which child processes inherit.

    Returns what is outside the allocator of each CUDA device, and its profile.
    """
    if requested is None:
        if guard:
            raise CommandError("--guard requires emulated devices, as in --emulate cuda:2@h200 --guard")
        return NOTHING, ""
    _check_profiles(requested)
    from forebay import backends

    outside, profile, devices = NOTHING, "", []
    for each in requested:
        found = replace(each, guard=each.guard or guard, memory=memory or each.memory)
        try:
            if each.kind == "cuda":
                profile = each.profile or backends.default_profile(each.kind)
                own = reserve if reserve is not None else each.reserve or None
                outside = outside_memory(profile, found.memory, own)
                found = replace(found, reserve=outside.low)
        except ValueError as error:
            raise CommandError(f"--emulate: {error}") from error
        devices.append(found)
    os.environ[EMULATE.name] = ",".join(map(str, devices))
    return outside, profile


def _check_profiles(requested: tuple[Emulated, ...]) -> None:
    try:
        from forebay import backends
    except ImportError as error:  # the compiled core cannot be loaded
        raise CommandError(str(error)) from error
    for each in requested:
        try:
            with backends.emulated_devices(each.kind, each.count, each.profile):
                pass
        except ValueError as error:
            raise CommandError(f"--emulate: {error}") from error


def uses_cuda(requested: tuple[Emulated, ...] | None) -> bool:
    return any(each.kind == "cuda" for each in requested or ())


def _default_output() -> Path:
    """Return the default directory: each rank of a distributed program has one of its own, as all may end at once."""
    rank = os.environ.get("RANK", "")
    ranks = os.environ.get("WORLD_SIZE", "1")
    name = f"{OUTPUT}-rank-{rank}" if rank.isdecimal() and ranks != "1" else str(OUTPUT)
    return run_output.default_folder() / name


def _emulated(text: str) -> tuple[Emulated, ...]:
    try:
        return parse_emulated(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _absolute(folder: Path) -> Path:
    try:
        return folder.absolute()
    except OSError as error:
        raise CommandError(
            f"cannot resolve {str(folder)!r}, as the working directory does not exist: {error.strerror}"
        ) from error


def _count(text: str) -> int:
    if text.replace("_", "").isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")


def _seed(text: str) -> int:
    if text.isdecimal() and text.isascii() and int(text) < 1 << 64:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 to 2^64 - 1")
