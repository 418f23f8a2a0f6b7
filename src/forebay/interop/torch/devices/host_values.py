"""Large tensors of the host whose values are computed when the host needs them, or never.

# Note [Values of the host without memory]
A model that is built on the host and then moved to the device would need as much memory of the host as with values,
although its weights are not read. So what is written to a large parameter is recorded: its memory is virtual, and its
pages are returned to the system. The steps are applied when an operator of the CPU reads the memory, with the state
that the generator had, so that the values are those of a run with values; the generator advances at once, as what is
drawn later decides the order of batches. Copies share the steps, which are never changed. A large copy of a tensor of
the device, whose values are unknown, reads as zeros and stays unknown. Only parameters are recorded, as data of the
host decides sizes, and is read sooner or later. Rejected: a subclass of tensors, as programs test the type; to skip
initializers without a record, as weights of models that run on the CPU would be zeros.
Test: tests/interop/torch/devices/test_host_values.py::test_values_are_those_of_a_run_with_values_when_they_are_read
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices._mersenne_twister import advance
from forebay.interop.torch.processes import assumed_values

__all__ = [
    "LEAST_BYTES", "Read", "Step", "advance_generator", "any_deferred", "applied", "assumed_read_of", "before_first",
    "covers", "defer", "discard", "forget", "has_deferred", "is_applying", "is_concerned", "is_large", "is_parameter",
    "is_unknown", "is_unread_file", "make_all_real", "make_real", "make_storage_real", "nbytes_of", "note_file",
    "note_parameter", "note_part", "reads_as_zeros", "steps_of",
]  # fmt: skip

LEAST_BYTES = 1 << 20  # of a tensor that is recorded; measured: a smaller one costs more than it saves
Step = Callable[[torch.UntypedStorage], None]
Read = Callable[[torch.Tensor], None]
_storage_id = torch._C._storage_id
_Generator = torch.Generator  # before it is replaced
_DONTNEED = 4  # MADV_DONTNEED: pages of private memory read as zeros afterwards
_PAGE = mmap.PAGESIZE
_madvise = None
if sys.platform == "linux":
    _madvise = ctypes.CDLL(None, use_errno=True).madvise
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _Entry(NamedTuple):
    storage: weakref.ref[torch.UntypedStorage]
    steps: tuple[Step, ...] | None  # None: the values are unknown
    read: Read | None  # writes what is assumed in place of unknown values
    dtype: torch.dtype


_entries: dict[int, _Entry] = {}  # by the address of PyTorch's storage object
_parameters: dict[int, weakref.ref[torch.UntypedStorage]] = {}
_files: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # mapped files, whose pages are read when they are needed


_before_first: Callable[[], object] | None = None


class _Thread(threading.local):
    applying = False


_thread = _Thread()


def before_first(function: Callable[[], object] | None) -> None:
    """Call a function before the first record, which makes all operators of the CPU look for records."""
    global _before_first  # noqa: PLW0603 -- that of the patch that is active
    _before_first = function


def is_applying() -> bool:
    """Return True while recorded steps are applied, which are not to be recorded again."""
    return _thread.applying


@contextmanager
def applied() -> Iterator[None]:
    """Context manager: operators of this thread are executed, and not recorded."""
    before, _thread.applying = _thread.applying, True
    try:
        yield
    finally:
        _thread.applying = before


def nbytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of the elements."""
    return int(tensor.numel() * tensor.itemsize)


