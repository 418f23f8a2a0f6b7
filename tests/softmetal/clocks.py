"""Clocks: which pass of each queue is known to have ended, by the queue's number.

Queues learn clocks from events and fences; at its commit a command buffer gets what the CPU has observed by then.
"""

from __future__ import annotations

from typing import Any

from .control import control

Clock = dict[int, int]
_observed: Clock = {}  # what the CPU knows
_MAX_SIGNALS = 64  # of an event whose clocks are kept; older ones are joined


def merge(into: Clock, other: Clock) -> None:
    """Add to a clock what another one knows."""
    for queue, number in other.items():
        if into.get(queue, 0) < number:
            into[queue] = number


def observe(clock: Clock) -> None:
    """Remember that the CPU has seen that passes have ended."""
    with control.lock:
        merge(_observed, clock)


def observed() -> Clock:
    """Return what the CPU knows."""
    with control.lock:
        return dict(_observed)


def publish(engine: Any, state: Any, value: int) -> None:
    """Remember with a value of an event which passes have ended: all earlier ones of the queue that signals."""
    clock = {**engine.known, engine.number: engine.passes}
    with state.changed:
        state.signals.append((value, clock))
        if len(state.signals) > _MAX_SIGNALS:
            (_, first), (at, second) = state.signals[:2]
            merge(second, first)
            state.signals[:2] = [(at, second)]


def implied(state: Any, value: int) -> Clock:
    """Return what an event's value implies."""
    found: Clock = {}
    with state.changed:
        for at, clock in state.signals:
            if at <= value:
                merge(found, clock)
    return found
