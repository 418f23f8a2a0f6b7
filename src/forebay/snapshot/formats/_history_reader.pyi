"""Reader of pickled histories: entries and stacks become columns while they are read, from windows of a file.

It reads what PyTorch writes, in protocol 2 or later, and refuses everything else with `Odd`; `safe_pickle` reads that.
Every opcode is checked and every value counted before it is made. Nothing is called or imported.
"""

from typing import Any

from typing_extensions import disjoint_base

class Odd(ValueError):
    """The pickle is not a history as PyTorch writes it."""

class TooLarge(ValueError):
    """The values would need more memory than the limit."""

@disjoint_base
class StackRow(int):
    """A list of frames: its row in the stack tree."""

class Rows:
    """A list of entries: their rows in the history."""

    start: int
    stop: int
    def __init__(self, start: int, stop: int) -> None: ...
    def __len__(self) -> int: ...

@disjoint_base
class HistoryReader:
    """The history of one file. As a buffer, it is the rows of dtype `ENTRY` that were read so far.

    The action of an entry has bit 16 if the file states its pool; 0 is an action without a number in `actions`. `pool`
    is a row of `pairs` and `note` one of `notes`, both from 1.
    """

    done: bool  # the pickle ended

    def __init__(self, seed: int, actions: dict[str, int]) -> None: ...
    def __len__(self) -> int: ...  # entries
    def __buffer__(self, flags: int, /) -> memoryview: ...

    # Executes the opcodes of a window, of which `beyond` bytes of the file follow; returns how many bytes are done.
    def read(self, window: bytes | bytearray | memoryview, beyond: int, limit: int) -> int: ...
    def salvage(self) -> bool: ...  # ends a truncated pickle; False if nothing can be read
    def value(self) -> Any: ...  # what was unpickled, with StackRow for frames and Rows for entries; once only
    # Tables of pairs, as 64-bit numbers in bytes.
    def pairs(self) -> bytes: ...  # ids of private pools, and other tuples of two numbers
    def nodes(self) -> bytes: ...  # of the stack tree, from row 1: chain of forward frames << 32 | parent, frame
    def frames(self) -> bytes: ...  # text of the file << 32 | text of the name, chain of details << 32 | line
    def notes(self) -> bytes: ...  # texts from 1, 0: none; compile_context, internal_metadata << 32 | user_metadata
    # Chains, by their last pair from 1: previous pair << 32 | text of a key, text. Forward frames have 2^32 - 1 as key
    # and, in `nodes`, as frame of a stack without others.
    def details(self) -> bytes: ...
    def text(self, row: int) -> str: ...
