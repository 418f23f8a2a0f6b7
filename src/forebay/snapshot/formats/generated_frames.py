"""Frames of code that torch.fx generated, which are shown at the line of the model that they come from.

`torch.cuda.memory._snapshot(augment_with_fx_traces=True)` adds to a frame of generated code the traceback of the line
of the model. The frame gets the place of that line, as a site in a generated file tells the user nothing; the note
"fx_frames" keeps the place in the generated file and the fields that were added, so that a conversion back to a pickle
has the frame as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.records.frame_kinds import is_own
from forebay.records.model import FRAME, Frame

__all__ = ["LINE", "frame_details", "generated_place", "place_originals"]

LINE = re.compile(r'File "([^"\n]+)", line (\d{1,9}), in ([^\n]+)')
_TRACE, _PLACE = "fx_original_trace", "generated"
_MAX_TRACE, _MAX_NAME = 100_000, 1000


def place_originals(
    frames: NDArray[np.void], strings: tuple[str, ...], details: Mapping[int, Mapping[str, str]]
) -> tuple[NDArray[np.void], tuple[str, ...], dict[int, dict[str, Any]]]:
    """Return the frames at the lines of the model, the strings, and the details with the places in generated files."""
    words = [*strings]  # may have equal texts twice
    numbers = {text: number for number, text in enumerate(strings)}

    def number(text: str) -> int:
        if text not in numbers:
            numbers[text] = len(words)
            words.append(text)
        return numbers[text]

    placed, noted = frames.copy(), dict[int, dict[str, Any]]()
    for row, fields in details.items():
        noted[row] = dict(fields)
        found = LINE.findall(fields.get(_TRACE, "")[:_MAX_TRACE])
        if found:
            # The innermost frames may be those of the tracer.
            file, line, name = next((each for each in reversed(found) if is_own(each[0])), found[-1])
            old_file, old_name, old_line = frames[row].tolist()
            noted[row][_PLACE] = [strings[old_file], strings[old_name], old_line]
            placed[row] = np.array((number(file), number(name[:_MAX_NAME]), int(line)), FRAME)
    return placed, tuple(words), noted


def generated_place(noted: Mapping[str, Any]) -> Frame | None:
    """Return the place in the generated file that a note about a frame has; None if it has none."""
    place = noted.get(_PLACE)
    if isinstance(place, list | tuple) and list(map(type, place)) == [str, str, int] and 0 <= place[2] < 1 << 32:
        return Frame(*place)
    return None


def frame_details(noted: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the keys and texts that torch.fx added to a frame."""
    return tuple((key, text) for key, text in noted.items() if key.startswith("fx_") and type(text) is str)
