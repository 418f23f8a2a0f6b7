"""Checks of the kernels that a program launches, against the limits of a card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from forebay._base.byte_sizes import format_bytes

__all__ = ["KernelCheck", "merged"]


class KernelCheck(NamedTuple):
    """A compiled kernel: its use of a multiprocessor, and its accesses outside the memory of tensors."""

    kernel: str  #: the name of the kernel
    line: str  #: its file and line
    target: str  #: for which it was compiled, such as "sm_90"
    warps: int  #: the number of warps of a program
    shared: int  #: bytes of shared memory of a program
    most_shared: int  #: those that a program may have on the card
    registers: int | None  #: those of a thread; None if no machine code was made
    spilled: int | None  #: bytes of the stack of a thread, to which registers are spilled
    outside: tuple[str, ...] = ()  #: sentences about accesses outside the memory of tensors

    @property
    def is_too_large(self) -> bool:
        """True if the card has not enough shared memory for the kernel."""
        return self.shared > self.most_shared

    @property
    def has_findings(self) -> bool:
        """True if there is something to change."""
        return self.is_too_large or bool(self.spilled) or bool(self.outside)

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {**self._asdict(), "outside": [*self.outside], "too_large": self.is_too_large}

    def sentences(self) -> Iterator[str]:
        """Yield what the kernel takes, then what is to change."""
        threads = "" if self.registers is None else f", {self.registers} registers a thread"
        warps = "1 warp" if self.warps == 1 else f"{self.warps} warps"
        yield f"{self.target}: {warps}, {format_bytes(self.shared)} of shared memory{threads}"
        if self.is_too_large:
            yield f"does not fit: the card has {format_bytes(self.most_shared)} of shared memory for a program"
        if self.spilled:
            yield f"spills {self.spilled:,} bytes a thread to memory: use more warps, or smaller blocks"
        yield from self.outside


def merged(checks: Iterable[KernelCheck]) -> tuple[KernelCheck, ...]:
    """Return the checks of several processes, each kernel once, those with findings first."""
    found: dict[tuple[Any, ...], KernelCheck] = {}
    for each in checks:
        before = found.setdefault(each[:-1], each)
        if before is not each:
            found[each[:-1]] = before._replace(outside=tuple(dict.fromkeys((*before.outside, *each.outside))))
    return tuple(sorted(found.values(), key=lambda each: not each.has_findings))
