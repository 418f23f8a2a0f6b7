"""Report pages of typical and hostile snapshots, and the browser that shows them."""

from __future__ import annotations

import io
import shutil

import pytest

from forebay.snapshot.model import Action, Snapshot
from forebay.snapshot.report import html
from support.snapshot_scenes import MIB, Scene, training

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\udc80\u65e5\u672c\U0001f600"


def page(snapshot: Snapshot) -> str:
    out = io.StringIO()
    html.write(snapshot, out)
    return out.getvalue()


def scene_of(story: str) -> Snapshot:
    scene = Scene(capacity=64 * MIB)
    match story:
        case "one event":
            scene.take(512)
            del scene.entries[0]
        case "only an oom":
            scene.take(64 * MIB)
            with pytest.raises(MemoryError):
                scene.take(MIB)
            del scene.entries[:2]
        case "history off":
            scene.take(MIB, scene.stack("app.py:1 f"))
            return scene.snapshot(recorded=False)
        case "lost":
            scene.give(scene.take(MIB))
            return scene.snapshot(lost=2, stats={"requested_bytes.all.peak": 60 * MIB})
        case "evil":
            scene.tick(5)
            scene.take(MIB, scene.stack(f"/{EVIL}/{EVIL}.py:1 {EVIL}"))
            with pytest.raises(MemoryError):
                scene.take(640 * MIB, scene.stack(f"/{EVIL}/{EVIL}.py:1 {EVIL}"))
            return scene.snapshot(device=EVIL, notes={"program": EVIL, EVIL: [EVIL]})
        case "growing":
            scene.growing = True
            scene.give(scene.take(MIB, scene.stack("app.py:1 f")))
            scene.shrink()
            scene.note(Action.LOOK, 0, 0)
            scene.take(2 * MIB, scene.stack("app.py:2 f"))
        case "training":
            return training()
    return scene.snapshot()


STORIES = ["empty", "one event", "only an oom", "history off", "lost", "evil", "growing", "training"]
