"""Atomic writes: a file is replaced completely or not at all; devices and pipes are written directly."""

from __future__ import annotations

import os
import stat
import sys
import threading

import pytest

import forebay
from forebay._base.atomic_write import atomic_write, check_writable
from forebay.observe import trace


def test_file_is_replaced_completely_or_not_at_all(tmp_path):
    path = tmp_path / "page"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as part:
        part.write(b"half %d" % (1 / 0))
    assert path.read_text() == "old"
    with atomic_write(path) as part:
        part.write(b"new")
        assert path.read_text() == "old"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("page", "new")]


@pytest.mark.parametrize("target_exists", [True, False])
def test_symbolic_link_is_followed(tmp_path, target_exists):
    (tmp_path / "folder").mkdir()
    link, real = tmp_path / "link", tmp_path / "folder" / "real"
    link.symlink_to(real)
    if target_exists:
        real.write_text("old")
    with atomic_write(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert [(each.name, each.read_text()) for each in real.parent.iterdir()] == [("real", "new")]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes")
def test_pipe_is_written_directly(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_writable(pipe, "a trace")
    with atomic_write(pipe) as file:
        file.write(b"new")
    reader.join(10)
    assert read == [b"new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def device(tmp_path, number):
    """Create a character device like one in /dev; skips without the privilege."""
    path = tmp_path / "device"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, number))
        path.open("wb").close()
    except (AttributeError, OSError):
        pytest.skip("needs the privilege to create and open devices")
    return path


def test_null_device_is_written_directly(tmp_path):
    null = device(tmp_path, 3)
    with trace(null) as written_trace:
        forebay.zeros(3, device="cpu")
    assert written_trace.written
    assert stat.S_ISCHR(null.stat().st_mode)


def test_full_device_raises(tmp_path):
    full = device(tmp_path, 7)
    with pytest.raises(OSError, match="No space left"), trace(full):
        forebay.zeros(3, device="cpu")
    assert stat.S_ISCHR(full.stat().st_mode)
    assert list(tmp_path.iterdir()) == [full]


@pytest.mark.parametrize("name", ["nowhere/file", "."])
def test_check_writable_rejects_unwritable_paths(tmp_path, name):
    with pytest.raises(OSError, match=r"trace|No such file"):
        check_writable(tmp_path / name, "a trace")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can make a link of another user")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_link_of_another_user_in_shared_directory_is_not_followed(tmp_path, kind):
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    private.mkdir()
    shared.chmod(0o1777)
    link = shared / "report"
    link.symlink_to(private if kind == "folder" else private / "page")
    path = link / "page" if kind == "folder" else link
    os.chown(link, 12345, 12345, follow_symlinks=False)
    for write in (lambda: check_writable(path, "the report"), lambda: atomic_write(path).__enter__()):
        with pytest.raises(PermissionError, match="symbolic link of another user"):
            write()
    assert list(private.iterdir()) == []
