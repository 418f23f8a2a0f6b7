"""Memory that reading an untrusted file may use: in proportion to the size of its content.

# Note [Objects are counted before they are created]
A snapshot may be hostile: 20 MB of opcodes make 1.8 GB of empty lists, and a compressed kilobyte unpacks to megabytes.
Whatever reads a file charges each object, table and copy to one budget before it creates it, from sizes that are
compared with the file first; a count that follows the creation comes too late. The limit is 20 times the size of the
file, or 8 times the content of a compressed one, plus 64 MiB, and the writer leaves uncompressed what the reader would
refuse. The native readers count in the same way (`ValueStack::charge`). Rejected: the unpickler of the standard library
with a restricted `find_class`, which creates objects before anything can count them; and a limit of the process, which
ends the program instead of the reading.
Test: tests/snapshot/test_hostile_files.py::test_pickle_of_many_values_needs_no_more_memory_than_allowed
"""

from __future__ import annotations

from forebay.errors import ForebayError

__all__ = ["LIMITS", "BadSnapshot", "Budget"]

_PER_BYTE, _PER_DECOMPRESSED, _FIXED = 20, 8, 64 << 20
_OVERHEAD = 12 << 20  # of the interpreter and the libraries: buffers, arrays of a fixed size
#: Bytes of memory for each byte of a file, for each byte of the content of a compressed one, and besides.
LIMITS = {"per_byte": _PER_BYTE, "per_decompressed": _PER_DECOMPRESSED, "fixed": _FIXED - _OVERHEAD}


class BadSnapshot(ForebayError, ValueError):
    """A snapshot file, or a snapshot to be written, is truncated, in another format, or inconsistent."""


class Budget:
    """The bytes that are left for one file.

    Parameters
    ----------
    limit : int or None, optional
        The bytes; unlimited by default, for values that are in memory already.

    Examples
    --------
    >>> budget = Budget(100)
    >>> budget.charge(70)
    >>> budget.left
    30
    >>> budget.charge(40)
    Traceback (most recent call last):
    forebay.snapshot.formats.budget.BadSnapshot: it would need more memory than a file of its size may
    """

    def __init__(self, limit: int | None = None) -> None:
        self.left: int = 1 << 62 if limit is None else limit

    @classmethod
    def of_file(cls, size: int, *, compressed: bool = False) -> Budget:
        """Return the budget of a file with `size` bytes of content, without those of the content itself.

        The content of a compressed file gets less for each byte: kilobytes can contain megabytes.
        """
        return cls(((_PER_DECOMPRESSED if compressed else _PER_BYTE) - 1) * size + _FIXED - _OVERHEAD)

    def charge(self, nbytes: int) -> None:
        """Subtract bytes. Raises BadSnapshot if fewer are left."""
        self.left -= nbytes
        if self.left < 0:
            raise BadSnapshot("it would need more memory than a file of its size may")
