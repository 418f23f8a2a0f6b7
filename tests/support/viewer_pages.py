"""Viewer pages in a headless browser, and what the reader in the page makes of a file."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.commands.snapshot_files import used_devices
from forebay.records.model import Snapshot
from forebay.snapshot.report.page import explorer, viewer
from forebay.snapshot.report.page.view import make_view
from support import page_columns

# Reads files in workers as the page does, and returns their answers as text.
_READ = """async (contents) => {
  const text = (id) => document.getElementById(id).textContent;
  const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const [script, rules, binary] = [new Blob([text("worker")]), JSON.parse(text("rules")), bytes(text("reader"))];
  const read = async (content) => {
  const worker = new Worker(URL.createObjectURL(script));
  const answer = await new Promise((done) => {
    worker.onmessage = ({data}) => data.step || done(data);
    worker.onerror = (event) => done({error: `exception: ${event.message}`});
    setTimeout(() => done({error: "no answer"}), LIMIT);
    worker.postMessage({file: new Blob([bytes(content)]), rules, binary});
  });
  worker.terminate();
  for (const device of answer.devices ?? [])
    for (const [name, column] of Object.entries(device.columns)) device.columns[name] = [...column];
  return answer;
  };
  const answers = [];
  for (const content of contents) answers.push(await read(content));
  return JSON.stringify(answers);
}"""


@dataclass
class ViewerPage:
    """One opened page. `problems` are console errors, exceptions, and requests that leave the file."""

    page: Any
    problems: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, browser: Any, folder: Path, **options: Any) -> ViewerPage:
        """Write the page and open it."""
        path = folder / "viewer.html"
        with path.open("w", encoding="utf-8") as file:
            viewer.write(file)
        opened = cls(browser.new_page(**{"viewport": {"width": 1400, "height": 1000}} | options))
        found = opened.problems
        opened.page.set_default_timeout(20_000)
        opened.page.on("console", lambda message: message.type == "log" or found.append(message.text))
        opened.page.on("pageerror", lambda error: found.append(f"exception: {error}"))
        inside = ("file:", "blob:")
        opened.page.on("request", lambda request: request.url.startswith(inside) or found.append(request.url))
        opened.page.goto(path.as_uri())
        opened.page.wait_for_selector("body[data-loaded]", state="attached")
        return opened

    def choose(self, path: Path | dict[str, Any]) -> None:
        """Choose a file and wait until it is shown or refused."""
        self.page.set_input_files("#file", path)
        self.page.wait_for_selector("body[data-ready], .problem:not([hidden])", state="attached")

    def read(self, *contents: bytes, limit: int = 20_000) -> list[dict[str, Any]]:
        """Return what the reader in the page answers about each file: `devices`, or `error`."""
        given = [base64.b64encode(content).decode() for content in contents]
        return json.loads(self.page.evaluate(_READ.replace("LIMIT", str(limit)), given))


def expected(snapshots: tuple[Snapshot, ...]) -> list[dict[str, Any]]:
    """Return names and columns of each device as a report has them."""
    found = []
    for snapshot in used_devices(snapshots):
        data = explorer.data(make_view(snapshot))
        columns = page_columns.decode(data.pop("layout"), data.pop("packed"))
        for name in ("nbytes", "stack"):
            columns[name] = columns.pop(f"{name}.table")[columns[name]]
        found.append({**data, "columns": columns})
    return found


def differences(devices: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[str]:
    """Return what differs between the devices that the page has read and those of a report."""
    if len(devices) != len(wanted):
        return [f"{len(devices)} devices instead of {len(wanted)}"]
    found = []
    for device, report in zip(devices, wanted, strict=True):
        names = [name for name in report if name != "columns" and device[name] != report[name]]
        found += [f"{name}: {device[name]!r} != {report[name]!r}" for name in names]
        unequal = sorted({*device["columns"]} ^ {*report["columns"]})
        found += [f"columns {unequal}"] * bool(unequal)
        for name, column in report["columns"].items():
            own: NDArray[Any] = np.array(device["columns"].get(name, []), float)
            if own.shape != column.shape or not (own == column.astype(float)).all():
                found.append(f"{name}: {own[:8]} != {column[:8]}")
    return found


def written() -> str:
    out = io.StringIO()
    viewer.write(out)
    return out.getvalue()
