"""Snapshots as text, flame graphs and pages: `python -m forebay.cuda._memory_viz`. (`torch.cuda._memory_viz`)

Nothing is fetched: the flame graphs and the pages are forebay's own, and need no network to be looked at either.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from forebay.faces.unsupported import unsupported
from forebay.snapshot.formats import safe_pickle, torch_pickle
from forebay.snapshot.report import flamegraph, html
from forebay.snapshot.report.torch_text import (
    LEGEND,
    PAGE_SIZE,
    Bytes,
    active_bytes,
    segments_text,
    trace_text,
    unfreed,
)
from forebay.snapshot.report.torch_text import format_size as _format_size

__all__ = ["compare", "format_flamegraph", "memory", "segments"]

calc_active, segsum, trace, filter_alloc_free_pairs = active_bytes, segments_text, trace_text, unfreed
legend = LEGEND


def format_flamegraph(flamegraph_lines: str, flamegraph_script: str | None = None) -> str:
    """The SVG of folded stacks, ours; a script that is named draws it instead, fed with them."""
    if flamegraph_script is None:
        return flamegraph.draw(flamegraph_lines)
    command = [flamegraph_script, "--countname", "bytes"]
    done = subprocess.run(command, input=flamegraph_lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"flamegraph process exited with code {done.returncode}")
    return done.stdout


def segments(snapshot: Mapping[str, Any], format_flamegraph: Callable[[str], str] = format_flamegraph) -> str:
    """Who allocated what, segment by segment."""
    return format_flamegraph(flamegraph.of_segments(snapshot))


def memory(snapshot: Mapping[str, Any], format_flamegraph: Callable[[str], str] = format_flamegraph) -> str:
    """Who allocated what, stream by stream."""
    return format_flamegraph(flamegraph.of_streams(snapshot))


def compare(before: Any, after: Any, format_flamegraph: Callable[[str], str] = format_flamegraph) -> str:
    """Who allocated what in the segments that one snapshot has and the other has not; prints their addresses.

    A snapshot, or its list of segments.
    """
    told = [rows["segments"] if isinstance(rows, Mapping) else list(rows) for rows in (before, after)]
    keys = [{(row["address"], row["total_size"]) for row in rows} for rows in told]
    folded = ""
    for name, rows, others in (("only_before", told[0], keys[1]), ("only_after", told[1], keys[0])):
        alone = [row for row in rows if (row["address"], row["total_size"]) not in others]
        sys.stdout.write(f"{name} = {[row['address'] for row in alone]}\n")
        for row in alone:
            folded += flamegraph.fold(f"{name};stream_{row['stream']};seg_{row['address']}", row["blocks"])
    return format_flamegraph(folded)


def trace_plot(
    data: dict[str, Any],
    device: int | None = None,
    plot_segments: bool = False,  # noqa: ARG001 -- the page shows both
    filter_freed: bool = False,
) -> str:
    """The history as a page (HTML), which shows what is allocated and what is reserved.

    Of the device that has one; ValueError where several do and `device` names none. `filter_freed` leaves out, of
    `data` as well, what came and went.
    """
    return _page(unfreed(data) if filter_freed else data, device)


def segment_plot(data: Any, device: int | None = None) -> str:
    """The same page: it shows the segments, too."""
    return _page(data, device)


profile_plot = unsupported(
    "forebay.cuda._memory_viz",
    "profile_plot(profile, device=None)",
    "it reads what torch.profiler recorded. Use trace_plot on a snapshot.",
)


def _page(data: Any, device: int | None) -> str:
    found = {int(each.device.rpartition(":")[2]): each for each in torch_pickle.snapshots(data)}
    told = [index for index, each in found.items() if len(each.trace)]
    if device is None:
        if len(told) > 1:
            raise ValueError(f"there are histories of devices {', '.join(map(str, told))}: name one with `device`")
        device = (told or list(found))[0]
    if device not in found:
        raise ValueError(f"the snapshot tells nothing of device {device}")
    out = io.StringIO()
    html.write(found[device], out)
    return out.getvalue()


def _read(name: str) -> Any:
    data = safe_pickle.load(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
    return {"segments": data, "device_traces": []} if isinstance(data, list) else data


_FLAME, _PAGE = "flamegraph svg (default: output.svg)", "path to save the visualization (default: output.html)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay.cuda._memory_viz",
        description="Visualize memory dumps produced by forebay.cuda.memory._snapshot()",
    )
    actions = parser.add_subparsers(dest="action", required=True)

    def action(name: str, says: str, inputs: Iterable[str] = ("input",)) -> argparse.ArgumentParser:
        made = actions.add_parser(name, description=says, help=says)
        for each in inputs:
            made.add_argument(each, help="a pickled snapshot; - is the standard input")
        return made

    action("stats", "Print how the allocator's segments are filled.")
    action("trace", "Print the recorded history as if it were a program.")
    flames = [
        action("segments", "Draw who allocated what in each segment, as a flame graph."),
        action("memory", "Draw who allocated what on each stream, as a flame graph."),
        action("compare", "Draw what only one of two snapshots has, as a flame graph.", ("before", "after")),
    ]
    pages = [
        action("trace_plot", "Write the history as a page."),
        action("segment_plot", "Write the history and the segments as a page."),
    ]
    for made in flames:
        made.add_argument("-o", "--output", default="output.svg", help=_FLAME)
    for made in pages:
        made.add_argument("-d", "--device", type=int, help="the device (default: the only one with a history)")
        made.add_argument("-o", "--output", default="output.html", help=_PAGE)
    pages[0].add_argument("-s", "--segments", action="store_true", help="accepted: the page shows segments anyway")
    pages[0].add_argument("-f", "--filter_freed", action="store_true", help="only what was not freed in the history")
    return parser


def _main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    match args.action:
        case "stats":
            sys.stdout.write(f"{segsum(_read(args.input))}\n")
            return
        case "trace":
            sys.stdout.write(f"{trace(_read(args.input))}\n")
            return
        case "compare":
            made = compare(_read(args.before), _read(args.after))
        case "trace_plot":
            made = trace_plot(_read(args.input), args.device, args.segments, args.filter_freed)
        case "segment_plot":
            made = segment_plot(_read(args.input), args.device)
        case _:
            made = {"segments": segments, "memory": memory}[args.action](_read(args.input))
    Path(args.output).write_text(made, "utf-8")


if __name__ == "__main__":
    _main()
