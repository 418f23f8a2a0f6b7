"""Memory snapshots as text, flame graphs and HTML pages: `python -m forebay.cuda._memory_viz`.

As `torch.cuda._memory_viz`, but nothing is downloaded: the flame graphs and the pages are self-contained.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from forebay._base.atomic_write import atomic_write
from forebay._base.untrusted import open_regular, printable
from forebay.errors import ForebayError
from forebay.names.unsupported import unsupported
from forebay.snapshot.formats import safe_pickle, torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot
from forebay.snapshot.formats.torch_schema import PINNED
from forebay.snapshot.report import flamegraph, html
from forebay.snapshot.report.flamegraph import block_frames as _block_extra
from forebay.snapshot.report.flamegraph import frame_text as _frame_fmt
from forebay.snapshot.report.flamegraph import frame_texts as _frames_fmt
from forebay.snapshot.report.flamegraph import is_shown as _frame_filter
from forebay.snapshot.report.flamegraph import old_block_frames as _block_extra_legacy
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
from forebay.snapshot.report.torch_text import free_text as _report_free

__all__ = [
    "_block_extra",
    "_block_extra_legacy",
    "_format_size",
    "_frame_filter",
    "_frame_fmt",
    "_frames_fmt",
    "_report_free",
    "compare",
    "format_flamegraph",
    "memory",
    "segments",
]

calc_active, segsum, trace, filter_alloc_free_pairs = active_bytes, segments_text, trace_text, unfreed
legend = LEGEND


def format_flamegraph(flamegraph_lines: str, flamegraph_script: str | None = None) -> str:
    """Return folded stacks drawn as a flame graph.

    As `torch.cuda._memory_viz.format_flamegraph`, which downloads a Perl script by default.

    Parameters
    ----------
    flamegraph_lines : str
        Lines of frames separated by semicolons, each followed by a number of bytes.
    flamegraph_script : str, optional
        A program that reads the lines from its standard input and writes the SVG; by default forebay draws it.

    Raises
    ------
    AssertionError
        If the program exits with an error.
    """
    if flamegraph_script is None:
        return flamegraph.draw(flamegraph_lines)
    command = [flamegraph_script, "--countname", "bytes"]
    done = subprocess.run(command, input=flamegraph_lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"flamegraph process exited with code {done.returncode}")
    return done.stdout


def segments(snapshot: Mapping[str, Any], format_flamegraph: Callable[[str], str] = format_flamegraph) -> str:
    """Return a flame graph of the allocating stacks, grouped by segment.

    Parameters
    ----------
    snapshot : mapping
        The result of `forebay.cuda.memory._snapshot()`.
    format_flamegraph : callable, optional
        Converts folded stacks to the result.

    Returns
    -------
    str
        The SVG, or the result of `format_flamegraph`.
    """
    return format_flamegraph(flamegraph.fold_segments(snapshot))


def memory(snapshot: Mapping[str, Any], format_flamegraph: Callable[[str], str] = format_flamegraph) -> str:
    """Return a flame graph of the allocating stacks, grouped by stream.

    Parameters
    ----------
    snapshot : mapping
        The result of `forebay.cuda.memory._snapshot()`.
    format_flamegraph : callable, optional
        Converts folded stacks to the result.

    Returns
    -------
    str
        The SVG, or the result of `format_flamegraph`.
    """
    return format_flamegraph(flamegraph.fold_streams(snapshot))


def compare(before: Any, after: Any, format_flamegraph: Callable[[str], str] = format_flamegraph) -> str:
    """Return a flame graph of the segments that only one of two snapshots contains, and print their addresses.

    Parameters
    ----------
    before : mapping or list
        A snapshot, or its list of segments.
    after : mapping or list
        The other snapshot.
    format_flamegraph : callable, optional
        Converts folded stacks to the result.

    Returns
    -------
    str
        The SVG, or the result of `format_flamegraph`.
    """
    segment_lists = [rows["segments"] if isinstance(rows, Mapping) else list(rows) for rows in (before, after)]
    keys = [{(row["address"], row["total_size"]) for row in rows} for rows in segment_lists]
    folded = ""
    for name, rows, others in (
        ("only_before", segment_lists[0], keys[1]),
        ("only_after", segment_lists[1], keys[0]),
    ):
        unmatched = [row for row in rows if (row["address"], row["total_size"]) not in others]
        sys.stdout.write(f"{name} = {[row['address'] for row in unmatched]}\n")
        for row in unmatched:
            folded += flamegraph.fold(f"{name};stream_{row['stream']};seg_{row['address']}", row["blocks"])
    return format_flamegraph(folded)


def trace_plot(
    data: dict[str, Any],
    device: int | None = None,
    plot_segments: bool = False,  # noqa: ARG001 -- the page shows both
    filter_freed: bool = False,
) -> str:
    """Return an HTML page of the memory history: allocated and reserved bytes over time.

    Parameters
    ----------
    data : dict
        The result of `forebay.cuda.memory._snapshot()`.
    device : int, optional
        The device's index; by default all devices with a history.
    plot_segments : bool, default False
        Ignored: the page always shows segments.
    filter_freed : bool, default False
        Remove allocations that were freed during the history, also from `data`.

    Raises
    ------
    ValueError
        If the device is not in the snapshot.
    """
    return _page(unfreed(data) if filter_freed else data, device)


def segment_plot(data: Any, device: int | None = None) -> str:
    """Return the HTML page of `trace_plot`, which shows the segments as well.

    Parameters
    ----------
    data : dict or list
        The result of `forebay.cuda.memory._snapshot()`, or its list of segments.
    device : int, optional
        The device's index; by default all devices with a history.

    Raises
    ------
    ValueError
        If the device is not in the snapshot.
    """
    return _page(data, device)


profile_plot = unsupported(
    "forebay.cuda._memory_viz",
    "profile_plot(profile, device=None)",
)
_profile_to_snapshot = unsupported("forebay.cuda._memory_viz", "_profile_to_snapshot(profile)")


def _write_blocks(f: Any, prefix: str, blocks: Iterable[Mapping[str, Any]]) -> None:
    f.write(flamegraph.fold(prefix, blocks))


def _format_viz(data: Any, viz_kind: str, device: int | None) -> str:  # noqa: ARG001 -- the page shows all kinds
    return _page(data, device)


def _page(data: Any, device: int | None) -> str:
    devices = [each for each in torch_pickle.snapshots(data) if each.device != PINNED]
    by_device = {int(each.device.rpartition(":")[2]): each for each in devices}
    traced = [index for index, each in by_device.items() if len(each.trace)]
    shown = (traced or list(by_device)[:1]) if device is None else [device]
    if not by_device.keys() >= set(shown):
        raise ValueError(f"the snapshot has no data for device {device}")
    out = io.StringIO()
    html.write_several([by_device[index] for index in shown], out)
    return out.getvalue()


def _read(name: str) -> Any:
    if name == "-":
        content = sys.stdin.buffer.read()
    else:
        with open_regular(name) as file:
            content = file.read()
    data = safe_pickle.load(content)
    return {"segments": data, "device_traces": []} if isinstance(data, list) else data


_PLOT_OPTIONS = ("device", "segments", "filter_freed")
_FLAME, _PAGE = "flamegraph svg (default: output.svg)", "path to save the visualization (default: output.html)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay.cuda._memory_viz",
        description="Visualize memory dumps produced by forebay.cuda.memory._snapshot()",
    )
    actions = parser.add_subparsers(dest="action", required=True)

    def action(name: str, description: str, inputs: Iterable[str] = ("input",)) -> argparse.ArgumentParser:
        subparser = actions.add_parser(name, description=description, help=description)
        for each in inputs:
            subparser.add_argument(each, help="a pickled snapshot; - reads standard input")
        return subparser

    action("stats", "Print the allocator's segments and the blocks in them.")
    action("trace", "Print the recorded history as a program.")
    flames = [
        action("segments", "Draw a flame graph of the allocating stacks, grouped by segment."),
        action("memory", "Draw a flame graph of the allocating stacks, grouped by stream."),
        action(
            "compare",
            "Draw a flame graph of the segments that only one of two snapshots contains.",
            ("before", "after"),
        ),
    ]
    pages = [
        action("trace_plot", "Write the history as an HTML page."),
        action("segment_plot", "Write the history and the segments as an HTML page."),
    ]
    for subparser in flames:
        subparser.add_argument("-o", "--output", default="output.svg", help=_FLAME)
    for subparser in pages:
        subparser.add_argument("-d", "--device", type=int, help="the device (default: all with a history)")
        subparser.add_argument("-o", "--output", default="output.html", help=_PAGE)
    pages[0].add_argument(
        "-s", "--segments", action="store_true", help="accepted without effect: the page always shows segments"
    )
    pages[0].add_argument(
        "-f", "--filter_freed", action="store_true", help="omit allocations that were freed during the history"
    )
    return parser


def _main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    try:
        if args.action == "compare":
            text = _checked(compare, _read(args.before), _read(args.after))
        else:
            options = {name: value for name, value in vars(args).items() if name in _PLOT_OPTIONS}
            text = _output(args.action, _read(args.input), **options)
        if args.action in ("stats", "trace"):
            sys.stdout.write(f"{text}\n")
            return
        with atomic_write(Path(args.output)) as output:
            output.write(text.encode())
    except (OSError, ValueError, ForebayError, MemoryError) as error:
        message = f"{error.filename!r}: {error.strerror}" if isinstance(error, OSError) else str(error)
        sys.exit(f"forebay: error: {printable(message or 'not enough memory')}")


def _output(
    action: str, data: Any, device: int | None = None, *, segments: bool = False, filter_freed: bool = False
) -> str:
    """Return what an action makes of a snapshot from an untrusted file. Raises BadSnapshot for another schema."""
    match action:
        case "stats" | "trace":
            text = _checked(segsum if action == "stats" else trace, data)
            return "\n".join(map(printable, text.split("\n")))
        case "trace_plot":
            return _checked(trace_plot, data, device, segments, filter_freed)
        case "segment_plot":
            return _checked(segment_plot, data, device)
        case _:
            return _checked(globals()[action], data)


def _checked(function: Callable[..., str], *arguments: Any) -> str:
    """Call a function that assumes PyTorch's schema, after a check of the schema."""
    try:
        for value in arguments:
            if isinstance(value, Mapping):
                torch_pickle.snapshots(value)
                flamegraph.check_size(value)
        return function(*arguments)
    except (KeyError, TypeError, AttributeError, IndexError, AssertionError, RecursionError) as error:
        raise BadSnapshot(f"not a complete PyTorch snapshot: {type(error).__name__}: {error}") from None


if __name__ == "__main__":
    _main()
