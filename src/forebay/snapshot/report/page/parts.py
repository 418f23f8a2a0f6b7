"""Parts that the report and the viewer share."""

from __future__ import annotations

from forebay._base.html_repr import escape_text

__all__ = ["BRAND", "DEFINITIONS"]

BRAND = (
    '<div class="brand"><svg viewBox="0 0 32 32" aria-hidden="true">'
    '<path class="gate" d="M5 4h4v24H5zM23 4h4v24h-4zM3 4h26v3H3z"/>'
    '<path class="water" d="M11 15c2-2 3-2 5 0s3 2 5 0v4c-2 2-3 2-5 0s-3-2-5 0zM11 22c2-2 3-2 5 0s3 2'
    ' 5 0v5H11z"/></svg>forebay</div>'
)

_TEXT = (
    "Allocated: bytes that the program requested and has not freed. Reserved: device memory that the allocator "
    "holds in segments. Site: the innermost frame of the user's own code, or else of a library. Fragmentation: the "
    "share of the free bytes in segments that is not in the largest free block."
)
DEFINITIONS = f"<p>{escape_text(_TEXT)}</p>"
