"""What every backend asks of its arguments, so that a wrong one gives the same error everywhere."""

from __future__ import annotations

import operator

__all__ = ["LIMIT", "address_of", "byte_of", "index_of", "integer_of", "size_of"]

LIMIT = 1 << 63  # addresses and sizes are below it: drivers count with a sign


def integer_of(value: object, name: str) -> int:
    """The int that is meant; TypeError for what is none. NumPy's ints are."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # it is what finds out
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {type(value).__name__}")


def size_of(value: object, name: str = "nbytes") -> int:
    """A number of bytes, above 0; ValueError for any other."""
    return _between(1, integer_of(value, name), name)


def byte_of(value: object, name: str = "byte") -> int:
    """What one byte can be, from 0 to 255; ValueError for any other."""
    if 0 <= (number := integer_of(value, name)) < 256:
        return number
    raise ValueError(f"{name} must be from 0 to 255, not {number}")


def address_of(value: object, name: str = "address") -> int:
    """An address, not null; ValueError for what cannot be one."""
    return _between(1, integer_of(value, name), name)


def index_of(value: object, name: str) -> int:
    """A number that counts something, like a tick or a device: not negative; ValueError otherwise."""
    return _between(0, integer_of(value, name), name)


def _between(lowest: int, number: int, name: str) -> int:
    if lowest <= number < LIMIT:
        return number
    raise ValueError(f"{name} must be at least {lowest} and below 2**63, not {number}")
