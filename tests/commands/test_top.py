"""`forebay top`: rows, rates, the terminal view through Textual's pilot, and errors in one line."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from dataclasses import replace

import pytest

from forebay.commands import CommandError, cli, top_table
from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, Readings, SiteFigures
from forebay.observe.monitor.machine import MachineFigures
from forebay.observe.monitor.sensors import MachineGpu

LIMIT = 20.0  # seconds


def device(name: str, allocated: int, allocations: int = 0, sites: tuple[SiteFigures, ...] = ()) -> DeviceFigures:
    return DeviceFigures(
        device=name, name="NVIDIA H200 (emulated)" if name != "cpu" else "Xeon", emulated=name != "cpu",
        capacity=None if name == "cpu" else 1 << 37, allocated=allocated, reserved=2 * allocated, peak=3 * allocated,
        allocations=allocations, frees=0, retries=0, ooms=0, streams=4, busy_streams=1,
        readings=Readings(busy=0.25, temperature=31, power=118_400, clock=345), sites=sites,
    )  # fmt: skip


def process(pid: int, *devices: DeviceFigures, taken_at: float = 0.0, program: str = "train.py") -> ProcessFigures:
    return ProcessFigures(pid, program, 1.0, taken_at, 50 << 20, devices)


def machine(*processes: ProcessFigures, gpus=(), **failures: str) -> MachineFigures:
    return MachineFigures(processes, gpus, {int(pid[1:]): reason for pid, reason in failures.items()})


def cells_of(row: top_table.Row) -> dict[str, str]:
    return dict(zip(top_table.HEADINGS, row.cells, strict=True))


def test_rows_have_figures_and_rates():
    before = machine(process(7, device("cuda:0", 1 << 30, allocations=100), taken_at=10.0))
    now = machine(process(7, device("cuda:0", 1 << 30, allocations=350), device("cpu", 512), taken_at=10.5))
    first, second = map(cells_of, top_table.rows(now, before))
    assert first == {
        "pid": "7", "program": "train.py", "device": "cuda:0", "allocated": "1.00 GiB", "reserved": "2.00 GiB",
        "capacity": "128.00 GiB", "busy": "25%", "allocs/s": "500", "peak": "3.00 GiB", "queues": "1/4",
        "sensors": "31 °C 118 W 345 MHz", "name": "NVIDIA H200 (emulated)",
    }  # fmt: skip
    assert (second["capacity"], second["allocs/s"]) == ("no limit", "-")


def test_rate_after_a_restart_or_at_the_same_time_is_not_negative():
    early = machine(process(7, device("cpu", 1, allocations=100), taken_at=10.0))
    restarted = machine(process(7, device("cpu", 1, allocations=5), taken_at=11.0))
    assert cells_of(top_table.rows(restarted, early)[0])["allocs/s"] == "0"
    assert cells_of(top_table.rows(early, early)[0])["allocs/s"] == "-"


def test_gpus_of_the_machine_and_processes_without_devices_have_rows():
    gpu = MachineGpu(3, "GPU-12", Readings(memory_used=1 << 30, memory_total=1 << 31), {5: None, 6: 1})
    idle, real, *_ = map(cells_of, top_table.rows(machine(process(7), gpus=(gpu,)), None))
    assert (idle["pid"], idle["device"]) == ("7", "")
    assert (real["program"], real["device"], real["allocated"], real["name"]) == (
        "2 processes", "gpu 3", "1.00 GiB", "GPU-12",
    )  # fmt: skip


def test_processes_of_all_users_on_a_gpu_have_rows_once():
    own, gone = os.getpid(), 1 << 30
    gpu = MachineGpu(3, "GPU-12", Readings(), {gone: None, own: 3 << 30, 7: 1})
    _, _, first, second = map(cells_of, top_table.rows(machine(process(7), gpus=(gpu,)), None))
    assert (first["pid"], first["device"], first["allocated"]) == (str(own), "gpu 3", "3.00 GiB")
    assert first["program"].startswith("python")
    assert first["name"].startswith("of ")
    assert (second["pid"], second["program"], second["allocated"]) == (str(gone), "?", "")
    assert second["name"] == "of another container"


def test_long_text_is_shortened():
    row = cells_of(top_table.rows(machine(process(7, device("cpu", 1), program="x" * 500)), None)[0])
    assert len(row["program"]) <= 21


# ---- The terminal view

pytest.importorskip("textual", reason="the extra top is not installed")


class Source:
    """Figures that a test changes, with a reading for each call."""

    def __init__(self, *processes: ProcessFigures) -> None:
        self.now, self.reads, self.error, self.selected = machine(*processes), 0, None, None

    def __call__(self, selected: int | None) -> MachineFigures:
        self.reads += 1
        self.selected = selected
        if self.error is not None:
            raise self.error
        return self.now


def view(source, use, size=(160, 40)):
    """Run the view with a long interval, and `use(app, pilot)` in it."""
    from forebay.commands.top_view import TopView

    async def run() -> TopView:
        app = TopView(source, 3600)
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            await use(app, pilot)
        return app

    return asyncio.run(asyncio.wait_for(run(), LIMIT))


async def settle(app, pilot):
    await app.workers.wait_for_complete()
    await pilot.pause()


def column(app, heading: str) -> list[str]:
    table = app.query_one("#devices")
    return [str(table.get_cell(key, heading)) for key in table.rows]


def sites_of(app) -> list[list[str]]:
    table = app.query_one("#sites")
    return [[str(cell) for cell in table.get_row(key)] for key in table.rows]


SITES = (SiteFigures("train.py:3 forward", 768, 2), SiteFigures("[red]x.py:1", 256, 1))


def test_view_shows_devices_and_the_sites_of_the_selected_one():
    source = Source(process(7, device("cpu", 100), device("cuda:0", 1024, sites=SITES)))

    async def use(app, pilot):
        assert column(app, "device") == ["cpu", "cuda:0"]
        assert sites_of(app) == []
        await pilot.press("down")
        await pilot.pause()
        assert sites_of(app) == [
            ["768 B", "75%", "2", "train.py:3 forward"],
            ["256 B", "25%", "1", "[red]x.py:1"],
        ]
        assert "1 process, resident 50.00 MiB" in str(app.query_one("#title").render())

    view(source, use)


def test_selection_stays_on_its_device_when_rows_come_and_go():
    first, second = process(7, device("cuda:0", 10, sites=SITES)), process(9, device("cuda:0", 20))

    async def use(app, pilot):
        await pilot.press("r")
        await settle(app, pilot)
        assert source.selected == 7
        await pilot.press("down")  # process 9
        await settle(app, pilot)
        assert source.selected == 9
        source.now = machine(process(3, device("cpu", 5)), first, second)
        await pilot.press("r")
        await settle(app, pilot)
        assert column(app, "pid") == ["3", "7", "9"]
        assert app.query_one("#devices").cursor_row == 2
        source.now = machine(second)
        await pilot.press("r")
        await settle(app, pilot)
        assert app.query_one("#devices").cursor_row == 0
        source.now = machine()
        await pilot.press("r")
        await settle(app, pilot)
        assert column(app, "pid") == []
        assert "No program" in str(app.query_one("#selected").render())

    source = Source(first, second)
    view(source, use)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_sort_pause_and_quit(key):
    source = Source(process(7, device("cpu", 10)), process(9, device("cpu", 20)))

    async def use(app, pilot):
        await pilot.press("s")
        assert column(app, "pid") == ["9", "7"]
        await pilot.press("s")
        assert column(app, "pid") == ["7", "9"]
        reads = source.reads
        await pilot.press("p")
        app._tick()
        await settle(app, pilot)
        assert source.reads == reads
        assert "[paused]" in str(app.query_one("#title").render())
        await pilot.press("p")
        app._tick()
        await settle(app, pilot)
        assert source.reads == reads + 1
        await pilot.press(key)

    assert view(source, use).return_code == 0


def test_view_ends_with_one_line_when_sockets_cannot_be_used():
    source = Source(process(7, device("cpu", 10)))

    async def use(app, pilot):
        source.error = CommandError("cannot find running programs: denied")
        await pilot.press("r")
        await pilot.pause(0.1)

    assert view(source, use).return_code == 2


@pytest.mark.parametrize("size", [(20, 5), (60, 20), (300, 60)])
def test_view_fits_any_terminal(size):
    async def use(app, pilot):
        app.export_screenshot()

    view(Source(process(7, replace(device("cuda:0", 1 << 40), sites=SITES * 200))), use, size)


# ---- The command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pid", "x"], "'x' is not a process id"),
        (["--pid", "99999999999"], "is not a process id"),
        (["--interval", "0"], "is not a number of seconds"),
        (["--interval", "nan"], "is not a number of seconds"),
        (["--interval", "often"], "'often' is not a number of seconds"),
        (["--once", "--pid", "4194304"], "process 4194304: it offers no figures"),
        ([], "needs a terminal"),
    ],
)
def test_errors_are_one_line(capsys, runtime_directory, arguments, message):
    try:
        status = cli.main(["top", *arguments])
    except SystemExit as exit_:
        status = exit_.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_nothing_running_is_said(capsys, runtime_directory):
    assert cli.main(["top", "--once"]) == 0
    assert "No program that was started by forebay run is running." in capsys.readouterr().out


@pytest.fixture
def terminal(monkeypatch):
    """Standard streams that claim to be a terminal. Returns the views that were run instead of being shown."""
    from forebay.commands import top_view

    shown = []

    def show(app):
        shown.append(app)

    stream = types.SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr("forebay.commands.top.sys", types.SimpleNamespace(stdin=stream, stdout=stream))
    monkeypatch.setattr(top_view.TopView, "run", show)
    return shown


def test_terminal_shows_the_view(terminal, runtime_directory):
    assert cli.main(["top", "--interval", "2.5"]) == 0
    [app] = terminal
    assert app._read(None).processes == ()
    assert app._interval == 2.5


def test_process_that_does_not_reply_is_an_error_before_the_view(terminal, runtime_directory, capsys):
    assert cli.main(["top", "--pid", "4194304"]) == 2
    assert "process 4194304: it offers no figures" in capsys.readouterr().err
    assert terminal == []


def test_missing_package_is_one_line(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "forebay.commands.top_view", raising=False)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    assert cli.main(["top"]) == 2
    err = capsys.readouterr().err
    assert "forebay top cannot start: " in err
    assert "pip install 'forebay[top]', or --once" in err
    assert err.count("\n") == 1


def test_directory_that_cannot_be_used_is_one_line(runtime_directory, capsys):
    (runtime_directory / "forebay").touch()
    assert cli.main(["top", "--once"]) == 2
    err = capsys.readouterr().err
    assert "cannot find running programs: " in err
    assert err.count("\n") == 1
