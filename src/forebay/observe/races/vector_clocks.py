"""Happens-before order of streams, events and the host, as vector clocks."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

__all__ = ["DEFAULT_STREAM_ID", "LATE_START", "UNKNOWN", "StreamSynchronizations", "logger"]

DEFAULT_STREAM_ID = 0

logger: Final = logging.getLogger("forebay.cuda._sanitizer")
LATE_START = "Perhaps the sanitizer was enabled after some forebay operations?"
UNKNOWN = f"Found %s: %s, but no matching %s in the trace. Backfilling the trace now. {LATE_START}"

_S = TypeVar("_S", bound=Hashable)
_E = TypeVar("_E", bound=Hashable)


class StreamSynchronizations(Generic[_S, _E]):
    """Vector clocks: for each stream, the number of the last work of every other stream that it is ordered after.

    As `torch.cuda._sanitizer.StreamSynchronizations`. Unknown streams and events are created when first named. Every
    piece of work must be reported by `update_seq_num`. All streams, later ones too, are ordered after work that the
    host waited for.

    Examples
    --------
    >>> clocks = StreamSynchronizations()
    >>> clocks.update_seq_num("a", 1)
    >>> clocks.record_state("event", "a")
    >>> before = clocks.is_ordered_after("b", 1, "a")
    >>> clocks.stream_wait_for_event("b", "event")
    >>> before, clocks.is_ordered_after("b", 1, "a")
    (False, True)
    """

    def __init__(self) -> None:
        self.current_sync_states: dict[_S | int, dict[_S | int, int]] = {}
        self.recorded_sync_states: dict[_E, dict[_S | int, int]] = {}
        self.host_sync_state: dict[_S | int, int] = {}
        self.create_stream(DEFAULT_STREAM_ID)

    def create_stream(self, stream: _S | int) -> None:
        """Add a stream. Does nothing if the stream is known."""
        if stream in self.current_sync_states:
            logger.info(
                "Found duplicate Stream creation in the trace for Stream with id: %s. PyTorch Streams are only created "
                "once, so this trace entry is ignored.",
                stream,
            )
            return
        self.host_sync_state[stream] = 0
        self.current_sync_states[stream] = dict(self.host_sync_state)

    def create_event(self, event: _E) -> None:
        """Add an event, or reset a known one."""
        if event in self.recorded_sync_states:
            logger.info(
                "Found duplicate event creation in the trace for event with id: %s. Assuming the trace for event "
                "deletion wasn't caught and backfilling it now. %s",
                event,
                LATE_START,
            )
        self.recorded_sync_states[event] = {}

    def delete_event(self, event: _E) -> None:
        self._recorded(event)
        del self.recorded_sync_states[event]

    def update_seq_num(self, stream: _S | int, seq_num: int) -> None:
        """Report work with number `seq_num` queued on the stream."""
        self._state(stream)[stream] = seq_num

    def record_state(self, event: _E, stream: _S | int) -> None:
        self.recorded_sync_states[event] = dict(self._state(stream))

    def stream_wait_for_event(self, stream: _S | int, event: _E) -> None:
        _merge([self._state(stream)], self._recorded(event))

    def stream_wait_for_stream(self, stream: _S | int, other: _S | int) -> None:
        _merge([self._state(stream)], self._state(other))

    def all_streams_wait_for_event(self, event: _E) -> None:
        """Report that the host waited for the event."""
        _merge([*self.current_sync_states.values(), self.host_sync_state], self._recorded(event))

    def all_streams_wait_for_stream(self, stream: _S | int) -> None:
        """Report that the host waited for the stream."""
        state = dict(self._state(stream))
        _merge([*self.current_sync_states.values(), self.host_sync_state], state)

    def sync_all_streams(self) -> None:
        """Report that the host waited for all streams."""
        for stream, state in self.current_sync_states.items():
            self.host_sync_state[stream] = state[stream]
        _merge(self.current_sync_states.values(), self.host_sync_state)

    def is_ordered_after(self, current_stream: _S | int, seq_num: int, other_stream: _S | int) -> bool:
        """Return True if new work of the stream is ordered after the other stream's work with number `seq_num`."""
        self._state(other_stream)
        return seq_num <= self._state(current_stream).get(other_stream, -1)

    def _state(self, stream: _S | int) -> dict[_S | int, int]:
        if stream not in self.current_sync_states:
            logger.info(UNKNOWN, "Stream with id", stream, "stream creation")
            self.create_stream(stream)
        return self.current_sync_states[stream]

    def _recorded(self, event: _E) -> dict[_S | int, int]:
        if event not in self.recorded_sync_states:
            logger.info(UNKNOWN, "Event with id", event, "event creation")
            self.create_event(event)
        return self.recorded_sync_states[event]


def _merge(states: Iterable[dict[_S | int, int]], other: dict[_S | int, int]) -> None:
    """Raise each number of the states to that of `other`."""
    for state in states:
        for stream, seq_num in other.items():
            if seq_num > state.get(stream, -1):
                state[stream] = seq_num
