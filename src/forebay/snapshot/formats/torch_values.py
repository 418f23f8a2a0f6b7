"""Checks of the types and ranges of unpickled values, which raise BadSnapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.formats.budget import BadSnapshot

__all__ = [
    "Rows",
    "as_dicts",
    "as_items",
    "as_text",
    "codes_of",
    "column_of",
    "flags_of",
    "is_of",
    "require",
    "values_of",
]

Rows = Sequence[Mapping[str, Any]]


def is_of(value: Any, kind: type) -> bool:
    """Return True for a value of a type, or an int for a type that PyTorch may write as one."""
    return type(value) is kind or (type(value) is int and kind in (float, bool))


def as_text(value: Any) -> str:
    """Return a value that must be a string."""
    require(type(value) is str, "a text is not a string")
    found: str = value
    return found


def as_items(value: Any, what: str) -> list[Any] | tuple[Any, ...]:
    """Return a value that must be a list or a tuple."""
    require(isinstance(value, list | tuple), f"{what} are not a list")
    found: list[Any] | tuple[Any, ...] = value
    return found


def as_dicts(value: Any, what: str) -> Rows:
    """Return a value that must be a list of dicts."""
    items = as_items(value, what)
    require(set(map(type, items)) <= {dict}, f"not all of {what} are dicts")
    return items


def values_of(rows: Rows, key: str, whose: str, default: Any) -> list[Any]:
    """Return one value of each row; without a `default`, each row must have the key."""
    if default is not None:
        return [row.get(key, default) for row in rows]
    try:
        return [row[key] for row in rows]
    except KeyError:
        raise BadSnapshot(f"{whose} {key} is missing") from None


def column_of(rows: Rows, key: str, whose: str, dtype: str = "u8", default: Any = None) -> NDArray[Any]:
    """Return one number of each row. A column as `default` has the values of the rows that lack the key."""
    if isinstance(default, np.ndarray):
        values = [row.get(key, other) for row, other in zip(rows, default.tolist(), strict=True)]
    else:
        values = values_of(rows, key, whose, default)
    require(set(map(type, values)) <= {int}, f"{whose} {key} is not a number")
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise BadSnapshot(f"{whose} {key} is out of range") from None


def codes_of(rows: Rows, key: str, words: Mapping[str, int], default: str | None, whose: str) -> list[int]:
    """Return the code of one word of each row."""
    values = values_of(rows, key, whose, default)
    try:
        if set(map(type, values)) <= {str}:
            return [words[word] for word in values]
        raise KeyError  # noqa: TRY301 - nothing else may be hashed
    except KeyError:
        raise BadSnapshot(f"{whose} {key} is not one of {', '.join(words)}") from None


def flags_of(rows: Rows, key: str) -> list[bool]:
    """Return one flag of each row; False by default."""
    values = values_of(rows, key, "a segment's", False)
    require(set(map(type, values)) <= {bool}, f"a segment's {key} is not True or False")
    return values


def require(condition: bool, message: str) -> None:
    """Raise BadSnapshot if a condition is False."""
    if not condition:
        raise BadSnapshot(message)
