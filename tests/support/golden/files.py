"""Golden trace files, and the conversion of PyTorch's texts and addresses to forebay's.

A trace is a file of JSON lines, usually compressed (.jsonl.xz): a header, then one operation per line with its result
in PyTorch and the allocator's state after it. A line with only `i` and `op` has no recorded result. The writer,
tests/data/make_golden.py, documents the operations.
"""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.runtime.allocator import oom_message

__all__ = ["NotGolden", "Trace", "as_forebay_text", "name_of_address", "read"]

_DEVICE_MEMORY, _DEVICE_STRIDE = 0x100000000000, 0x040000000000
_ADDRESS_SPACE = 0x200000000000
_DEFAULT_TOTAL = 150110011392  # an H200's, if the header has none
_DOCUMENTATION = re.compile(r"https://(?:docs\.)?pytorch\.org/[^\s)]+")


class NotGolden(ValueError):
    """Error for a file that is missing or not a golden trace."""


@dataclass
class Trace:
    """Contents of a file: the configuration of the devices, and one record per operation."""

    config: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def devices(self) -> int:
        return int(self.config.get("devices", 1))

    @property
    def settings(self) -> str:
        return str(self.config.get("conf", ""))

    @property
    def total_memory(self) -> int:
        if "total_mb" in self.config:
            return int(self.config["total_mb"]) << 20
        return int(self.config.get("total_bytes", _DEFAULT_TOTAL))

    @property
    def other_used(self) -> int:
        return int(self.config.get("context_mb", 0)) << 20


def read(path: str | Path) -> Trace:
    """Read a trace from a file, which may be compressed with xz."""
    path = Path(path)
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        first, *lines = [json.loads(line) for line in data.decode().splitlines() if line]
        records = [line for line in lines if isinstance(line["i"], int) and isinstance(line["op"]["op"], str)]
        trace = Trace(dict(first["header"]["config"]), records)
    except OSError as error:
        raise NotGolden(f"{path}: {error.strerror or error}") from None
    except (lzma.LZMAError, ValueError, LookupError, TypeError) as error:
        raise NotGolden(f"{path}: not a golden trace ({type(error).__name__}: {error})") from None
    if not records:
        raise NotGolden(f"{path}: not a golden trace: it has no operations")
    return trace


def name_of_address(address: int) -> str:
    """Return an address as in the traces: relative to the memory of its device, or to that of expandable segments."""
    if address == 0:
        return "null"
    if _DEVICE_MEMORY <= address < _ADDRESS_SPACE:
        device, offset = divmod(address - _DEVICE_MEMORY, _DEVICE_STRIDE)
        return f"d{device}+{offset:#x}"
    if _ADDRESS_SPACE <= address < 2 * _ADDRESS_SPACE:
        return f"v+{address - _ADDRESS_SPACE:#x}"
    return hex(address)


def as_forebay_text(text: str) -> str:
    """Return a text of PyTorch as forebay has it."""
    text = _DOCUMENTATION.sub(oom_message.DOCUMENTATION, text)
    return text.replace("PYTORCH_CUDA_ALLOC_CONF", "FOREBAY_ALLOC_CONF").replace("PyTorch", "forebay")
