"""Search for processes without the emulation, with processes that the test makes up."""

from __future__ import annotations

import sys

import pytest

from forebay.interop.torch.processes import unseen_processes
from forebay.interop.torch.processes.unseen_processes import UnseenProcesses, _Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")

MAIN, OTHER = 4_000_001, 4_000_002
PROGRAM, ANOTHER, ENDED = ("10", "20"), ("30", "40"), ("0", "0")


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Return a function that looks at images of the program's first process, which has a record, and of another one."""
    (tmp_path / f"{1:020}-{MAIN}.use").touch()
    monkeypatch.setattr(unseen_processes, "_has_library", lambda pid: True)
    monkeypatch.setattr(unseen_processes, "_command", str)

    def search(*looks):
        found = UnseenProcesses(MAIN, tmp_path)
        for main, other in looks:
            running = [_Process(MAIN, 1, MAIN, 7, main), _Process(OTHER, MAIN, MAIN, 8, other)]
            monkeypatch.setattr(unseen_processes, "_processes", lambda running=running: iter(running))
            found.look()
        return [each.pid for each in found.found()]

    return search


def test_process_with_another_image_is_unseen(search):
    assert search((PROGRAM, ANOTHER)) == [OTHER]


def test_forked_child_is_none_also_when_its_parent_has_ended_and_was_not_waited_for(search):
    assert search((PROGRAM, PROGRAM), (ENDED, PROGRAM)) == []
