"""Memory that reading an untrusted file may use: in proportion to the size of its content."""

from __future__ import annotations

from forebay.errors import ForebayError

__all__ = ["BadSnapshot", "Budget"]

_PER_BYTE, _PER_DECOMPRESSED, _FIXED = 20, 8, 64 << 20
_OVERHEAD = 12 << 20  # of the interpreter and the libraries: buffers, arrays of a fixed size


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
