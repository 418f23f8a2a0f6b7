"""The notes of a snapshot that this package interprets. Programs and files may hold any JSON values in their place.

A value of another type, or out of range, is ignored, as the settings in a PyTorch pickle are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay._base.untrusted import shortened
from forebay._base.verdicts import Assumption, Verdict
from forebay.records.model import HEAP_NOTES

__all__ = [
    "ASSUMPTIONS",
    "ASSUMPTION_CHECK",
    "FORWARD_FRAMES",
    "FRAME_DETAILS",
    "INTERNAL_METADATA",
    "ROW_NOTES",
    "SAMPLED",
    "VERDICT",
    "all_settings",
    "assumption_check_of",
    "assumptions_of",
    "details_of",
    "exact_peak_of",
    "kept_settings",
    "known_settings",
    "pool_ids",
    "program_of",
    "sampling_mean",
    "seconds_of",
    "settings_of",
    "truncation_of",
    "verdict_of",
]

FORWARD_FRAMES = "forward_frames"  # by row of the stacks: Note [Forward frames are callers]
FRAME_DETAILS = "fx_frames"  # by row of the frames: what torch.fx knows of a line of generated code
INTERNAL_METADATA = "internal_metadata"  # by number of the label: what the allocator noted at an entry
ROW_NOTES = (FORWARD_FRAMES, FRAME_DETAILS, INTERNAL_METADATA)
ASSUMPTIONS = "assumptions"  # the note of `forebay run`: the lines that received assumed values
ASSUMPTION_CHECK = "assumption_check"  # that of `forebay run --check-assumptions`: what runs with opposite values say
VERDICT = "verdict"  # the note of `forebay run`: whether the program fits the device

SAMPLED = "sampled"  # the note of a snapshot whose blocks are a sample: see `forebay.interop.array_samples`

_SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": str, "max_split_size": int, "garbage_collection_threshold": float,
    "expandable_segments": bool, "roundup_power2_divisions": dict, "heaps": dict, "watermarks": str,
}  # fmt: skip
_MAX_TEXT = 10_000  # characters of settings
_MAX_SECONDS = 1e12
_MAX_ASSUMPTIONS, _MAX_LINE = 1000, 250  # lines, and characters of each


def known_settings(value: Any) -> dict[str, Any]:
    """Return the allocator settings, and the heap notes, that have the right types."""
    if not isinstance(value, Mapping):
        return {}
    found = {key: value[key] for key, wanted in _SETTINGS.items() if _is_of(value.get(key), wanted)}
    for name, types in (("roundup_power2_divisions", {int}), ("heaps", {int, bool})):
        if not all(type(key) is str and type(number) in types for key, number in found.get(name, {}).items()):
            del found[name]
    return {key: each for key, each in found.items() if not isinstance(each, str) or len(each) <= _MAX_TEXT}


def kept_settings(value: Any) -> dict[str, Any]:
    """Return the settings of a file that a conversion keeps: all that are plain, the known ones with the right types.

    A setting of a later version has a name that this one does not know, and no effect on an analysis.
    """
    if not isinstance(value, Mapping):
        return {}
    others = {
        key: each for key, each in value.items()
        if type(key) is str and key not in _SETTINGS and (_is_plain(each) or _is_flat(each))
        and len(str(each)) <= _MAX_TEXT
    }  # fmt: skip
    known = known_settings(value)
    return {key: each for key, each in value.items() if key in known or key in others}


def details_of(notes: Mapping[str, Any], name: str, wanted: type) -> dict[int, Any]:
    """Return the values of a note about single rows, by row, that have the right type."""
    noted = notes.get(name)
    return {
        int(row): value
        for row, value in (noted.items() if isinstance(noted, Mapping) else ())
        if row.isascii() and row.isdecimal() and len(row) < 11 and isinstance(value, wanted)
    }


def settings_of(notes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the allocator settings of a recording with segments; None if the notes do not contain them."""
    noted = notes.get("allocator_settings")
    return known_settings(noted) if isinstance(noted, Mapping) else None


