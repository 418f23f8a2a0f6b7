"""The flight recorder at the exit of whole programs."""

from __future__ import annotations

from forebay import snapshot

PROGRAM = """
import os, forebay
from forebay.flight_recorder import FlightRecorder

FlightRecorder("files", on=["exit"], replay=False).start()
os.chdir("/")
kept = forebay.ones(1000, device="cpu")
child = os.fork()
if not child:
    raise SystemExit  # with the exit handlers of its parent
assert os.waitpid(child, 0)[1] == 0
"""


def test_exit_writes_once(runner):
    runner.write(PROGRAM)
    done = runner.command("script.py")
    assert (done.status, done.out) == (0, "")
    folder = runner.folder / "files"
    names = sorted(path.name for path in folder.iterdir())
    assert [name.rpartition(".")[2] for name in names] == ["forebay", "txt"]
    assert "wrote" in done.err
    (found,) = snapshot.load(folder / names[0])
    assert found.blocks["requested"].sum() >= 4000
    assert "Peak of cpu" in (folder / names[1]).read_text()
