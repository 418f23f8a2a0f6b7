"""Report pages of typical and hostile snapshots, and the browser for tests."""

from __future__ import annotations

import io
import shutil

import pytest

from forebay.records.model import Action, Snapshot
from forebay.snapshot.report import html
from support.snapshot_scenes import MIB, Scene, training

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\udc80\u65e5\u672c\U0001f600"


def render(snapshot: Snapshot) -> str:
    out = io.StringIO()
    html.write(snapshot, out)
    return out.getvalue()


def snapshot_of(scenario: str) -> Snapshot:
    scene = Scene(capacity=64 * MIB)
    match scenario:
        case "one event":
            scene.allocate(512)
            del scene.entries[0]
        case "only an oom":
            scene.allocate(64 * MIB)
            with pytest.raises(MemoryError):
                scene.allocate(MIB)
            del scene.entries[:2]
        case "history off":
            scene.allocate(MIB, scene.stack("app.py:1 f"))
            return scene.snapshot(recorded=False)
        case "lost":
            scene.free(scene.allocate(MIB))
            return scene.snapshot(lost=2, stats={"requested_bytes.all.peak": 60 * MIB})
        case "older peak":
            older = [scene.allocate(MIB, scene.stack("app.py:1 f")) for _ in range(3)]
            for address in older:
                scene.free(address)
            scene.allocate(8 * MIB, scene.stack("app.py:2 g"))
            return scene.snapshot(lost=4)
        case "evil":
            scene.advance(5)
            scene.allocate(MIB, scene.stack(f"/{EVIL}/{EVIL}.py:1 {EVIL}"))
            with pytest.raises(MemoryError):
                scene.allocate(640 * MIB, scene.stack(f"/{EVIL}/{EVIL}.py:1 {EVIL}"))
            return scene.snapshot(device=EVIL, notes={"program": EVIL, EVIL: [EVIL]})
        case "growing":
            scene.growing = True
            scene.free(scene.allocate(MIB, scene.stack("app.py:1 f")))
            scene.release_free_segments()
            scene.record(Action.SNAPSHOT, 0, 0)
            scene.allocate(2 * MIB, scene.stack("app.py:2 f"))
        case "training":
            return training()
    return scene.snapshot()


SCENARIOS = ["empty", "one event", "only an oom", "history off", "lost", "older peak", "evil", "growing", "training"]
