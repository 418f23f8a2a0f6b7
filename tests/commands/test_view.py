"""`forebay view`: the terminal interface through Textual's pilot, and errors in one line."""

from __future__ import annotations

import asyncio

import pytest
from support.snapshot_scenes import Scene, training_run

from forebay.commands import cli
from forebay.snapshot.formats import native

pytest.importorskip("textual", reason="the extra top is not installed")

LIMIT = 20.0  # seconds


def show(snapshots, use, size=(120, 40), path="memory.pickle"):
    """Run the interface, and `use(app, pilot)` in it."""
    from forebay.commands.view_app import ViewApp

    async def run():
        app = ViewApp(snapshots, path)
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await use(app, pilot)

    asyncio.run(asyncio.wait_for(run(), LIMIT))


def text_of(app, selector: str) -> str:
    return str(app.query_one(selector).content)


def sites_of(app) -> list[list[str]]:
    table = app.query_one("#sites")
    return [[str(cell) for cell in table.get_row(key)] for key in table.rows]


def test_shows_peak_and_moves():
    async def use(app, pilot):
        assert text_of(app, "#title").startswith("memory.pickle: cpu with 256.00 MiB")
        assert [row[1:4] for row in sites_of(app)] == [["32.00 MiB", "66.7%", "4"], ["16.00 MiB", "33.3%", "1"]]
        assert "model.py:10 build" in text_of(app, "#stack")
        await pilot.press("home")
        assert "· before the first of" in text_of(app, "#status")
        assert sites_of(app) == []
        await pilot.press("full_stop", "full_stop")
        assert "· entry 2 of" in text_of(app, "#status")
        assert "model.py:10 build" in text_of(app, "#stack")
        await pilot.press("end")
        assert [row[1] for row in sites_of(app)] == ["24.00 MiB"]
        await pilot.press("o")
        assert "run out of memory for 1.00 GiB" in text_of(app, "#status")
        await pilot.press("p", "right", "left", "plus", "minus", "0", "d", "n")
        assert app.is_running

    show([training_run().snapshot()], use)


def test_texts_are_neither_markup_nor_control_characters():
    async def use(app, pilot):
        assert text_of(app, "#title").startswith(r"\x1b]0;title\x07.pickle: cpu")
        await pilot.press("slash")
        app.query_one("#search").value = "[/x]"
        await pilot.press("enter")
        await pilot.pause()
        assert [str(toast.render()) for toast in app.screen.query("Toast")] == ["No entry matches '[/x]'."]

    show([training_run().snapshot()], use, path="\x1b]0;title\x07.pickle")


def test_narrow_terminal_shows_all_keys_and_the_bytes():
    async def use(app, pilot):
        keys = [*app.query("FooterKey")]
        assert [key.description for key in keys][-2:] == ["Stack", "Device"]
        assert max(key.region.right for key in keys) <= 80
        await pilot.press("p")
        assert text_of(app, "#status").startswith("allocated 48.00 MiB, reserved 64.00 MiB · ")

    show([training_run().snapshot()], use, size=(80, 24))


def test_search_marks_and_finds():
    async def use(app, pilot):
        await pilot.press("home", "slash", *"forward")
        await pilot.press("left", "right")  # in the field
        await pilot.press("enter")
        assert "allocate 16.00 MiB" in text_of(app, "#status")
        assert not app.query_one("#search").display
        first = app.model.cursor
        await pilot.press("n")
        assert app.model.cursor > first
        assert "model.py:20 forward" in text_of(app, "#stack")
        await pilot.press("N")
        assert app.model.cursor == first

    show([training_run().snapshot()], use)


def test_click_moves_cursor():
    async def use(app, pilot):
        await pilot.click("#chart", offset=(12, 3))
        assert app.model.cursor < app.model.last / 4

    show([training_run().snapshot()], use)


def test_devices_in_turn_and_row_selects_stack():
    async def use(app, pilot):
        assert "device 1 of 2" in text_of(app, "#title")
        await pilot.press("down")
        assert "model.py:20 forward" in text_of(app, "#stack")
        await pilot.press("d")
        assert "no history was recorded" in text_of(app, "#title")
        assert text_of(app, "#stack").startswith("Nothing is allocated")
        await pilot.press("left", "right", "plus", "o", "e", "d")
        assert "device 1 of 2" in text_of(app, "#title")

    show([training_run().snapshot(), Scene().snapshot()], use)


@pytest.mark.parametrize("size", [(20, 8), (400, 100), (13, 3)])
def test_any_size(size):
    async def use(app, pilot):
        await pilot.press("right", "left", "plus")
        assert app.is_running

    show([training_run().snapshot()], use, size)


def test_needs_a_terminal(tmp_path, capsys):
    path = tmp_path / "memory.forebay"
    native.write(training_run().snapshot(), path)
    assert cli.main(["view", str(path)]) == 2
    assert "needs a terminal; view --json, explain and report do not" in capsys.readouterr().err


def test_missing_textual(monkeypatch, capsys, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "forebay.commands.view_app", None)
    assert cli.main(["view", str(tmp_path)]) == 2
    assert "pip install 'forebay[top]'" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 80, 130])
def test_labels_fit_their_column_and_differ(columns):
    scene = Scene()
    for folder in ("alpha", "beta"):
        for line in (8, 9):
            scene.allocate(
                512, scene.stack(f"/home/ada/a-long-project-name/{folder}/train/model.py:{line} Net.forward")
            )

    async def use(app, pilot):
        await pilot.pause()
        table = app.query_one("#sites")
        labels = [row[-1] for row in sites_of(app)]
        assert len({*labels}) == 4
        assert all(len(row) == 5 for row in sites_of(app))
        assert table.virtual_size.width <= table.size.width

    show([scene.snapshot()], use, size=(columns, 30))
