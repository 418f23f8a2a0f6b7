"""The settings of the allocator that a snapshot contains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import escape_text
from forebay.records.model import HEAP_NOTES
from forebay.snapshot.report.page.view import View

__all__ = ["NOTES", "section"]

NOTES = ("allocator_settings", *HEAP_NOTES)  # notes of a snapshot that this section shows
_SIZES = (".max_split_size",)  # settings in bytes


def section(view: View) -> str:
    """Return the section; "" if the file contains no settings."""
    notes = view.snapshot.notes
    found = {name: text for note in NOTES if note in notes for name, text in _flat(note, notes[note])}
    if not found:
        return ""
    rows = "".join(
        f'<tr><td class="path">{escape_text(name)}</td><td>{escape_text(text)}</td></tr>'
        for name, text in found.items()
    )
    return (
        '<section class="card settings" aria-label="Settings"><h2>Settings of the allocator</h2>'
        '<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">setting</th><th scope="col">value</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div></section>\n"
    )


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the names and values of nested settings. Tables of zeros, such as unset divisions, are one value."""
    if not isinstance(value, Mapping):
        yield name.removeprefix("allocator_settings."), _text(name, value)
    elif value and not any(value.values()):
        yield name.removeprefix("allocator_settings."), "not set"
    else:
        for key, each in value.items():
            yield from _flat(f"{name}.{key}", each)


def _text(name: str, value: object) -> str:
    if value in (-1, "", None):
        return "not set"
    if name.endswith(_SIZES) and type(value) is int and abs(value) < 1 << 64:  # else it is no size, whatever its name
        return format_bytes(value)
    return str(value)
