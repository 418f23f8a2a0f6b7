"""Temporary folders, which the next process removes if theirs was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forebay._base.temporary_folders import LockedFolder, temporary_folder


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def begin(base, then):
    """Run a process that makes a folder with a file."""
    source = (
        f"import os, sys, tempfile; tempfile.tempdir = {str(base)!r}\n"
        "from forebay._base.temporary_folders import LockedFolder; folder = LockedFolder('forebay-a-')\n"
        f"(folder.path / 'file').touch(); {then}"
    )
    return subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_folder_is_private_and_removed(base):
    with temporary_folder("forebay-a-") as folder:
        assert folder.parent == base
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(base.iterdir()) == []


def test_folder_of_a_killed_process_is_removed_by_the_next_with_the_same_prefix(base):
    process = begin(base, "os.kill(os.getpid(), 9)")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with temporary_folder("forebay-b-"):
        assert len(list(base.glob("forebay-a-*/file"))) == 1
    with temporary_folder("forebay-a-") as folder:
        assert list(base.iterdir()) == [folder]


@pytest.mark.parametrize("then", ["pass", "os.closerange(3, 1024)", "os.close(folder.lock)"])
def test_folder_of_a_running_process_is_kept_also_if_it_closes_all_descriptors(base, then):
    process = begin(base, f"{then}\nprint(flush=True)\nsys.stdin.read()")
    process.stdout.readline()
    LockedFolder("forebay-a-").remove()
    assert len(list(base.glob("forebay-a-*/file"))) == 1
    process.communicate()
    LockedFolder("forebay-a-").remove()
    assert list(base.iterdir()) == []


def test_number_of_the_process_that_another_has_now_does_not_keep_a_folder(base):
    folder = LockedFolder("forebay-a-")
    os.close(folder.lock)
    (folder.path / ".lock").write_text(f"{os.getpid()} 1")
    with temporary_folder("forebay-a-") as found:
        assert list(base.iterdir()) == [found]


def test_folder_that_is_being_made_and_those_of_others_are_kept(base):
    made = base / f"forebay-a-{os.geteuid()}-new"
    shared = base / f"forebay-a-{os.geteuid()}-shared"
    other = base / "other"
    for each in (made, shared, other):
        each.mkdir(mode=0o700)
    for each in (shared, other):
        (each / ".lock").touch()
    shared.chmod(0o777)  # others can put files in it
    (base / f"forebay-a-{os.geteuid()}-link").symlink_to(other)
    LockedFolder("forebay-a-").remove()
    assert made.is_dir()
    assert (shared / ".lock").exists()
    assert (other / ".lock").exists()


def test_folder_of_an_untrusted_place_is_refused(base):
    Path(base).chmod(0o777)
    with pytest.raises(PermissionError):
        LockedFolder("forebay-a-")


def test_removal_changes_nothing_beside_the_folder(base):
    """Also if the folder is gone, or some of it cannot be removed."""
    base.chmod(0o1777)
    gone, locked = LockedFolder("forebay-a-"), LockedFolder("forebay-b-")
    (base / "target").mkdir(mode=0o755)
    (locked.path / "closed" / "inner").mkdir(parents=True)
    (locked.path / "link").symlink_to(base / "target")
    (locked.path / "closed").chmod(0)
    gone.remove()
    gone.remove()
    locked.remove()
    assert [each.name for each in base.iterdir()] == ["target"]
    assert (base.stat().st_mode & 0o7777, (base / "target").stat().st_mode & 0o7777) == (0o1777, 0o755)
