"""Unpickler of plain values: None, booleans, numbers of up to 64 bits, strings, lists, tuples, and dicts.

Every opcode is checked, and Note [Objects are counted before they are created]. Nothing is imported. Keys of dicts are
strings or numbers below 2^32, so that hashes do not collide. Ctrl-C is handled at least every 65,536 opcodes.
"""

from typing import Any

class Invalid(ValueError):
    """The pickle is not one of plain values, or is damaged."""

class Forbidden(ValueError):
    """An opcode would run or import something. The argument is its offset."""

class TooLarge(ValueError):
    """The values would need more memory than the limit."""

def load(data: bytes, limit: int) -> tuple[Any, int]: ...  # the value, and the bytes of memory counted for it
