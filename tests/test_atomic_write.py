"""A file is whole, or what it was; and what is no file is left what it is."""

from __future__ import annotations

import os
import stat
import sys
import threading

import pytest

import forebay
from forebay.atomic_write import check_writable, in_place_of
from forebay.observe import trace


def test_a_file_is_whole_or_what_it_was(tmp_path):
    path = tmp_path / "page"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), in_place_of(path) as part:
        part.write(b"half %d" % (1 / 0))
    assert path.read_text() == "old"
    with in_place_of(path) as part:
        part.write(b"new")
        assert path.read_text() == "old"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("page", "new")]


@pytest.mark.parametrize("there", [True, False], ids=["there", "to come"])
def test_a_link_leads_to_the_file(tmp_path, there):
    (tmp_path / "folder").mkdir()
    link, real = tmp_path / "link", tmp_path / "folder" / "real"
    link.symlink_to(real)
    if there:
        real.write_text("old")
    with in_place_of(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert [(each.name, each.read_text()) for each in real.parent.iterdir()] == [("real", "new")]


@pytest.mark.skipif(sys.platform == "win32", reason="it has no pipes with names")
def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_writable(pipe, "a trace")
    with in_place_of(pipe) as file:
        file.write(b"new")
    reader.join(10)
    assert read == [b"new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def device(tmp_path, number):
    """As /dev has one, for who may make it; nothing here touches those."""
    path = tmp_path / "device"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, number))
        path.open("wb").close()
    except (AttributeError, OSError):
        pytest.skip("only root makes devices, where they can be opened")
    return path


def test_what_takes_all_takes_it(tmp_path):
    null = device(tmp_path, 3)
    with trace(null) as made:
        forebay.zeros(3, device="host:0")
    assert made.written
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_device_that_is_full(tmp_path):
    full = device(tmp_path, 7)
    with pytest.raises(OSError, match="No space left"), trace(full):
        forebay.zeros(3, device="host:0")
    assert stat.S_ISCHR(full.stat().st_mode)
    assert list(tmp_path.iterdir()) == [full]


@pytest.mark.parametrize("there", ["nowhere/file", "."])
def test_who_cannot_be_written_says_so_before(tmp_path, there):
    with pytest.raises(OSError, match=r"trace|No such file"):
        check_writable(tmp_path / there, "a trace")
    assert list(tmp_path.iterdir()) == []