def all_settings(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings that PyTorch's schema can hold: numbers of 64 bits, texts, and flat dicts of them."""
    noted = notes.get("allocator_settings")
    found = dict(noted) if isinstance(noted, Mapping) else {}
    found |= {key: notes[key] for key in HEAP_NOTES if key in notes}
    return {key: each for key, each in found.items() if _is_plain(each) or _is_flat(each)}


def pool_ids(notes: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return the ids that PyTorch gave to the private pools, by number."""
    noted = notes.get("pools")
    return {
        int(number): (pair[0], pair[1])
        for number, pair in (noted.items() if isinstance(noted, Mapping) else ())
        if number.isascii() and number.isdecimal() and len(number) < 11 and _is_id(pair)
    }


def program_of(notes: Mapping[str, Any]) -> str | list[str]:
    """Return the command line of the program, as text or as words; "" if the notes do not contain it."""
    noted = notes.get("program", "")
    return noted if isinstance(noted, str) else [*map(str, noted)] if isinstance(noted, list | tuple) else ""


def seconds_of(notes: Mapping[str, Any]) -> float | None:
    """Return the run time of the program; None if the notes do not contain it."""
    noted: Any = notes.get("seconds")
    return float(noted) if type(noted) in (int, float) and 0 < noted < _MAX_SECONDS else None


def sampling_mean(notes: Mapping[str, Any]) -> int:
    """Return the mean number of bytes between two bytes that a sample has chosen; 0 if the blocks are no sample."""
    noted = notes.get(SAMPLED)
    mean = noted.get("mean_bytes") if isinstance(noted, Mapping) else None
    return mean if type(mean) is int and 0 < mean < 1 << 60 else 0


def exact_peak_of(notes: Mapping[str, Any]) -> int | None:
    """Return the exact peak of memory of which the blocks are a sample; None if the notes do not contain it."""
    noted = notes.get(SAMPLED)
    peak = noted.get("exact_peak_bytes") if isinstance(noted, Mapping) else None
    return peak if type(peak) is int and 0 <= peak < 1 << 63 else None


def truncation_of(notes: Mapping[str, Any]) -> str:
    """Return where the file ends early; "" if it is complete."""
    noted = notes.get("truncated")
    return noted if isinstance(noted, str) else ""


def verdict_of(notes: Mapping[str, Any]) -> tuple[Verdict, str, str] | None:
    """Return the verdict about the program with its heading and its text; None if the notes do not contain one."""
    noted = notes.get(VERDICT)
    if not isinstance(noted, Mapping):
        return None
    texts = [noted.get(name) for name in ("verdict", "heading", "text")]
    if not all(isinstance(each, str) and len(each) <= _MAX_TEXT for each in texts) or texts[0] not in [*Verdict]:
        return None
    return Verdict(str(texts[0])), str(texts[1]), str(texts[2])


def assumptions_of(notes: Mapping[str, Any]) -> tuple[Assumption, ...]:
    """Return the lines of the program that received assumed values, the first ones of many, with shortened texts."""
    noted = notes.get(ASSUMPTIONS)
    found = []
    for each in noted[:_MAX_ASSUMPTIONS] if isinstance(noted, list | tuple) else ():
        fields: list[Any] = [each.get(name) for name in Assumption._fields] if isinstance(each, Mapping) else []
        if list(map(type, fields)) == [str, str, int]:
            line, text, times = fields
            found.append(Assumption(shortened(line, _MAX_LINE), shortened(text, _MAX_LINE), times))
    return tuple(found)


def assumption_check_of(notes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sentences about whether the peak depends on assumed values, the first ones of many, shortened."""
    noted = notes.get(ASSUMPTION_CHECK)
    found = noted[:_MAX_ASSUMPTIONS] if isinstance(noted, list | tuple) else ()
    return tuple(shortened(each, 2 * _MAX_LINE) for each in found if type(each) is str)


def _is_of(value: Any, wanted: type) -> bool:
    """Return True for a value of a type, or an int for a type that PyTorch may write as one."""
    return type(value) is wanted or (type(value) is int and wanted in (float, bool))


def _is_id(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(each) is int and 0 <= each < 1 << 64 for each in value)
    )


def _is_plain(value: Any) -> bool:
    return type(value) in (str, bool, float) or (type(value) is int and -(1 << 63) <= value < 1 << 64)


def _is_flat(value: Any) -> bool:
    return isinstance(value, Mapping) and all(type(key) is str and _is_plain(each) for key, each in value.items())
