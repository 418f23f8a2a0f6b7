"""Capsules of DLPack, by which libraries of one process share memory, in either form: with or without a version.

# Note [Lifetimes of DLPack]
A capsule keeps the owner of its memory alive until the consumer deletes the tensor, which may be at any time and place:
in any thread, with or without the GIL, while the interpreter exits, and later. An export is therefore freed by C
code, which takes the GIL only if the interpreter still gives it; afterwards the owner remains. A capsule is consumed
once, which renames it: from then on its destructor frees nothing, and a second consumer is refused. An imported tensor
is freed with its object, but not in a forked child, where the memory belongs to the parent. Rejected: a deleter in
Python, which cannot run without an interpreter, and where a signal handler may raise.
Test: tests/runtime/memory/test_dlpack.py::test_capsules_and_consumers_may_outlive_the_interpreter,
  tests/runtime/memory/test_dlpack.py::test_owner_lives_until_the_capsule_or_its_consumer_is_deleted
"""

from typing import Any, Final, final

MAX_VERSION: Final[tuple[int, int]]  # of DLPack that is supported

# Return a capsule of strided elements in memory, which keeps `owner` alive until the consumer deletes the tensor.
def export_memory(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],  # in elements
    element: tuple[int, int],  # DLDataTypeCode, and bits
    device: tuple[int, int],  # DLDeviceType, and index
    owner: object,
    *,
    versioned: bool,
    read_only: bool,  # has an effect in a capsule with a version only, like the next
    copied: bool,
) -> Any: ...

# Return the DLDeviceType and the index of a capsule's device, and do not consume the capsule. Raises as ManagedTensor.
def device_of(capsule: object) -> tuple[int, int]: ...

# Return the DLDataTypeCode and the bits of a capsule's elements, likewise.
def element_of(capsule: object) -> tuple[int, int]: ...

@final
class ManagedTensor:
    """The tensor of a capsule, which it consumes. Freed with this object."""

    def __init__(self, capsule: object) -> None: ...  # RuntimeError for another object, or a capsule that was consumed
    @property
    def address(self) -> int: ...  # of the first element; 0 if there is no memory
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...] | None: ...  # in elements; None if there are no gaps
    @property
    def element(self) -> tuple[int, int]: ...  # DLDataTypeCode, and bits
    @property
    def lanes(self) -> int: ...
    @property
    def device(self) -> tuple[int, int]: ...  # DLDeviceType, and index
    @property
    def read_only(self) -> bool: ...
