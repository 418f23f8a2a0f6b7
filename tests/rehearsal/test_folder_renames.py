"""Renames of folders that exist where the kernel refuses them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forebay.rehearsal import folder_renames


@pytest.fixture
def refused(monkeypatch):
    """Let os.rename refuse folders, as an overlay of an ordinary user does."""
    real = os.rename

    def rename(src, dst, **_):
        if Path(src).is_dir():
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src, None, dst)
        real(src, dst)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", rename)
    folder_renames.install()


def test_folder_is_copied_and_removed(refused, tmp_path):
    (tmp_path / "one" / "inner").mkdir(parents=True)
    (tmp_path / "one" / "inner" / "file").write_text("x")
    (tmp_path / "one" / "link").symlink_to("inner")
    (tmp_path / "two").mkdir()
    (tmp_path / "one").rename(tmp_path / "two")
    assert (tmp_path / "two" / "inner" / "file").read_text() == "x"
    assert (tmp_path / "two" / "link").is_symlink()
    assert not (tmp_path / "one").exists()


def test_folder_that_is_not_empty_is_kept(refused, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError, match="not empty"):
        (tmp_path / "one").rename(tmp_path / "two")
    assert (tmp_path / "two" / "file").read_text() == "two"


def test_other_file_systems_are_refused_as_before(refused, tmp_path):
    (tmp_path / "one").mkdir()
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    with pytest.raises(OSError, match="cross-device"):
        (tmp_path / "one").rename("/dev/shm/forebay-test")
