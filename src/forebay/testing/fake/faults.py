"""What a test wants to go wrong, and when."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fault", "Faults"]


@dataclass
class Fault:
    """One failure to come. `hit` tells whether it has: a test of every possible failure ends when the last was not."""

    call: str  # empty: any
    left: int  # so many calls still succeed
    error: Exception
    hit: bool = False


class Faults:
    """The failures that are still to come; each comes once."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        if fault.left < 0:
            raise ValueError(f"a failure cannot come after {fault.left} calls")
        self._waiting.append(fault)
        return fault

    def due(self, call: str) -> Exception | None:
        """Counts this call; gives the failure that has come, if one has."""
        found: Fault | None = None
        for fault in self._waiting:
            if fault.call in ("", call):
                fault.left -= 1
                if fault.left < 0 and found is None:
                    found = fault
        if found is None:
            return None
        self._waiting.remove(found)
        found.hit = True
        return found.error
