"""The name of a device: a kind and, perhaps, an index."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Device"]

_SPELLING = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]*))?")


@dataclass(frozen=True, slots=True, init=False)
class Device:
    """Which device is meant: `Device("host:0")`, `Device("host", 0)`, or `Device("host")` for the current one.

    A name only: making one opens nothing, and the device need not exist. Raises ValueError for a spelling that
    cannot name a device. (`torch.device`)

    >>> Device("host:1")
    device('host:1')
    >>> Device("host", 1) == Device("host:1")
    True
    """

    kind: str
    index: int | None

    def __init__(self, name: str | Device, index: int | None = None) -> None:
        if isinstance(name, Device):
            kind, spelled = name.kind, name.index
        else:
            match = _SPELLING.fullmatch(name) if isinstance(name, str) else None
            if match is None:
                raise ValueError(f"invalid device {name!r}: expected a kind and perhaps an index, like 'host:0'")
            kind, spelled = match[1], int(match[2]) if match[2] else None
        if index is not None and spelled is not None:
            raise ValueError(f"device {name!r} has an index already, so index={index!r} cannot be given too")
        if index is not None and (not isinstance(index, int) or isinstance(index, bool) or index < 0):
            raise ValueError(f"invalid device index {index!r}: expected an int that is not negative")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "index", spelled if index is None else index)

    @property
    def type(self) -> str:
        """The kind, under PyTorch's name for it."""
        return self.kind

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"
