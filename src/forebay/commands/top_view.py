"""The terminal view of `forebay top`, with Textual (extra `top`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import DataTable, Footer, Sparkline, Static
from textual.worker import get_current_worker

from forebay._base.byte_sizes import format_bytes
from forebay.commands import CommandError
from forebay.commands.top_table import HEADINGS, NUMBERS, SITE_HEADINGS, Row, rows, site_cells, title, width_before
from forebay.records.site_labels import fit_labels

if TYPE_CHECKING:
    from forebay.observe.monitor.machine import MachineFigures

_POINTS = 120  # readings that the curve shows


class TopView(App[None]):
    """Devices of all programs; below, the memory over time and the call sites of the selected one."""

    TITLE: str | None = "forebay top"
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    CSS: ClassVar[str] = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #devices { height: auto; max-height: 60%; scrollbar-size-horizontal: 1; scrollbar-size-vertical: 1; }
    #selected { height: 1; padding: 0 1; text-style: bold; background: $surface; }
    #curve { height: 4; margin: 0 1; }
    #sites { height: 1fr; min-height: 4; scrollbar-size-horizontal: 1; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort", "Sort"),
        Binding("r", "refresh", "Refresh"),
    ]

    def __init__(self, read: Callable[[int | None], MachineFigures], interval: float) -> None:
        super().__init__()
        self._read, self._interval = read, interval
        self._now: MachineFigures | None = None
        self._before: MachineFigures | None = None
        self._rows: dict[str, Row] = {}
        self._curves: dict[tuple[int, str], deque[float]] = {}
        self._paused = self._by_memory = False
        self._sites_of: int | None = None  # the process whose call sites were requested last

    def compose(self) -> ComposeResult:
        """Yield the widgets, from top to bottom."""
        yield Static("reading …", id="title")
        yield DataTable(id="devices", cursor_type="row", zebra_stripes=True)
        yield Static(id="selected")
        yield Sparkline([], id="curve")
        yield DataTable(id="sites", cursor_type="none")
        yield Footer()

    def on_mount(self) -> None:
        """Create the columns and start the timer."""
        for heading in HEADINGS:
            self._devices.add_column(Text(heading, justify="right" if heading in NUMBERS else "left"), key=heading)
        for heading in SITE_HEADINGS:
            self._sites.add_column(Text(heading, justify="left" if heading == "call site" else "right"))
        self.action_refresh()
        self.set_interval(self._interval, self._tick)

    @property
    def _devices(self) -> DataTable[Text]:
        return self.query_one("#devices", DataTable)

    @property
    def _sites(self) -> DataTable[Text]:
        return self.query_one("#sites", DataTable)

    def _tick(self) -> None:
        if not self._paused:
            self.action_refresh()

    def action_refresh(self) -> None:
        """Read the figures in a thread: a process that is stopped does not reply."""
        if not any(worker.group == "read" and worker.is_running for worker in self.workers):
            self._sites_of = selected = self._selected_process()
            self.run_worker(lambda: self._read_figures(selected), group="read", thread=True)

    def action_pause(self) -> None:
        """Stop or continue reading."""
        self._paused = not self._paused
        self._show_title()

    def action_sort(self) -> None:
        """Order by allocated memory, or by process."""
        self._by_memory = not self._by_memory
        self._show_devices()

    def on_data_table_row_highlighted(self) -> None:
        """Show the device that the cursor selects; call sites are read of its process only."""
        self._show_selected()
        if self._selected_process() != self._sites_of:
            self.action_refresh()

    def _read_figures(self, selected: int | None) -> None:
        worker = get_current_worker()
        try:
            found = self._read(selected)
        except CommandError as error:
            if not worker.is_cancelled:
                self.call_from_thread(self.exit, return_code=2, message=f"forebay: error: {error}")
            return
        if not worker.is_cancelled:
            self.call_from_thread(self._show, found)

    def _show(self, found: MachineFigures) -> None:
        self._before, self._now = self._now, found
        for process in found.processes:
            for device in process.devices:
                curve = self._curves.setdefault((process.pid, device.device), deque(maxlen=_POINTS))
                curve.append(device.allocated)
        present = {(process.pid, device.device) for process in found.processes for device in process.devices}
        self._curves = {key: curve for key, curve in self._curves.items() if key in present}
        self._show_title()
        self._show_devices()

    def _show_title(self) -> None:
        if self._now is not None:
            paused = "  [paused]" if self._paused else ""
            self.query_one("#title", Static).update(Text(f"forebay top: {title(self._now)}{paused}"))

    def _show_devices(self) -> None:
        """Update the cells, and add and remove rows, so that the cursor stays on its device."""
        if self._now is None:
            return
        found = rows(self._now, self._before)
        if self._by_memory:
            found.sort(key=lambda row: -row.device.allocated if row.device else 0)
        table, selected = self._devices, self._selected_key()
        order = [f"{pid} {device}" for pid, device in (row.key for row in found)]
        if order != list(self._rows):
            table.clear()
            for key, row in zip(order, found, strict=True):
                table.add_row(*self._texts(row), key=key)
            if selected in order:
                table.move_cursor(row=order.index(selected))
        else:
            for key, row in zip(order, found, strict=True):
                for heading, text in zip(HEADINGS, self._texts(row), strict=True):
                    if table.get_cell(key, heading) != text:
                        table.update_cell(key, heading, text, update_width=True)
        self._rows = dict(zip(order, found, strict=True))
        self._show_selected()

    @staticmethod
    def _texts(row: Row) -> list[Text]:
        return [
            Text(cell, justify="right" if heading in NUMBERS else "left", no_wrap=True)
            for heading, cell in zip(HEADINGS, row.cells, strict=True)
        ]

    def _selected_process(self) -> int | None:
        row = self._rows.get(self._selected_key())
        return None if row is None else row.key[0]

    def _selected_key(self) -> str:
        keys = list(self._rows)
        return keys[self._devices.cursor_row] if 0 <= self._devices.cursor_row < len(keys) else ""

    def on_resize(self) -> None:
        """Fit the labels to the new width, once the table has it."""
        self.call_after_refresh(self._show_selected)

    def _show_selected(self) -> None:
        row, selected = self._rows.get(self._selected_key()), self.query_one("#selected", Static)
        curve = self.query_one("#curve", Sparkline)
        self._sites.clear()
        if row is None or row.device is None:
            curve.data = []
            selected.update("" if self._rows else "No program that was started by forebay run is running.")
            return
        points = [*self._curves.get(row.key, ())]
        curve.data = [0.0] * (_POINTS + 1 - len(points)) + points  # from zero, and the latest at the right
        peak = format_bytes(int(max(curve.data)))
        text = f"{row.device.device} of process {row.key[0]}: allocated memory over time, up to {peak}"
        selected.update(Text(text if row.device.sites else f"{text} (no call sites: no history is recorded)"))
        cells = [site_cells(site, row.device.allocated) for site in row.device.sites]
        width = self._sites.size.width - width_before(SITE_HEADINGS, [each[:-1] for each in cells])
        for (*numbers, _), label in zip(cells, fit_labels([each[-1] for each in cells], width), strict=True):
            self._sites.add_row(*(Text(number, justify="right") for number in numbers), Text(label, no_wrap=True))
