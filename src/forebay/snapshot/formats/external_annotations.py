"""External annotations of a PyTorch snapshot: starts and ends of ranges, as `record_function` and the profiler mark.

They are a note of each device's snapshot, with those of all devices of the file, as they are: a conversion to forebay's
format, in which a file has one device, and back keeps them. A range belongs to the device that was current in the
thread that marked it, which may be another one than the device on which the memory is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["ANNOTATIONS", "Mark", "annotations_of", "kept_annotations", "marks_of"]

ANNOTATIONS = "external_annotations"
_MAX_MARKS, _MAX_KEYS, _MAX_TEXT = 10_000_000, 100, 1_000_000
_MAX_TIME = 1 << 52  # µs
Mark = tuple[int, str, str, int]  # ns, stage, name, device


def kept_annotations(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the annotations of a file that are flat dicts of texts and numbers."""
    if not isinstance(value, list | tuple):
        return ()
    return tuple(each for each in value[:_MAX_MARKS] if _is_plain_dict(each))


def annotations_of(snapshots: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the annotations in the notes of several devices, each once: devices of one file have the same ones."""
    found: list[Mapping[str, Any]] = []
    for notes in snapshots:
        own = kept_annotations(notes.get(ANNOTATIONS))
        if own and not found:
            found = [*own]
        elif own and [*own] != found[: len(own)]:
            seen = {tuple(sorted(each.items(), key=str)) for each in found}
            found += [each for each in own if tuple(sorted(each.items(), key=str)) not in seen]
    return found


def marks_of(notes: Mapping[str, Any]) -> Iterator[Mark]:
    """Yield the annotations of a snapshot that have a time and a name."""
    for each in kept_annotations(notes.get(ANNOTATIONS)):
        at, stage, name, device = (each.get(key) for key in ("time_us", "stage", "name", "device"))
        if type(at) is int and 0 <= at < _MAX_TIME and type(stage) is str and type(name) is str:
            yield at * 1000, stage, name, device if type(device) is int else 0


def _is_plain_dict(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= _MAX_KEYS
        and all(type(key) is str and _is_plain(each) for key, each in value.items())
    )


def _is_plain(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _MAX_TEXT
    return type(value) in (bool, float) or (type(value) is int and -(1 << 63) <= value < 1 << 64)
