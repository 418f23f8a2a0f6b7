"""The folder of changes where Python's functions redirect them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from forebay.rehearsal.private_folder import PrivateFolder


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_is_private_and_removed_with_folders_without_permissions(base):
    folder = PrivateFolder()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "upper" / "locked" / "inner").mkdir(parents=True)
    (folder.path / "upper" / "locked").chmod(0)
    folder.remove()
    folder.remove()
    assert list(base.iterdir()) == []


def test_folder_of_a_killed_process_is_removed_by_the_next(base):
    source = (
        f"import tempfile, os, signal; tempfile.tempdir = {str(base)!r}\n"
        "from forebay.rehearsal.private_folder import PrivateFolder; folder = PrivateFolder(); "
        "(folder.path / 'upper' / 'x').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == -signal.SIGKILL
    assert len(list(base.iterdir())) == 1
    folder = PrivateFolder()
    assert list(base.iterdir()) == [folder.path]
    folder.remove()


def test_folder_of_a_running_process_and_links_are_kept(base):
    first, other = PrivateFolder(), base / "other"
    other.mkdir()
    (other / ".lock").touch()
    link = base / f"forebay-rehearsal-{os.geteuid()}-link"
    link.symlink_to(other)
    second = PrivateFolder()
    assert first.path.is_dir()
    assert (other / ".lock").exists()
    first.remove()
    second.remove()
    assert link.is_symlink()
