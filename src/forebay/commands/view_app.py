"""The terminal interface of `forebay view`, with Textual (extra `top`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Input, Static

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay.commands.top_table import width_before
from forebay.commands.view_model import SiteRow, ViewModel
from forebay.records.model import Snapshot
from forebay.records.site_labels import fit_labels
from forebay.snapshot.report.terminal_chart import COLORS

__all__ = ["ViewApp"]

_AXIS = 11  # cells left of the chart, for the labels
_CHART = 5  # lines of the chart at least, before bands get any
_HEADINGS = ("", "live", "share", "blocks", "call site")


class MemoryChart(Widget, can_focus=True):
    """Memory over time. A click moves the cursor."""

    DEFAULT_CSS: ClassVar[str] = "MemoryChart { height: 40%; min-height: 6; }"

    def __init__(self) -> None:
        super().__init__(id="chart")
        self.model: ViewModel | None = None
        self._lines: list[Text] = []
        self._drawn: tuple[object, ...] = ()

    @property
    def columns(self) -> int:
        """The width of the chart without the labels."""
        return max(self.size.width - _AXIS, 1)

    def render_line(self, y: int) -> Strip:
        """Return one line: the label of the axis and the cells."""
        model, height = self.model, self.size.height
        if model is None or not height:
            return Strip.blank(self.size.width)
        bands = min(len(model.lanes), max(height - _CHART, 0))
        chart = height - bands
        state = (model, model.first, model.end, model.cursor, self.columns, height)
        if state != self._drawn:
            lines = model.chart(self.columns, chart) + model.bands(self.columns)[:bands]
            self._lines, self._drawn = lines, state
        most = model.most(self.columns) if y in (0, chart // 2) else 0
        label = {0: format_bytes(most), chart // 2: format_bytes(most // 2), chart - 1: "0 B"}.get(y, "")
        line = Text(f"{label:>{_AXIS - 1}} ", "dim") + self._lines[y]
        return Strip(line.render(self.app.console), self.size.width).adjust_cell_length(self.size.width, Style())

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the moment of the column."""
        if self.model is not None and event.x >= _AXIS:
            columns = self.model.columns(self.columns)
            self.model.move_to(int(columns.moments[min(event.x - _AXIS, len(columns.moments) - 1)]))
            self.post_message(CursorMoved())


class CursorMoved(Message):
    """The cursor was moved by the mouse."""


