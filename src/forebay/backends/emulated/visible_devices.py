"""Device visibility: CUDA_VISIBLE_DEVICES and, for AMD, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

__all__ = ["UNKNOWN_COUNT", "match_uuids", "parse_visible_devices", "visible_indices"]

UNKNOWN_COUNT = 64  # number of ordinals to list if the environment does not select any and the count is unknown

_E = TypeVar("_E")
_F = TypeVar("_F")
_NUMBER = re.compile(r"[+-]?\d{1,4000}")  # the limit of int()


def parse_visible_devices(environ: Mapping[str, str], *, amd: bool = False) -> list[int] | list[str]:
    """Return the selected ordinals or UUID prefixes ("GPU-...", "MIG-...") in order.

    An invalid entry ends the list; a duplicate makes it empty. Raises RuntimeError if HIP_VISIBLE_DEVICES names more
    devices than ROCR_VISIBLE_DEVICES.

    >>> parse_visible_devices({"CUDA_VISIBLE_DEVICES": "1gpu, 0,-1,2"})
    [1, 0]
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if amd:
        by_hip, by_rocr = environ.get("HIP_VISIBLE_DEVICES"), environ.get("ROCR_VISIBLE_DEVICES")
        text = text if by_hip is None else by_hip
        if by_rocr is not None:
            count = len(by_rocr.split(","))
            if by_hip is None:
                return list(range(count))
            if len(by_hip.split(",")) > count:
                raise RuntimeError("HIP_VISIBLE_DEVICES contains more devices than ROCR_VISIBLE_DEVICES")
    if text is None:
        return list(range(UNKNOWN_COUNT))
    prefix = text[:4]
    if prefix in {"GPU-", "MIG-"}:
        return _until_invalid(text.split(","), lambda entry: entry if entry.startswith(prefix) else None)
    return _until_invalid(text.split(","), _ordinal)


def match_uuids(names: Sequence[str], uuids: Sequence[str], *, amd: bool = False) -> list[int]:
    """Return the ordinals of the devices whose UUIDs begin with the names.

    A name that matches no device or several ends the list; two names for one device make it empty.

    >>> match_uuids(["GPU-fd", "GPU-9e8d3"], ["GPU-9e8d35e3", "GPU-fd69a7d7"])
    [1, 0]
    """

    def ordinal_of(name: str) -> int | None:
        prefix = name.replace("GPU-", "", 1) if amd else name  # AMD's library returns serial numbers
        matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(prefix)]
        return matches[0] if len(matches) == 1 else None

    return _until_invalid(names, ordinal_of)


def visible_indices(
    visible: Sequence[int] | Sequence[str], count: int, uuids: Callable[[], Sequence[str]], *, amd: bool = False
) -> list[int]:
    """Return the machine's indices of the visible devices. `uuids` is called only if `visible` has UUID prefixes."""
    ordinals = [entry for entry in visible if isinstance(entry, int)]
    if len(ordinals) < len(visible):
        ordinals = match_uuids([entry for entry in visible if isinstance(entry, str)], uuids(), amd=amd)
    return _until_invalid(ordinals, lambda index: index if index < count else None)


def _until_invalid(entries: Sequence[_E], parse: Callable[[_E], _F | None]) -> list[_F]:
    """Return the parsed entries up to the first invalid one; an empty list if two are equal."""
    found: list[_F] = []
    for entry in entries:
        value = parse(entry)
        if value is None:
            break
        if value in found:
            return []
        found.append(value)
    return found


def _ordinal(entry: str) -> int | None:
    """Return the number at the start of an entry, as strtoul reads it; None if there is none or it is negative."""
    number = _NUMBER.match(entry.strip())
    value = int(number[0]) if number else -1
    return value if value >= 0 else None
