"""Memory files: errors close their descriptors and say why a file of another process cannot be opened."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from forebay.backends.common import shared_file
from forebay.backends.common.mmap import map_shared
from forebay.backends.common.shared_file import Handle, SharedFile
from forebay.errors import DeviceError, Unsupported

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared through memfd_create")
NAME = b"0123456789abcdef"


@pytest.fixture
def file():
    made = SharedFile.create(8192)
    yield made
    made.close()
    made.unmap()


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def fail(*arguments: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    return np.frombuffer((np.ctypeslib.ctypes.c_char * nbytes).from_address(address), np.uint8)


def test_second_mapping_has_the_bytes_of_the_first_and_outlives_it():
    first = SharedFile.create(8192)
    second = SharedFile.open(Handle.parse(first.handle(b"test", 5, 6), b"test", "cuda:0"), "cuda:0")
    bytes_at(first.address, 8192)[:] = 7
    first.close()
    first.close()
    first.unmap()
    assert set(bytes_at(second.address, 8192).tolist()) == {7}
    assert second.is_own
    second.unmap()


def test_file_cannot_be_shrunk(file):
    with pytest.raises(PermissionError):
        os.ftruncate(file._number, 4096)


@pytest.mark.parametrize("step", ["os.ftruncate", "fcntl.fcntl", "forebay.backends.common.shared_file.map_shared"])
def test_failed_creation_keeps_no_descriptor(monkeypatch, step):
    before = descriptors()
    monkeypatch.setattr(step, fail)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        SharedFile.create(8192)
    assert descriptors() == before


def test_failed_mapping_of_another_file_keeps_no_descriptor(file, monkeypatch):
    handle, before = Handle.parse(file.handle(b"test"), b"test", "cuda:0"), descriptors()
    monkeypatch.setattr(shared_file, "map_shared", fail)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        SharedFile.open(handle, "cuda:0")
    assert descriptors() == before
    monkeypatch.setattr(shared_file, "map_shared", map_shared)
    SharedFile.open(handle, "cuda:0").unmap()


def test_system_without_memory_files_is_unsupported(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(Unsupported, match="only Linux has") as caught:
        SharedFile.create(8192)
    assert caught.value.ability == "Shares"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.EACCES, "process 77, which shares the memory, belongs to another user: Permission denied"),
        (errno.EPERM, "process 77, which shares the memory, belongs to another user: Operation not permitted"),
        (errno.EMFILE, "memory shared by process 77 cannot be opened: Too many open files"),
    ],
)
def test_error_of_the_system_is_explained(monkeypatch, code, text):
    def readlink(path: str) -> str:
        assert path == "/proc/77/fd/5"
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "readlink", readlink)
    with pytest.raises(DeviceError) as caught:
        SharedFile.open(Handle(b"test", 77, 5, 8192, 0, 0, NAME), "cuda:0")
    assert (caught.value.code, caught.value.call, caught.value.device) == (code, "open", "cuda:0")
    assert text in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"x" * 63, "x" * 64, 64, None], ids=repr)
def test_handle_of_another_type_or_size_is_refused(data):
    with pytest.raises(DeviceError, match="a handle has 64 bytes, not"):
        Handle.parse(data, b"test", "cuda:0")