class ViewApp(App[None]):
    """Memory over time; below, the sites with live memory at the cursor, and the stack of the selected one."""

    TITLE: str | None = "forebay view"
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    CSS: ClassVar[str] = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #status { height: 1; padding: 0 1; background: $surface; text-style: bold; }
    #search { display: none; height: 3; }
    #sites { width: 3fr; min-width: 30; scrollbar-size-horizontal: 1; scrollbar-size-vertical: 1; }
    #frames { width: 2fr; padding: 0 1; border-left: solid $primary; }
    """
    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("q", "quit", "Quit"),  # the footer has these in order, and fits 80 columns
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("left", "columns(-1)", show=False, priority=True),
        Binding("right", "columns(1)", "Move", key_display="←→", priority=True),
        Binding("shift+left,comma", "entries(-1)", show=False),
        Binding("shift+right,full_stop", "entries(1)", "Step", key_display=",."),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom", key_display="+-"),
        Binding("minus", "zoom(2.0)", show=False),
        Binding("0", "zoom(1e18)", "All"),
        Binding("home", "move(0)", show=False, priority=True),
        Binding("end", "move(-1)", show=False, priority=True),
        Binding("p", "peak", "Peak"),
        Binding("o", "oom", "OOM"),
        Binding("left_square_bracket", "step(-1)", show=False),
        Binding("right_square_bracket", "step(1)", show=False),
        Binding("slash", "search", "Find"),
        Binding("n", "match(False)", "Next"),
        Binding("N", "match(True)", "previous", show=False),
        Binding("e", "entry", "Stack"),
        Binding("d", "device", "Device"),
    ]

    def __init__(self, snapshots: Sequence[Snapshot], path: str) -> None:
        super().__init__()
        self._snapshots, self._path = [*snapshots], printable(path)
        self._models: dict[int, ViewModel] = {}
        self._at = 0
        self._rows: list[SiteRow] = []
        self._of_entry = False  # the stack of the entry is shown, not that of the selected site

    @property
    def model(self) -> ViewModel:
        """The device that is shown."""
        if self._at not in self._models:
            self._models[self._at] = ViewModel(self._snapshots[self._at])
        return self._models[self._at]

    def compose(self) -> ComposeResult:
        """Yield the widgets, from top to bottom."""
        yield Static(id="title")
        yield MemoryChart()
        yield Static(id="status")
        yield Input(placeholder="file, function, file:line, or address 0x…; Enter finds the next", id="search")
        with Horizontal():
            yield DataTable(id="sites", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(id="frames"):
                yield Static(id="stack")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Create the columns of the table, and show the peak."""
        for heading in _HEADINGS:
            self._table.add_column(Text(heading, justify="left" if heading in ("", "call site") else "right"))
        self._show()
        self._table.focus()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#sites", DataTable)

    def _show(self) -> None:
        """Show the state of the model."""
        model, chart = self.model, self.query_one(MemoryChart)
        devices = f" · device {self._at + 1} of {len(self._snapshots)}" if len(self._snapshots) > 1 else ""
        self.query_one("#title", Static).update(Text(f"{self._path}: {model.title()}{devices}"))
        self.query_one("#status", Static).update(Text(model.status()))
        chart.model = model
        chart.refresh()
        self._rows = model.sites()
        table = self._table
        table.clear()
        cells = [(format_bytes(row.nbytes), f"{row.share:.1%}", f"{row.blocks:,}") for row in self._rows]
        labels = fit_labels([row.label for row in self._rows], table.size.width - width_before(_HEADINGS, cells))
        for row, numbers, text in zip(self._rows, cells, labels, strict=True):
            label = Text(text, "bold yellow" if row.found else "", no_wrap=True)
            mark = Text("■", COLORS[row.layer])
            table.add_row(mark, *(Text(number, justify="right") for number in numbers), label)
        self._show_stack()

    def on_resize(self) -> None:
        """Fit the labels to the new width, once the table has it."""
        self.call_after_refresh(self._show)

    def _show_stack(self) -> None:
        at = self._table.cursor_row
        if self._of_entry:
            heading, frames = "Stack of the entry", self.model.stack_of_entry()
        elif 0 <= at < len(self._rows):
            heading, frames = "Largest allocation of the site", self.model.stack_of_site(self._rows[at].site)
        else:
            heading, frames = "Nothing is allocated", []
        self.query_one("#stack", Static).update(Text("\n".join([heading, "", *frames])))

    def on_data_table_row_highlighted(self) -> None:
        """Show the stack of the site that the cursor selects."""
        self._of_entry = False
        self._show_stack()

    def on_cursor_moved(self) -> None:
        """Show the moment that was clicked."""
        self._show()

    def action_columns(self, count: int) -> None:
        """Move the cursor by columns."""
        if self.focused is self.query_one("#search", Input):
            return
        self.model.move_by_columns(count, self.query_one(MemoryChart).columns)
        self._show()

    def action_entries(self, count: int) -> None:
        """Move the cursor by entries of the history, and show the entry's stack."""
        self.model.move_to(self.model.cursor + count)
        self._show()
        self.action_entry()

    def action_move(self, moment: int) -> None:
        """Move the cursor to a moment; -1 is the last."""
        self.model.move_to(self.model.last if moment < 0 else moment)
        self._show()

    def action_zoom(self, factor: float) -> None:
        """Show a shorter or longer range around the cursor."""
        self.model.zoom(factor)
        self._show()

    def action_peak(self) -> None:
        """Move the cursor to the peak."""
        self.action_move(self.model.timeline.peak)

    def action_oom(self) -> None:
        """Move the cursor to the next out-of-memory event."""
        if self.model.next_oom():
            self._show()
        else:
            self.notify("Memory did not run out in this history.")

    def action_step(self, count: int) -> None:
        """Move the cursor to the beginning of the next or the previous step that the program marked."""
        if self.model.next_step(count):
            self._show()
        else:
            self.notify("The program marked no steps.")

    def action_search(self) -> None:
        """Show the field for the text to search."""
        field = self.query_one("#search", Input)
        field.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Find the text, and move to the next entry that matches."""
        self.query_one("#search", Input).display = False
        self._table.focus()
        found = self.model.search(event.value)
        if found:
            self.model.next_match()
        elif event.value.strip():
            self.notify(f"No entry matches {event.value.strip()!r}.", markup=False)
        self._show()

    def action_match(self, backwards: bool) -> None:
        """Move to the next or the previous entry that matches the search."""
        if not self.model.pattern:
            self.notify("Search with / first.")
        elif self.model.next_match(backwards):
            self._show()
            self.action_entry()
        else:
            self.notify(f"No entry matches {self.model.pattern!r}.", markup=False)

    def action_entry(self) -> None:
        """Show the stack of the entry at the cursor."""
        self._of_entry = True
        self._show_stack()

    def action_device(self) -> None:
        """Show the next device of the file."""
        self._at = (self._at + 1) % len(self._snapshots)
        self._show()
