"""The end of `forebay run`: the tables on the terminal and the two files, each whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.atomic_write import in_place_of
from forebay.commands.terminal import Terminal

if TYPE_CHECKING:
    from forebay.snapshot.model import Snapshot

SNAPSHOT, REPORT = "snapshot.forebay", "report.html"


def tell(snapshot: Snapshot, terminal: Terminal, output: Path) -> None:
    """Show the tables, write the files, say where they are."""
    from forebay.snapshot.report import text

    console = terminal.console()
    console.print()
    console.print(text.report(snapshot, width=console.width))
    console.print()
    for name in _write(snapshot, terminal, output):
        console.print(f"{Path(name).stem:9} {output / name}", soft_wrap=True, markup=False)


def show_page(terminal: Terminal, output: Path) -> None:
    """Open the report in a browser, or say that there is none."""
    import webbrowser

    try:
        if webbrowser.open((output / REPORT).as_uri()):
            return
    except (OSError, RuntimeError, webbrowser.Error):  # newer Pythons start no process this late
        pass
    terminal.say("forebay: no browser could be started: open the report yourself")


def _write(snapshot: Snapshot, terminal: Terminal, output: Path) -> list[str]:
    """Both files, with a bar where somebody watches; gives the names of those that went well."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from forebay.snapshot.formats import native
    from forebay.snapshot.report import html

    def write_snapshot(path: Path) -> None:
        native.write(snapshot, path, lambda done, total: show("writing the snapshot", done / max(1, total)))

    def write_page(path: Path) -> None:
        show("drawing the report", 1)
        with in_place_of(path) as file:
            text = TextIOWrapper(file, encoding="utf-8")
            html.write(snapshot, text)
            text.detach()  # else it closes the file

    def attempt(write: Callable[[Path], None], path: Path) -> bool:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)  # the program may have removed it
            write(path)
        except Exception as error:  # noqa: BLE001 - the other file may still go well
            terminal.say(f"forebay: error: cannot write {str(path)!r}: {reason(error)}")
            return False
        return True

    console = terminal.console()
    # No thread redraws the bar: none can be started while the interpreter leaves.
    looks = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    watched = console.is_terminal
    with Progress(*looks, console=console, transient=True, auto_refresh=False, disable=not watched) as progress:
        task = progress.add_task("", total=2)

        def show(what: str, done: float) -> None:
            progress.update(task, description=what, completed=done)
            progress.refresh()

        writers = {SNAPSHOT: write_snapshot, REPORT: write_page}
        return [name for name, write in writers.items() if attempt(write, output / name)]


def reason(error: BaseException) -> str:
    """An error in one line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split()) or type(error).__name__
