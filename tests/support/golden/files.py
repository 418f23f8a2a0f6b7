"""Golden traces as files, and what they hold in forebay's words.

A trace is JSON lines, mostly packed (.jsonl.xz): a header, then an operation a line with what PyTorch's allocator said
and was after it; a line with only `i` and `op` was done and not recorded. The writer of our own traces,
tests/data/make_golden.py, says what the operations are.
"""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.runtime.allocator import oom_message

__all__ = ["NotGolden", "Trace", "name_of_address", "read", "text_in_our_words"]

_DEVICE_MEMORY, _A_DEVICE = 0x100000000000, 0x040000000000
_ADDRESS_SPACE = 0x200000000000
_DEFAULT_TOTAL = 150110011392  # an H200's, where the header names none
_TITLE = re.compile(r"PyTorch( CUDA memory summary, device ID \d+ *) \|")
_DOCUMENTATION = re.compile(r"https://(?:docs\.)?pytorch\.org/[^\s)]+")


class NotGolden(ValueError):
    """The file is missing, or it is no golden trace."""


@dataclass
class Trace:
    """One file: how the devices were made, and a dict for each operation."""

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
    """The trace in a file, which may be packed with xz."""
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
        raise NotGolden(f"{path}: no golden trace ({type(error).__name__}: {error})") from None
    if not records:
        raise NotGolden(f"{path}: no golden trace: it has no operations")
    return trace


def name_of_address(address: int) -> str:
    """An address as the traces write it: relative to its device's memory, or to the space for growing segments."""
    if address == 0:
        return "null"
    if _DEVICE_MEMORY <= address < _ADDRESS_SPACE:
        device, offset = divmod(address - _DEVICE_MEMORY, _A_DEVICE)
        return f"d{device}+{offset:#x}"
    if _ADDRESS_SPACE <= address < 2 * _ADDRESS_SPACE:
        return f"v+{address - _ADDRESS_SPACE:#x}"
    return hex(address)


def text_in_our_words(text: str) -> str:
    """PyTorch's sentence as forebay says it."""
    text = _TITLE.sub(r"forebay\1|", text)  # the table stays as wide as it was
    text = _DOCUMENTATION.sub(oom_message.DOCUMENTATION, text)
    return text.replace("PYTORCH_CUDA_ALLOC_CONF", "FOREBAY_ALLOC_CONF").replace("PyTorch", "forebay")
