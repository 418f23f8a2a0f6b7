"""Report of `forebay run`: tables on the terminal and files, each written atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.atomic_write import atomic_write
from forebay._base.trusted_folders import make_folder
from forebay.commands import run_children, run_devices, run_rehearsal, run_torch
from forebay.commands.run_output import PICKLE, REPORT, SMALL_ARRAYS, SNAPSHOT, SUMMARY, reason
from forebay.commands.run_page import write_page_of
from forebay.commands.run_process import ProcessUse
from forebay.commands.terminal import Terminal

if TYPE_CHECKING:
    from forebay.commands.run_processes import Processes
    from forebay.commands.run_torch import TorchResult
    from forebay.records.model import Snapshot
    from forebay.rehearsal.files_report import FilesReport

_SITES = 10  # in the summary
_KINDS = {PICKLE: "pickle"}  # of files; by default the name


def report(
    snapshots: list[Snapshot],
    process: ProcessUse,
    notes: Mapping[str, Any],
    terminal: Terminal,
    output: Path,
    style: str = "tables",
    changed_files: FilesReport | None = None,
    processes: Processes | None = None,
) -> None:
    """Write the files. Print tables and the paths, or the summary as JSON ("json"), or only errors ("quiet").

    `processes` are the children that have no report.
    """
    import json

    children = run_children.collect(output, str(notes.get("run")))
    torch = run_torch.results(snapshots)
    summary = {**_summary(snapshots, process, notes), "children": children, "output": str(output)}
    if processes is not None:
        summary["processes"] = processes.as_json()
    if torch is not None:
        summary |= torch.as_json()
        snapshots = torch.with_notes(snapshots)
    if changed_files is not None:
        summary["files"] = changed_files.as_json()
    if style == "tables":
        _print_tables(snapshots, process, children, terminal, torch, processes)
        if changed_files is not None:
            run_rehearsal.print_files(terminal.console(), changed_files)
    pages = [*snapshots, *run_children.snapshots(output, children, snapshots)]
    files = _write(snapshots, pages, json.dumps(summary, indent=2), terminal, output)
    if style == "json":
        terminal.print_line(json.dumps(summary))
    elif style == "tables":
        for name in files:
            if name != SUMMARY:
                line = f"{_KINDS.get(name) or Path(name).stem.partition('-')[0]:9} {output / name}"
                terminal.console().print(line, soft_wrap=True, markup=False)


def write_child(
    snapshots: list[Snapshot], process: ProcessUse, notes: Mapping[str, Any], terminal: Terminal, output: Path
) -> None:
    """Write the files of a child process: the snapshots, then the summary, by which its parent finds them."""
    import json

    _write(snapshots, [], json.dumps(_summary(snapshots, process, notes), indent=2), terminal, output)


def _summary(snapshots: list[Snapshot], process: ProcessUse, notes: Mapping[str, Any]) -> dict[str, Any]:
    devices = [each for each in snapshots if not run_devices.is_sample(each)]
    summary = {**notes, **process.as_json(), "devices": [_device(each) for each in devices]}
    for each in snapshots:
        if run_devices.is_sample(each):
            summary["other_arrays"]["sample"] = _sample(each)
    return summary


def _sample(snapshot: Snapshot) -> dict[str, Any]:
    """Return the figures of the sample of small arrays. All sizes are estimates."""
    from forebay.snapshot.analysis.sampling import peak_error
    from forebay.snapshot.analysis.timeline import reconstruct

    timeline = reconstruct(snapshot)
    found = _device(snapshot)
    return {
        "sampled": True,
        "mean_bytes": snapshot.notes["sampled"]["mean_bytes"],
        "seed": snapshot.notes["sampled"]["seed"],
        "samples": found["allocations"],
        "lost": found["lost"],
        "peak_bytes": found["peak"],
        "current_bytes": found["current"],
        "relative_error": round(peak_error(snapshot, timeline), 6),
        "sites_at_peak": found["sites_at_peak"],
    }


def _device(snapshot: Snapshot) -> dict[str, Any]:
    from forebay.snapshot.analysis.largest_sites import split_largest
    from forebay.snapshot.analysis.summary import sites, summary
    from forebay.snapshot.analysis.timeline import reconstruct

    timeline, sampled = reconstruct(snapshot), run_devices.is_sample(snapshot)
    snapshot = split_largest(snapshot, timeline)
    uses = sites(snapshot, timeline=timeline) if len(timeline.allocations.start) else []
    top = [
        {
            "site": use.label,
            "library": use.library or None,
            "bytes": use.live_bytes,
            "count": use.count,
            "largest": use.largest,
            **({"relative_error": round(use.error, 6)} if sampled else {}),
        }
        for use in uses[:_SITES]
    ]
    numbers = asdict(summary(snapshot, timeline=timeline))
    return {"device": snapshot.device, "capacity": snapshot.capacity or None, **numbers, "sites_at_peak": top}


def _print_tables(
    snapshots: list[Snapshot],
    process: ProcessUse,
    children: list[dict[str, Any]],
    terminal: Terminal,
    torch: TorchResult | None,
    processes: Processes | None,
) -> None:
    from forebay.snapshot.report import text

    console = terminal.console()
    console.print()
    if head := process.head():
        console.print(head)
        console.print()
    for snapshot in snapshots:
        console.print(text.report(snapshot, width=console.width))
        console.print()
    run_torch.print_results(console, torch)
    console.print(process.table(console.width))
    console.print()
    if children:
        console.print(run_children.table(children, console.width))
        console.print()
    sentences = [] if processes is None else [*processes.sentences()]
    for sentence in sentences:
        console.print(sentence, markup=False)
    if sentences:
        console.print()


def snapshot_names(snapshots: list[Snapshot]) -> list[str]:
    """Return the names of the snapshot files: with the device if there are several."""
    alone = sum(not run_devices.is_sample(each) for each in snapshots) == 1
    return [
        SMALL_ARRAYS
        if run_devices.is_sample(each)
        else SNAPSHOT
        if alone
        else f"snapshot-{each.device.replace(':', '-')}.forebay"
        for each in snapshots
    ]


def show_page(terminal: Terminal, output: Path) -> None:
    """Open the report in a browser, or print that no browser could be started."""
    import webbrowser

    try:
        if webbrowser.open((output / REPORT).as_uri()):
            return
    except (OSError, RuntimeError, webbrowser.Error):  # newer Pythons cannot start processes during shutdown
        pass
    terminal.print_line("forebay: no browser could be started; open the report manually")


def _write(
    snapshots: list[Snapshot], pages: list[Snapshot], summary: str, terminal: Terminal, output: Path
) -> list[str]:
    """Write all files, with a progress bar on terminals. Returns the names of the files that were written."""
    from forebay.snapshot.formats import native

    def write_snapshot(snapshot: Snapshot, path: Path) -> None:
        native.write(snapshot, path, lambda done, total: show("writing the snapshot", done / max(1, total)))

    def write_page(path: Path) -> None:
        show("rendering the report", 1)
        write_page_of(pages, path)

    def write_summary(path: Path) -> None:
        with atomic_write(path) as file:
            file.write(f"{summary}\n".encode())

    def attempt(write: Callable[[Path], None], path: Path) -> bool:
        try:
            make_folder(path.parent)  # the program may have removed the directory
            write(path)
        except Exception as error:  # noqa: BLE001 - the other files may still be written
            terminal.print_line(f"forebay: error: cannot write {str(path)!r}: {reason(error)}")
            return False
        return True

    writers: dict[str, Callable[[Path], None]] = {
        name: partial(write_snapshot, each) for name, each in zip(snapshot_names(snapshots), snapshots, strict=True)
    }
    writers[SUMMARY] = write_summary
    if pages:
        writers[REPORT] = write_page
    if run_torch.is_running():
        writers[PICKLE] = partial(run_torch.write_pickle, snapshots)
    with _progress(terminal) as show:
        return [name for name, write in writers.items() if attempt(write, output / name)]


@contextmanager
def _progress(terminal: Terminal) -> Iterator[Callable[[str, float], None]]:
    """Context manager: a progress bar on terminals, as a function of a description and the share that is done."""
    console = terminal.console()
    if not console.is_terminal:
        yield lambda _description, _done: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    # auto_refresh=False: no thread can be started while the interpreter shuts down.
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=2)

        def show(description: str, done: float) -> None:
            progress.update(task, description=description, completed=done)
            progress.refresh()

        yield show
