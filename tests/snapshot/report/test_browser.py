"""The report page in a real browser: its numbers and stacks are Python's, and nothing is requested or blocked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.browser_pages import CANVAS
from support.report_pages import BROWSER, EVIL, SCENARIOS, render, snapshot_of
from support.snapshot_scenes import MIB, Scene, training
from support.synthetic_history import synthetic

from forebay._base.byte_sizes import format_bytes
from forebay.records.model import State
from forebay.snapshot.analysis import summary
from forebay.snapshot.analysis.timeline import reconstruct

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


def pools_and_streams():
    """Return a snapshot with a private pool and a second stream."""
    snapshot = random_scene()
    last = snapshot.segments["address"][-1]
    for rows in (snapshot.segments, snapshot.trace):
        inside = (rows["address"] >= last) & (rows["nbytes"] > 0)
        rows["pool"][inside], rows["queue"][inside] = 3, 7
    return snapshot


def random_scene():
    scene = Scene(capacity=64 * MIB, segment=4 * MIB)
    stacks = [scene.stack(f"app.py:{line} outer", f"app.py:{10 * line} inner") for line in range(1, 5)]
    live = []
    for step in range(40):
        scene.advance(1000)
        live.append(scene.allocate((1 + step % 7) * MIB // 4, stacks[step % 4]))
        if step % 3 == 2:
            scene.free(live.pop(step % len(live)))
        if step % 10 == 9:
            scene.release_free_segments()
    return scene.snapshot()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_page_opens_without_problems(show, scenario):
    report = show(snapshot_of(scenario))
    assert report.page.title().startswith("Memory of ")


@pytest.mark.parametrize("make", [random_scene, training, lambda: snapshot_of("lost"), lambda: snapshot_of("growing")])
def test_figures_of_each_moment_are_those_of_the_timeline(show, make):
    snapshot = make()
    timeline = reconstruct(snapshot)
    report = show(snapshot)
    for moment in (0, timeline.moments // 3, timeline.peak, timeline.moments - 1):
        report.page.goto(f"{report.path.as_uri()}#moment={moment}")
        report.settle()
        figures = report.figures()
        assert figures["allocated"] == timeline.allocated[moment]
        assert figures["reserved"] == timeline.reserved[moment]
        segments = report.text(".segments .note[aria-live]")
        assert f"{format_bytes(int(timeline.reserved[moment]))} reserved" in segments
        assert f"{format_bytes(int(timeline.allocated[moment]))} in " in segments
    assert figures["largest free block"] == summary.summary(snapshot).largest_free


def test_largest_free_block_is_found_at_every_moment(show):
    """A history that ends at a moment has the figure of the blocks; a longer one must show the same there."""
    scene, expected = Scene(capacity=64 * MIB, segment=4 * MIB), {}
    live = []
    for step in range(12):
        live.append(scene.allocate((1 + step % 5) * MIB // 2 + step, scene.stack("app.py:1 f")))
        if step % 2:
            scene.free(live.pop(step % len(live)))
        if step % 3 == 2:
            expected[len(scene.entries)] = summary.summary(scene.snapshot()).largest_free
    report = show(scene.snapshot())
    for moment, largest in expected.items():
        report.page.goto(f"{report.path.as_uri()}#moment={moment}")
        report.settle()
        assert report.figures()["largest free block"] == largest


def test_tooltip_names_the_allocation_and_its_stack(show):
    snapshot = random_scene()
    timeline = reconstruct(snapshot)
    held = timeline.allocations
    order = np.argsort(held.start, kind="stable")
    report, seen = show(snapshot), set()
    for across in (0.25, 0.6, 0.95):
        for up in (0.05, 0.3, 0.5):
            tip = report.hover(across, up)
            if tip["row"] < 0:  # above the allocations
                continue
            row, moment = order[tip["row"]], tip["moment"]
            assert held.start[row] <= moment < held.end[row]
            frames = [f"{file}:{line} {name}" for file, name, line in snapshot.stack(int(held.stack[row]))]
            assert tip["frames"] == frames
            assert format_bytes(int(held.nbytes[row])) in tip["text"]
            assert format_bytes(int(timeline.allocated[moment])) in tip["text"]
            seen.add(row)
    assert len(seen) >= 4


def test_frame_without_a_line_is_named_by_its_file(show):
    scene = Scene()
    for _ in range(3):  # the last entry has no width
        scene.allocate(MIB, scene.stack("app.py:1 f"))
    snapshot = scene.snapshot()
    snapshot.frames["line"] = 0
    report = show(snapshot, address="#axis=entry")
    assert report.hover(0.99, 0.01)["frames"] == ["app.py f"]
    report.press("p", "ArrowUp")
    assert report.text(".pinned .stack").strip() == "app.py f"


def test_allocations_are_stacked_to_the_allocated_bytes(show):
    """Just below the top of the stack is an allocation, and just above is none."""
    timeline = reconstruct(snapshot := random_scene())
    report = show(snapshot)
    top = 1.03 * max(timeline.reserved.max(), timeline.allocated.max())
    tip = report.hover(0.7, 0.2)
    level = timeline.allocated[tip["moment"]] / top
    assert report.hover(0.7, level - 0.01)["row"] >= 0
    assert report.hover(0.7, level + 0.01)["row"] < 0


def test_click_pins_the_stack_and_the_address_keeps_it(show):
    snapshot = random_scene()
    report = show(snapshot)
    tip = report.hover(0.6, 0.2)
    report.page.mouse.down()
    report.page.mouse.up()
    report.settle()
    stack = [line.strip() for line in report.text(".pinned .stack").splitlines() if line.strip()]
    assert stack == tip["frames"]
    assert {name: int(report.hash()[name]) for name in ("row", "moment")} == {
        name: tip[name] for name in ("row", "moment")
    }
    again = show(snapshot, address=f"#row={tip['row']}&moment={tip['moment']}&color=size&search=inner")
    assert again.text(".pinned .stack") == report.text(".pinned .stack")
    assert again.page.input_value(".tools input") == "inner"
    assert "up to" in again.text(".legend")


def test_keys_move_zoom_pin_and_mark(show):
    snapshot = random_scene()
    timeline = reconstruct(snapshot)
    report = show(snapshot)
    report.press("Home")
    assert report.hash()["moment"] == "0"
    report.press("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowLeft", "a", "p", "b", "ArrowUp")
    state = report.hash()
    assert (state["a"], state["b"]) == ("1", str(timeline.peak))
    assert int(state["row"]) >= 0
    grown = timeline.allocated[timeline.peak] - timeline.allocated[1]
    assert float(report.page.get_attribute(".growth data", "value")) == grown
    report.press("+", "+")
    zoomed = {
        name: float(report.hash().get(name, default)) for name, default in (("from", 0), ("to", timeline.moments - 1))
    }
    assert zoomed["to"] - zoomed["from"] < timeline.moments / 2
    report.press("PageUp", "PageDown", "-", "0", "Escape")
    assert not report.hash().keys() & {"from", "to", "a", "b", "row"}
    report.page.keyboard.press("?")
    assert "whole history" in report.page.inner_text("dialog[open]")
    report.page.keyboard.press("Escape")
    report.page.keyboard.press("/")
    assert report.page.evaluate("document.activeElement.type") == "search"


def test_search_finds_sites_files_and_addresses(show):
    snapshot = training()
    report = show(snapshot)
    search = ".tools input"
    report.page.fill(search, "METRICS.py")
    report.rows("sites", 1)
    assert report.table("sites")[0][0] == "engine/metrics.py:27 History.append"
    assert "not matching “METRICS.py”" in report.text(".legend")
    block = snapshot.blocks[snapshot.blocks["state"] == State.LIVE][-1]
    report.page.fill(search, f"{int(block['address']) + 5:#x}")
    report.page.wait_for_url("**/*0x*")
    report.settle()
    assert len(report.table("sites")) >= 1
    report.page.fill(search, "no such function")
    report.rows("sites", 0)


def test_table_of_sites_has_the_numbers_of_the_analysis(show):
    snapshot = training()
    report = show(snapshot)
    found = {row[0]: [float(cell) for cell in row[1:]] for row in report.table("sites")}
    folder = "/home/ada/projects/tiny-lm/"
    uses = {use.label.removeprefix(folder): use for use in summary.sites(snapshot)}
    totals = {total.label.removeprefix(folder): total for total in summary.totals(snapshot)}
    assert found.keys() == uses.keys() | totals.keys()
    for label, (now, blocks, peak, allocations, churn, lifetime) in found.items():
        assert now == peak == (uses[label].live_bytes if label in uses else 0)
        assert blocks == (uses[label].count if label in uses else 0)
        assert (allocations, churn) == (totals[label].allocations, totals[label].total_bytes)
        assert lifetime == pytest.approx(-1 if (mean := totals[label].mean_lifetime_ns) is None else mean)
    report.page.click(".sites th:nth-child(6) button")
    churn = [float(row[5]) for row in report.table("sites")]
    assert churn == sorted(churn, reverse=True)


def test_flame_graph_shows_what_is_live_grown_and_held(show):
    snapshot = training()
    timeline = reconstruct(snapshot)
    report = show(snapshot, address=f"#a=100&b={timeline.peak}")
    note = ".flame-graph .note"
    assert report.text(note).startswith(format_bytes(int(timeline.allocated[timeline.peak])))
    report.page.select_option(".flame-graph select", "mean")
    held, (a, b) = timeline.allocations, (100, timeline.peak)
    clock = timeline.time_ns
    overlap = np.maximum(0, clock[np.clip(held.end, a, b)] - clock[np.clip(held.start, a, b)])
    mean = float((overlap * held.nbytes).sum() / (clock[b] - clock[a]))
    assert report.text(note).startswith(format_bytes(round(mean)))
    report.page.select_option(".flame-graph select", "allocated")
    assert "from entry 100 to" in report.text(note)
    report.page.click(".flame .bar >> text=backward")
    assert report.text(".flame .bar:first-child") == "backward"
    report.page.click(".flame-graph .tool")
    report.page.focus(".flame .bar")
    focused = "document.activeElement.textContent"
    keys = ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowUp")
    moves = [report.page.keyboard.press(key) or report.page.evaluate(focused) for key in keys]
    assert (moves[0], moves[1], moves[3:]) == ("main", "step", ["step", "main", "all"])


def test_out_of_memory_event_is_listed_and_shown(show):
    snapshot = training()
    (oom,) = summary.ooms(snapshot)
    report = show(snapshot)
    assert report.table("ooms")[0][:3] == [str(oom.at), str(oom.wanted), str(oom.device_free)]
    report.page.click(".ooms td button")
    report.settle()
    assert report.hash()["moment"] == str(oom.at)
    report.press("p", "o")
    assert report.hash()["moment"] == str(oom.at)


def test_pools_and_streams_are_listed(show):
    snapshot = pools_and_streams()
    report = show(snapshot, address=f"#moment={len(snapshot.trace)}&color=pool")
    rows = report.table("pools")
    assert sorted(row[:2] for row in rows) == [["0", "0"], ["3", "1"]]  # stream 7 is the second
    assert sum(float(row[2]) for row in rows) == snapshot.segments["nbytes"].sum()
    assert "private pool 3" in report.text(".legend")


def test_blocks_older_than_the_history_are_named(show):
    report = show(snapshot_of("older peak"), address="#moment=0&row=0")
    assert "(before recording)" in report.text(".legend")
    assert "before the history began" in report.text(".pinned")
    assert "The ring buffer dropped the first 4 entries" in report.page.inner_text("article")


def test_each_device_is_shown_with_its_own_state(show):
    report = show(random_scene(), replace(training(), device="cuda:1"), names=["a · cuda:0", EVIL])
    peaks = [f"#moment={3}", f"#device=1&moment={5}"]
    buttons = report.page.query_selector_all("nav.devices button")
    assert [button.get_attribute("aria-pressed") for button in buttons] == ["true", "false"]
    buttons[1].click()
    report.page.wait_for_selector("article:nth-of-type(2) .explorer[data-filled]", state="attached")
    assert "metrics.py" in report.text(".sites")
    for peak in (*peaks, peaks[0]):
        report.page.goto(report.path.as_uri() + peak)
        report.settle()
        assert report.text(".details dd").startswith(peak[-1])


def test_hostile_names_are_text(show):
    report = show(snapshot_of("evil"))
    report.hover(0.5, 0.01)
    report.press("ArrowUp")
    assert report.page.query_selector_all("img") == []
    assert "<script>alert(1)</script>" in report.text(".pinned .stack")
    address = "#search=<img src=x onerror=alert(1)>&moment=9e9&row=7&a=x&color=__proto__&axis=constructor&from=5&to=1"
    assert show(snapshot_of("evil"), address=address).page.query_selector_all("img") == []


@pytest.mark.parametrize("nbytes", [1 << 52, (1 << 63) - 1, (1 << 64) - 1])
def test_absurd_sizes_do_not_stop_the_page(show, nbytes):
    snapshot = snapshot_of("growing")
    snapshot.trace["nbytes"][:] = nbytes
    assert show(snapshot).page.query_selector(CANVAS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 2560])
def test_page_fits_its_window(show, width, scheme):
    report = show(training(), viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
    background = "getComputedStyle(document.body).backgroundColor"
    chosen = report.page.evaluate(background)
    report.page.select_option(".page-tools select", {"light": "dark", "dark": "light"}[scheme])
    assert report.page.evaluate(background) != chosen


def test_narrow_table_shows_whole_names(show):
    """Names in buttons are not shortened: a browser replaces a whole button by an ellipsis."""
    long = "/home/ada/projects/transformers/models/llama/modeling_llama_with_a_long_name.py:1234 LlamaAttention.forward"
    scene = Scene()
    scene.allocate(MIB, scene.stack(long))
    report = show(scene.snapshot(), viewport={"width": 400, "height": 900})
    name, cell = (report.page.query_selector(f".sites {part}").bounding_box() for part in ("td button", "tbody td"))
    assert name["x"] + name["width"] <= cell["x"] + cell["width"]
    assert 140 <= cell["width"] <= 260


def test_damaged_page_says_so(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(training()).replace('"packed":"', '"packed":"!'), "utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert "InvalidCharacterError" in page.wait_for_selector("main > .remark").inner_text()
    page.close()


def test_controls_have_names(show):
    report = show(training())
    unnamed = """() => [...document.querySelectorAll("button, input, select, canvas, section, [role]")].filter((each) =>
        !(each.ariaLabel || each.ariaHidden || each.textContent.trim() || each.closest("label")) &&
        each.getAttribute("role") !== "status").map((each) => each.outerHTML)"""
    assert report.page.evaluate(unnamed) == []


def test_long_history_stays_usable(show):
    """The window of 200,000 entries is zoomed and moved; `dev.py bench report` measures how fast."""
    snapshot = synthetic(200_000)
    timeline = reconstruct(snapshot)
    report = show(snapshot)
    report.press("p", "+", "+", "+", "PageUp", "PageDown")
    assert report.figures()["allocated"] == timeline.allocated[timeline.peak]
    tip = report.hover(0.5, 0.1)
    held = timeline.allocations
    row = np.argsort(held.start, kind="stable")[tip["row"]]
    assert held.start[row] <= tip["moment"] < held.end[row]
