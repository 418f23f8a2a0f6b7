"""Memory that reading an untrusted file may use: in proportion to the size of the file."""

from __future__ import annotations

from forebay.errors import ForebayError

__all__ = ["BadSnapshot", "Budget"]

_PER_BYTE, _FIXED = 20, 64 << 20
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
    def of_file(cls, size: int) -> Budget:
        """Return the budget of a file of `size` bytes, without those of its content."""
        return cls((_PER_BYTE - 1) * size + _FIXED - _OVERHEAD)

    def charge(self, nbytes: int) -> None:
        """Subtract bytes. Raises BadSnapshot if fewer are left."""
        self.left -= nbytes
        if self.left < 0:
            raise BadSnapshot("it would need more memory than a file of its size may")
