"""Which of the machine's GPUs a process is to see: CUDA_VISIBLE_DEVICES and, for AMD's, the two of ROCm."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

__all__ = ["UNKNOWN_COUNT", "of_environment", "ordinals_of", "visible_indices"]

UNKNOWN_COUNT = 64  # so many are listed where the environment says nothing, and nobody has counted yet

_E = TypeVar("_E")
_F = TypeVar("_F")
_NUMBER = re.compile(r"[+-]?\d{1,4000}")  # int() reads no more than that


def of_environment(environ: Mapping[str, str], *, amd: bool = False) -> list[int] | list[str]:
    """The ordinals that are named, or the beginnings of UUIDs ("GPU-…", "MIG-…"), in their order.

    An entry that is neither ends the list, and one that is there twice makes it empty. RuntimeError where
    HIP_VISIBLE_DEVICES names more devices than ROCR_VISIBLE_DEVICES leaves.

    >>> of_environment({"CUDA_VISIBLE_DEVICES": "1gpu, 0,-1,2"})
    [1, 0]
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if amd:
        by_hip, by_rocr = environ.get("HIP_VISIBLE_DEVICES"), environ.get("ROCR_VISIBLE_DEVICES")
        text = text if by_hip is None else by_hip
        if by_rocr is not None:
            left = len(by_rocr.split(","))
            if by_hip is None:
                return list(range(left))
            if len(by_hip.split(",")) > left:
                raise RuntimeError("HIP_VISIBLE_DEVICES contains more devices than ROCR_VISIBLE_DEVICES")
    if text is None:
        return list(range(UNKNOWN_COUNT))
    prefix = text[:4]
    if prefix in {"GPU-", "MIG-"}:
        return _until(text.split(","), lambda entry: entry if entry.startswith(prefix) else None)
    return _until(text.split(","), _ordinal)


def ordinals_of(names: Sequence[str], uuids: Sequence[str], *, amd: bool = False) -> list[int]:
    """Where the UUIDs that begin with these names stand.

    A name that fits none, or several, ends the list; two names for one device make it empty.

    >>> ordinals_of(["GPU-fd", "GPU-9e8d3"], ["GPU-9e8d35e3", "GPU-fd69a7d7"])
    [1, 0]
    """

    def place(name: str) -> int | None:
        begins = name.replace("GPU-", "", 1) if amd else name  # AMD's library gives serial numbers
        fitting = [index for index, uuid in enumerate(uuids) if uuid.startswith(begins)]
        return fitting[0] if len(fitting) == 1 else None

    return _until(names, place)


def visible_indices(
    visible: Sequence[int] | Sequence[str], count: int, uuids: Callable[[], Sequence[str]], *, amd: bool = False
) -> list[int]:
    """The machine's indices of the visible devices, of `count` that there are; `uuids` is asked only if names are."""
    ordinals = [entry for entry in visible if isinstance(entry, int)]
    if len(ordinals) < len(visible):
        ordinals = ordinals_of([entry for entry in visible if isinstance(entry, str)], uuids(), amd=amd)
    return _until(ordinals, lambda index: index if index < count else None)


def _until(entries: Sequence[_E], read: Callable[[_E], _F | None]) -> list[_F]:
    """What is read of each, up to the first that makes no sense; nothing where one comes twice."""
    found: list[_F] = []
    for entry in entries:
        value = read(entry)
        if value is None:
            break
        if value in found:
            return []
        found.append(value)
    return found


def _ordinal(entry: str) -> int | None:
    """The number that it begins with, as strtoul reads it; None for a negative one, and for none."""
    number = _NUMBER.match(entry.strip())
    value = int(number[0]) if number else -1
    return value if value >= 0 else None
