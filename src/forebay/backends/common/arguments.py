"""Argument validation shared by all backends, so that an invalid argument raises the same error everywhere."""

from __future__ import annotations

import operator

from forebay._base.byte_sizes import LIMIT

__all__ = ["address_of", "byte_of", "index_of", "integer_of", "size_of"]


def integer_of(value: object, name: str) -> int:
    """Return an argument as an int.

    Parameters
    ----------
    value : object
        The argument: an int or an object with `__index__`, such as NumPy's integers, but not a bool.
    name : str
        Name of the argument, for the error.

    Raises
    ------
    TypeError
        If the argument is not an integer.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # raises TypeError if it is not an integer
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {type(value).__name__}")


def size_of(value: object, name: str = "nbytes") -> int:
    """Return an argument as a size in bytes, greater than 0.

    Parameters
    ----------
    value : object
        The argument.
    name : str, default "nbytes"
        Name of the argument, for the error.

    Raises
    ------
    TypeError
        If the argument is not an integer.
    ValueError
        If it is less than 1 or not below 2**63.
    """
    return _in_range(1, integer_of(value, name), name)


def byte_of(value: object, name: str = "byte") -> int:
    """Return an argument as a byte, from 0 to 255.

    Parameters
    ----------
    value : object
        The argument.
    name : str, default "byte"
        Name of the argument, for the error.

    Raises
    ------
    TypeError
        If the argument is not an integer.
    ValueError
        If it is out of range.
    """
    if 0 <= (number := integer_of(value, name)) < 256:
        return number
    raise ValueError(f"{name} must be from 0 to 255, not {number}")


def address_of(value: object, name: str = "address") -> int:
    """Return an argument as an address that is not null.

    Parameters
    ----------
    value : object
        The argument.
    name : str, default "address"
        Name of the argument, for the error.

    Raises
    ------
    TypeError
        If the argument is not an integer.
    ValueError
        If it is less than 1 or not below 2**63.
    """
    return _in_range(1, integer_of(value, name), name)


def index_of(value: object, name: str) -> int:
    """Return an argument as an index or count, such as a tick or a device index; it is not negative.

    Parameters
    ----------
    value : object
        The argument.
    name : str
        Name of the argument, for the error.

    Raises
    ------
    TypeError
        If the argument is not an integer.
    ValueError
        If it is negative or not below 2**63.
    """
    return _in_range(0, integer_of(value, name), name)


def _in_range(lowest: int, number: int, name: str) -> int:
    if lowest <= number < LIMIT:
        return number
    raise ValueError(f"{name} must be at least {lowest} and below 2**63, not {number}")