def is_large(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is large enough to be recorded."""
    return nbytes_of(tensor) >= LEAST_BYTES and tensor.layout is torch.strided and not tensor.is_nested


def covers(tensor: torch.Tensor) -> bool:
    """Return True if the elements fill the whole memory of the tensor."""
    if nbytes_of(tensor) != tensor.untyped_storage().nbytes() or tensor.storage_offset():
        return False
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _noted(table: dict[int, weakref.ref[torch.UntypedStorage]], storage: torch.UntypedStorage) -> None:
    key = storage._cdata
    table[key] = weakref.ref(storage, lambda _: table.pop(key, None))


def note_parameter(tensor: torch.Tensor) -> None:
    """Note that the memory of a tensor is that of a parameter, whose values are recorded from now on."""
    if tensor.device.type == "cpu" and is_large(tensor):
        _noted(_parameters, tensor.untyped_storage())


def is_parameter(tensor: torch.Tensor) -> bool:
    """Return True if a tensor of floating-point numbers is a parameter, or shares the memory of one."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and (_storage_id(tensor) in _parameters or isinstance(tensor, torch.nn.Parameter))


def note_file(storage: torch.UntypedStorage) -> None:
    """Note that memory is a mapped file, of which copies read nothing until they are read themselves."""
    _noted(_files, storage)


def note_part(whole: torch.UntypedStorage, part: torch.UntypedStorage) -> None:
    """Note that a storage is a part of another one, which may be a mapped file, or have no values."""
    if whole._cdata in _files:
        note_file(part)
    elif whole._cdata in _entries:
        make_storage_real(whole, "a part of a storage")
        if whole._cdata in _entries:
            defer(torch.empty(0, dtype=torch.uint8).set_(part), None, discards=False)


def is_unread_file(tensor: torch.Tensor) -> bool:
    """Return True if the memory of a tensor is a mapped file."""
    return bool(_files) and _storage_id(tensor) in _files


def any_deferred() -> bool:
    """Return True if any memory of the host does not have its values."""
    return bool(_entries)


def reads_as_zeros(tensor: torch.Tensor) -> bool:
    """Return True if the elements are not to be searched: the memory does not have its values, or is a mapped file."""
    if not (_entries or _files) or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    key = _storage_id(tensor)
    return key in _entries or (key in _files and is_large(tensor))


def has_deferred(storage: torch.UntypedStorage) -> bool:
    """Return True if the memory does not have its values."""
    return bool(_entries) and storage._cdata in _entries


def steps_of(tensor: torch.Tensor) -> tuple[Step, ...] | None:
    """Return what was recorded for the memory of a tensor; () for memory with values, None if they are unknown."""
    entry = _entries.get(_storage_id(tensor)) if _entries else None
    return () if entry is None else entry.steps


def is_concerned(tensor: torch.Tensor) -> bool:
    """Return True if a write to a tensor of the host, or a copy of it, may be recorded."""
    key = _storage_id(tensor)
    return key in _entries or key in _parameters or key in _files


def assumed_read_of(tensor: torch.Tensor) -> Read | None:
    """Return what writes assumed values in place of the unknown ones of a tensor."""
    entry = _entries.get(_storage_id(tensor))
    return None if entry is None else entry.read


def is_unknown(tensor: torch.Tensor) -> bool:
    """Return True if the values of a tensor of the host are unknown, and none are assumed for it."""
    entry = _entries.get(_storage_id(tensor))
    return entry is not None and entry.steps is None and entry.read is None


def defer(tensor: torch.Tensor, steps: tuple[Step, ...] | None, *, discards: bool, read: Read | None = None) -> None:
    """Record how the values of the memory of a tensor are made, and return its pages if their content is not needed.

    Parameters
    ----------
    tensor : torch.Tensor
        A tensor of the host.
    steps : tuple of callable or None
        What writes the memory, in order. None if the values are unknown.
    discards : bool
        Whether the first step writes all of the memory.
    read : callable, optional
        What writes assumed values to a tensor in place of unknown ones, when the host reads them; zeros by default.
    """
    global _before_first
    function, _before_first = _before_first, None
    if function is not None:
        function()
    storage = tensor.untyped_storage()
    key = storage._cdata
    if discards:
        discard(storage)
    _entries[key] = _Entry(weakref.ref(storage, lambda _: _entries.pop(key, None)), steps, read, tensor.dtype)


def forget(tensor: torch.Tensor) -> None:
    """Forget what was recorded for the memory of a tensor, as all of it is written."""
    _entries.pop(_storage_id(tensor), None)


def discard(storage: torch.UntypedStorage) -> bool:
    """Return the pages of memory that PyTorch's allocator has allocated. True if all of it reads as zeros now."""
    if _madvise is None or not storage.resizable():  # memory of others, such as a file
        return False
    start = storage.data_ptr()
    end = start + storage.nbytes()
    first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
    if last <= first or _madvise(first, last - first, _DONTNEED):
        return False
    ctypes.memset(start, 0, first - start)
    ctypes.memset(last, 0, end - last)
    return True


def make_all_real() -> None:
    """Give all memory its values, as far as they are known: later reads are not seen."""
    for entry in [*_entries.values()]:
        storage = entry.storage()
        if storage is not None and entry.steps is not None:
            make_storage_real(storage, "the end")


def make_storage_real(storage: torch.UntypedStorage, what: str) -> None:
    """Give the memory of a storage its values, as `make_real`."""
    make_real(torch.empty(0, dtype=torch.uint8).set_(storage), what)


def make_real(tensor: torch.Tensor, what: str) -> None:
    """Give the memory of a tensor its values, as the host reads them.

    Those of copies from the device are unknown: they read as zeros, and the line is noted. Raises DataDependent in the
    mode "strict".
    """
    entry = _entries.get(_storage_id(tensor)) if _entries else None
    if entry is None or _thread.applying:
        return
    storage = tensor.untyped_storage()
    if entry.steps is None and entry.read is None:
        if values.is_strict():
            raise values.needs_values(what)
        assumed_values.note(values.calling_line()[0], f"zeros in place of unknown values of the host ({what})")
        return
    with applied(), torch.no_grad():
        if entry.read is not None:
            entry.read(torch.empty(0, dtype=entry.dtype).set_(storage))
        for step in entry.steps or ():
            step(storage)
    del _entries[storage._cdata]


def advance_generator(generator: torch.Generator | None, count: int) -> Callable[[], torch.Generator]:
    """Advance a generator of the CPU by draws of 32 bits. Returns a function that makes one with the state before."""
    found = torch.default_generator if generator is None else generator
    before = found.get_state()
    after = before.clone()
    advance(after.numpy().view("uint64"), count)
    found.set_state(after)

    def make() -> torch.Generator:
        made = _Generator()
        made.set_state(before)
        return made

    return make
