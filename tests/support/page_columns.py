"""A second reader of the report page's columns: that of the page itself is TypeScript."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def devices(page: str) -> list[dict[str, Any]]:
    """Return the data of each device of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


def decode(layout: dict[str, list[int]], packed: str) -> dict[str, NDArray[np.int64]]:
    """Return the columns by name."""
    content, columns, at = zlib.decompress(base64.b64decode(packed)), {}, 0
    for name, (count, width, steps) in layout.items():
        planes = np.frombuffer(content, np.uint8, count * width, at).reshape(width, count)
        at += count * width
        numbers = np.zeros(count, np.int64)
        for power, plane in enumerate(planes):
            numbers |= plane.astype(np.int64) << (8 * power)
        signed = np.where(numbers & 1, -(numbers >> 1) - 1, numbers >> 1)
        columns[name] = np.cumsum(signed) if steps else signed
    assert at == len(content)
    return columns
