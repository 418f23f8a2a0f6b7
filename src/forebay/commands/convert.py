"""Convert a memory snapshot to another format.

SNAPSHOT is a forebay snapshot or a PyTorch pickle (torch.cuda.memory._dump_snapshot); no code in it is executed. The
suffix of OUTPUT decides the format: .forebay (columns), .pickle (for PyTorch's viewers), .pftrace (Perfetto),
.speedscope.json, .flame.json (d3-flame-graph), .folded (flamegraph.pl), .parquet (DuckDB, Polars, pandas).

All devices are written: into one file, or, as .forebay has one device, into a file for each (run.cuda0.forebay).

speedscope, d3-flame-graph and flamegraph.pl show the memory that was live at the peak, by stack.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.suggestions import did_you_mean
from forebay._base.untrusted import printable
from forebay.commands import CommandError, command_output
from forebay.commands.output_files import add_overwrite, check_output
from forebay.commands.site_options import add_site_options, chosen_sites
from forebay.commands.snapshot_files import load_snapshots, progress_bar

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from forebay.snapshot import Snapshot

    Write = Callable[[Sequence[Snapshot], Path, argparse.Namespace], None]

SUFFIXES = {
    ".forebay": "forebay", ".pickle": "pickle", ".pkl": "pickle", ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto", ".speedscope.json": "speedscope", ".flame.json": "flamegraph", ".folded": "folded",
    ".parquet": "parquet",
}  # fmt: skip
FORMATS = (*dict.fromkeys(SUFFIXES.values()),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help="the snapshot file")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the file to write")
    add_overwrite(parser)
    parser.add_argument("--to", choices=FORMATS, metavar="FORMAT", help=f"the format: {', '.join(FORMATS)}")
    parser.add_argument("--device", metavar="NAME", help="convert only this device, such as cuda:1")
    parser.add_argument(
        "--table", choices=("history", "blocks", "segments"), default="history",
        help="the table of a Parquet file (default: history)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was written, as JSON")
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    with command_output():
        check_output(args.output, [args.snapshot], "OUTPUT", overwrite=args.overwrite)
        chosen = args.to or _format_of(args.output)
        snapshots = load_snapshots(args.snapshot, chosen_sites(args))
        if args.device is not None:
            names = [each.device for each in snapshots]
            snapshots = tuple(each for each in snapshots if each.device == args.device)
            if not snapshots:
                raise CommandError(f"no device {args.device!r} in {args.snapshot}; it has {', '.join(names)}")
        files = _files(snapshots, args.output) if chosen == "forebay" else [args.output]
        for file in files:
            check_output(file, [args.snapshot], "OUTPUT", overwrite=args.overwrite)
        _convert(snapshots, chosen, args)
        parts = [snapshots] if len(files) == 1 else [[each] for each in snapshots]
        written = [*zip(files, parts, strict=True)]
        if args.json:
            print(json.dumps([_as_json(file, chosen, part) for file, part in written], indent=2))
            return 0
        for file, part in written:
            entries = sum(len(each.trace) for each in part)
            devices = ", ".join(printable(each.device) for each in part)
            print(f"wrote {file} ({chosen}): {entries:,} entries of {devices}")
    return 0


def _as_json(file: Path, chosen: str, part: Sequence[Snapshot]) -> dict[str, Any]:
    devices = [{"device": each.device, "entries": len(each.trace)} for each in part]
    return {"file": str(file), "format": chosen, "devices": devices}


def _format_of(path: Path) -> str:
    found = next((each for suffix, each in SUFFIXES.items() if path.name.endswith(suffix)), None)
    if found is None:
        hint = did_you_mean(path.suffix, SUFFIXES)
        raise CommandError(f"the suffix of {path.name!r} names no format{hint}: choose one with --to FORMAT")
    return found


def _convert(snapshots: Sequence[Snapshot], chosen: str, args: argparse.Namespace) -> None:
    from forebay.errors import Unsupported
    from forebay.snapshot.formats.budget import BadSnapshot

    try:
        _WRITERS[chosen](snapshots, args.output, args)
    except (Unsupported, BadSnapshot, ModuleNotFoundError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"cannot write {str(args.output)!r}: {error.strerror or error}") from error


def _forebay(snapshots: Sequence[Snapshot], path: Path, _: argparse.Namespace) -> None:
    from forebay.snapshot.formats import native

    for snapshot, each in zip(snapshots, _files(snapshots, path), strict=True):
        with progress_bar("writing", len(snapshot.trace)) as progress:
            native.write(snapshot, each, progress)


def _files(snapshots: Sequence[Snapshot], path: Path) -> list[Path]:
    """Return the files of the devices in forebay's format, which has one device: run.cuda0.forebay and so on."""
    if len(snapshots) < 2:
        return [path]
    end = "".join(path.suffixes[-1:])
    stem = path.name.removesuffix(end)
    names = [re.sub(r"\W", "", each.device, flags=re.ASCII) or "device" for each in snapshots]
    unique = [name if names.count(name) == 1 else f"{name}_{number}" for number, name in enumerate(names)]
    return [path.with_name(f"{stem}.{name}{end}") for name in unique]


def _pickle(snapshots: Sequence[Snapshot], path: Path, _: argparse.Namespace) -> None:
    from forebay.snapshot.formats import torch_writer

    with progress_bar("writing", sum(len(each.trace) for each in snapshots)) as progress:
        torch_writer.write(snapshots, path, progress)


def _parquet(snapshots: Sequence[Snapshot], path: Path, args: argparse.Namespace) -> None:
    from forebay.snapshot.analysis.spans import range_paths, spans
    from forebay.snapshot.formats import parquet

    def ranges(snapshot: Snapshot) -> tuple[NDArray[Any], Sequence[str]]:
        return range_paths(spans(snapshot), len(snapshot.trace))

    with progress_bar("writing", sum(len(each.trace) for each in snapshots)) as progress:
        parquet.write([_with_sites(each) for each in snapshots], path, args.table, progress, ranges)


def _perfetto(snapshots: Sequence[Snapshot], path: Path, _: argparse.Namespace) -> None:
    from forebay._base.atomic_write import atomic_write
    from forebay.commands.snapshot_trace import write_trace

    with atomic_write(path) as file:
        write_trace(snapshots, file)


def _with_sites(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the sites of the reports."""
    from forebay.snapshot.analysis.largest_sites import split_largest
    from forebay.snapshot.analysis.timeline import reconstruct

    return split_largest(snapshot, reconstruct(snapshot))


def _stacks(name: str) -> Write:
    def write(snapshots: Sequence[Snapshot], path: Path, _: argparse.Namespace) -> None:
        from forebay._base.atomic_write import atomic_write
        from forebay.snapshot.report import held_stacks

        with atomic_write(path) as file:
            out = io.TextIOWrapper(file, "utf-8", newline="\n")
            getattr(held_stacks, name)(snapshots, out)
            out.detach()  # flushes, and leaves the file open

    return write


_WRITERS = {
    "forebay": _forebay,
    "pickle": _pickle,
    "perfetto": _perfetto,
    "speedscope": _stacks("write_speedscope"),
    "flamegraph": _stacks("write_flamegraph"),
    "folded": _stacks("write_folded"),
    "parquet": _parquet,
}
