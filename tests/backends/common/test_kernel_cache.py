"""Files of compiled kernels: damage, other users, folders that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.backends.common.kernel_cache import KernelCache, cache_folder

KEY, CONTENT = "ab" * 32, b"code\0of\nkernels" * 100


@pytest.fixture
def stored(tmp_path):
    KernelCache(tmp_path).put(KEY, CONTENT)
    [path] = tmp_path.iterdir()
    return path


def test_content_is_stored(stored):
    assert KernelCache(stored.parent).get(KEY) == CONTENT
    assert KernelCache(stored.parent).get("cd" * 32) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(path.read_bytes().replace(b"code", b"evil", 1)),
        lambda path: path.write_bytes(CONTENT),
        lambda path: path.chmod(0o666),
        lambda path: path.rename(path.with_name("elsewhere")) and path.symlink_to(path.with_name("elsewhere")),
        lambda path: path.unlink() or os.mkfifo(path),
        lambda path: path.unlink() or path.mkdir(),
    ],
    ids=["empty", "short", "long", "changed", "without head", "writable", "link", "pipe", "folder"],
)
@pytest.mark.timeout(10)
def test_damaged_file_counts_as_missing(stored, damage):
    damage(stored)
    assert KernelCache(stored.parent).get(KEY) is None


def test_file_of_another_key_counts_as_missing(stored):
    other = "cd" * 32
    stored.rename(stored.with_name(stored.name.replace(KEY, other)))
    assert KernelCache(stored.parent).get(other) is None


def test_damaged_file_is_replaced(stored):
    stored.write_bytes(b"damage")
    KernelCache(stored.parent).put(KEY, CONTENT)
    assert KernelCache(stored.parent).get(KEY) == CONTENT


def test_folder_that_cannot_be_used_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file/kernels")
    cache.put(KEY, CONTENT)
    assert cache.get(KEY) is None


@pytest.mark.parametrize(("value", "expected"), [("/somewhere", "/somewhere"), ("", "~/.cache"), ("here", "~/.cache")])
def test_folder_follows_the_xdg_specification(monkeypatch, value, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_folder() == Path(expected).expanduser() / "forebay/kernels"
    assert KernelCache().folder == cache_folder()


@pytest.mark.parametrize("key", ["", "../outside", "a/b", "a.b"])
def test_key_that_leads_elsewhere_is_rejected(tmp_path, key):
    cache = KernelCache(tmp_path / "kernels")
    for access in (cache.get, lambda key: cache.put(key, CONTENT)):
        with pytest.raises(ValueError, match="a key consists of letters and digits"):
            access(key)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
