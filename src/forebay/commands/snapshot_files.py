"""Shared functions of the commands for snapshot files: reading with one-line errors, and progress bars."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.untrusted import printable
from forebay.commands import CommandError
from forebay.commands.site_options import chosen_sites
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.snapshot import Snapshot
    from forebay.snapshot.report.paragraph import Paragraph

LONG = 200_000  # minimum number of entries for a progress bar

Progress = Callable[[int, int], None]


def load_snapshots(path: Path, choice: SiteChoice = DEFAULT_CHOICE) -> tuple[Snapshot, ...]:
    """Return the snapshots in a file, one for each device. A truncated file is stated on standard error."""
    from forebay import snapshot
    from forebay.snapshot.formats.known_notes import truncation_of
    from forebay.snapshot.formats.native import BadSnapshot

    try:
        with progress_bar("reading", path.stat().st_size >> 6) as progress:
            found = snapshot.load(path, progress)
    except BadSnapshot as error:
        raise CommandError(str(error)) from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise CommandError(
            f"cannot read the snapshot {str(path)!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    except MemoryError as error:
        raise CommandError(f"cannot read the snapshot {str(path)!r}: not enough memory") from error
    for text in {truncation_of(each.notes) for each in found} - {""}:
        print(f"forebay: {printable(f'{path} is truncated: {text}')}", file=sys.stderr)
    return tuple(replace(each, site_choice=choice) for each in found)


def used_devices(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the devices with memory or a history, those that ran out of memory first; the first one if none has."""
    used = [each for each in snapshots if len(each.segments) or len(each.trace)]
    return sorted(used, key=lambda each: not ran_out(each)) or [*snapshots[:1]]


def chosen_devices(args: argparse.Namespace) -> list[Snapshot]:
    """Return the devices in a command's file: those that were used, failed ones first, or the one that was asked for.

    The arguments are `snapshot`, `device`, and those of `add_site_options`.
    """
    snapshots = load_snapshots(args.snapshot, chosen_sites(args))
    if args.device is None:
        return used_devices(snapshots)
    chosen = [snapshot for snapshot in snapshots if snapshot.device == args.device]
    if not chosen:
        names = ", ".join(snapshot.device for snapshot in snapshots) or "none"
        raise CommandError(f"{args.snapshot} has no device {args.device!r}; its devices: {names}")
    return chosen


def ran_out(snapshot: Snapshot) -> bool:
    """Return True if the history has an out-of-memory event."""
    from forebay.records.model import Action

    return bool((snapshot.trace["action"] == Action.OOM).any())


def snapshot_console() -> Console:
    """Return a console for standard output, at least 100 columns wide if that is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(console.width, 100))


def write_page(path: Path, title: str, parts: Sequence[Paragraph]) -> None:
    """Write paragraphs as an HTML page."""
    from forebay._base.atomic_write import atomic_write
    from forebay.snapshot.report.static_page import page

    try:
        with atomic_write(path) as file:
            file.write(page(title, parts).encode())
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def progress_bar(description: str, entries: int) -> Iterator[Progress | None]:
    """Context manager for a progress bar on standard error; None for short histories or without a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True, highlight=False)
    if entries < LONG or not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task(printable(description), total=1)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done / max(total, 1))
            progress.refresh()

        yield show
