"""C++ functions that PyTorch's pluggable allocator calls, with or without the GIL, by any thread.

They call methods of Python and turn their errors into C++ exceptions, which PyTorch turns into Python's again:
OutOfMemory becomes `torch.OutOfMemoryError`, any other error RuntimeError. After the end of the interpreter they do
nothing.
"""

from typing import Any, Protocol, final, type_check_only

@final
class CapturedStreams:
    """The streams, by handle, that take part in a capture: each query calls PyTorch."""

    def __contains__(self, stream: object, /) -> bool: ...

@type_check_only
class Handlers(Protocol):
    """The Python functions that the C functions call."""

    def allocate(self, nbytes: int, device: int, stream: int, /) -> int: ...  # the address, which is in `blocks` then
    def record_stream(self, address: int, stream: int, /) -> None: ...
    def empty_cache(self) -> None: ...
    def set_memory_fraction(self, fraction: float, device: int, /) -> None: ...
    def segment_of(self, address: int, /) -> tuple[int, int]: ...  # address and size
    def begin_pool(self, device: int, pool: tuple[int, int], captured: CapturedStreams, /) -> None: ...
    def end_pool(self, device: int, pool: tuple[int, int], /) -> None: ...
    def release_pool(self, device: int, pool: tuple[int, int], /) -> None: ...
    def is_out_of_memory(self, error: BaseException, /) -> bool: ...
    def text_of(self, error: BaseException, /) -> str: ...
    def unknown(self, address: int, /) -> None: ...  # memory was freed that is not in `blocks`
    def warn(self, error: BaseException, /) -> None: ...  # of a call that cannot fail in PyTorch

# Set what the functions call, and return their addresses: allocate, release, record, reset, limit, base, begin, end and
# drop. A released block is removed from `blocks`.
def connect(handlers: Handlers, blocks: dict[int, Any]) -> dict[str, int]: ...

# Set the addresses of the constructor of c10::OutOfMemoryError and of its type information. Without them, or if one is
# 0, OutOfMemory becomes RuntimeError.
def set_out_of_memory_class(construct: int, type_info: int) -> None: ...
