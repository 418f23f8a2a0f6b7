"""Scripted failures of the fake backend."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fault", "Faults"]


@dataclass
class Fault:
    """A scripted failure, raised once.

    A test that tries every possible failure ends when the last one is not `hit`.
    """

    call: str  #: name of the method that fails; "" for any method
    left: int  #: number of calls that still succeed
    error: Exception  #: the error to raise
    hit: bool = False  #: whether the failure was raised


class Faults:
    """The scripted failures that are still to be raised."""

    def __init__(self) -> None:
        self._pending: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Add a failure.

        Parameters
        ----------
        fault : Fault
            The failure.

        Raises
        ------
        ValueError
            If the number of calls that still succeed is negative.
        """
        if fault.left < 0:
            raise ValueError(f"a failure cannot occur after {fault.left} calls")
        self._pending.append(fault)
        return fault

    def due(self, call: str) -> Exception | None:
        """Count a call and return its error; None if the call succeeds.

        Parameters
        ----------
        call : str
            Name of the method.
        """
        due: Fault | None = None
        for fault in self._pending:
            if fault.call in ("", call):
                fault.left -= 1
                if fault.left < 0 and due is None:
                    due = fault
        if due is None:
            return None
        self._pending.remove(due)
        due.hit = True
        return due.error
