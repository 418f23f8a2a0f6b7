"""torch.save and torch.load of tensors whose values are not computed.

# Note [Files without values]
A file has the records and the sizes of the real one, but a hole in place of each tensor whose values are unknown: it
takes no space. One record more names these tensors, so that torch.load leaves them unknown and reads no zeros. Such
files exist only where the files of the program are private (`forebay.rehearsal`). Elsewhere saving raises
DataDependent before the file is opened, so that an existing one stays as it is. Rejected: a new format, whose
readers and sizes would be others.
Test: tests/process/test_run_rehearsal.py::test_checkpoint_takes_no_space_is_read_back_and_changes_nothing
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import torch
import torch.serialization

from forebay.interop.torch.assumptions import reads
from forebay.interop.torch.devices import host_placeholders, host_values, values
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.rehearsal.file_functions import has_private_places, place_of
from forebay.rehearsal.inside import is_inside

__all__ = ["replace_saving"]

_RECORD = "forebay_without_values"  # names of the records with holes
_PIECE = 1 << 20
_STARTED = "FOREBAY_STARTED"  # the time at which the first process of the program has imported this
_started = float(os.environ.setdefault(_STARTED, str(time.time())))


def replace_saving(names: NameReplacements) -> None:
    """Let torch.save and torch.load work without values."""
    module = torch.serialization
    for name, replacement in (("_open_zipfile_writer", _Writing), ("_open_zipfile_reader", _Reading)):
        if hasattr(module, name):
            names.replace(module, name, _with_original(replacement, getattr(module, name)))
    if has_private_places() or not values.is_computed():  # PyTorch maps a file by itself
        map_file = torch.UntypedStorage.from_file

        def from_file(filename: str, shared: bool = False, nbytes: int = 0) -> torch.UntypedStorage:
            mapped = map_file(place_of(filename, write=shared), shared, nbytes)
            if not values.is_computed() and not shared:
                host_values.note_file(mapped)
            return mapped

        names.replace(torch.UntypedStorage, "from_file", staticmethod(from_file))


def _with_original(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def open_file(file: Any) -> Any:
        return original(file) if values.is_computed() else replacement(original, file)

    return open_file


class _Writing:
    """A context manager as `_open_zipfile_writer`, which opens the file when all records are known to be writable."""

    def __init__(self, original: Callable[..., Any], file: Any) -> None:
        self._original, self._file = original, file
        self._records: list[tuple[str, Any, int]] = []
        self._holes: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not isinstance(self._file, (str, os.PathLike)) and not callable(getattr(self._file, "write", None)):
            self._original(self._file)  # raises PyTorch's error
        self._stack.enter_context(host_placeholders.saving() if is_inside() else reads.refused())
        return self

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Note a record, as PyTorchFileWriter writes it."""
        if isinstance(data, torch.UntypedStorage) and host_placeholders.has_no_values(data):
            if not is_inside():
                host_values.make_storage_real(data, "torch.save")  # an existing file of the user gets all values
                self._records.append((name, data, size))
                return
            self.write_record_metadata(name, size)
        else:
            self._records.append((name, data, size))

    def write_record_metadata(self, name: str, size: int) -> None:
        """Note a record without its content."""
        self._records.append((name, None, size))
        self._holes.append(name)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._stack:
            if kind is not None:
                return
            file = self._file
            if isinstance(file, (str, os.PathLike)):
                file = place_of(file, write=True)
            if self._holes and not isinstance(file, (str, os.PathLike)) and not _is_seekable(file):
                file = _Forward(file)
            with self._original(file) as writer:
                for name, data, size in self._records:
                    if data is None:
                        writer.write_record_metadata(name, size)
                    else:
                        writer.write_record(name, data, size)
                if self._holes:
                    text = json.dumps(self._holes)
                    writer.write_record(_RECORD, text, len(text))


class _Forward:
    """A file that cannot seek, with zeros in place of holes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.write, self.flush = file.write, getattr(file, "flush", lambda: None)

    def seek(self, offset: int, _whence: int = os.SEEK_CUR) -> None:
        """Write zeros up to an offset from here."""
        for at in range(0, offset, _PIECE):
            self._file.write(bytes(min(_PIECE, offset - at)))


def _is_seekable(file: Any) -> bool:
    with suppress(Exception):
        return bool(file.seekable())
    return False


def _is_unchanging(file: Any) -> bool:
    """Return True for a file from before the program, whose changes of it go to another place.

    The pages of a mapped file that becomes shorter cannot be read: the process would end.
    """
    if not is_inside() or not isinstance(file, (str, os.PathLike)):
        return False
    with suppress(OSError):
        found = Path(file).stat()
        return max(found.st_mtime, found.st_ctime) < _started
    return False


class _Reading:
    """A context manager as `_open_zipfile_reader`, whose records with holes are memory without values."""

    def __init__(self, original: Callable[..., Any], file: Any) -> None:
        self._opened, self._file = original(file), file

    def __enter__(self) -> Any:
        reader = self._opened.__enter__()
        holes = json.loads(reader.get_record(_RECORD)) if reader.has_record(_RECORD) else ()
        return _Reader(reader, frozenset(holes), self._file if _is_unchanging(self._file) else None)

    def __exit__(self, *rest: object) -> Any:
        return self._opened.__exit__(*rest)


class _Reader:
    """A PyTorchFileReader, of a file with holes or of a file that can be mapped."""

    def __init__(self, reader: Any, holes: frozenset[str], file: Any) -> None:
        self._reader, self._holes, self._file = reader, holes, file
        self._mapped: torch.UntypedStorage | None = None

    def get_storage_from_record(self, name: str, size: int, dtype: Any) -> torch.Tensor:
        """Return the content of a record as a tensor of the type."""
        if name in self._holes:
            return torch.empty(0, dtype=torch.uint8).set_(host_placeholders.make(size))
        if self._file is not None and size >= host_values.LEAST_BYTES:  # a page is read when it is needed
            if self._mapped is None:
                path = Path(self._file)
                self._mapped = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
            start = self._reader.get_record_offset(name)
            return torch.empty(0, dtype=torch.uint8).set_(self._mapped[start : start + size])
        found: torch.Tensor = self._reader.get_storage_from_record(name, size, dtype)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)
