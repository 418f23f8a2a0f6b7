"""Which work of which stream comes before what: vector clocks of streams, events and the host."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["DEFAULT_STREAM_ID", "StreamSynchronizations"]

DEFAULT_STREAM_ID = 0

_S = TypeVar("_S", bound=Hashable)
_E = TypeVar("_E", bound=Hashable)


class StreamSynchronizations(Generic[_S, _E]):
    """For each stream the last work, by its number, of each other stream that it comes after.

    Streams and events that nobody made known are made when they are named. `update_seq_num` is told of all work; what
    the host waits for, all streams come after, also those that are made later. (`torch.cuda._sanitizer`)

    >>> orders = StreamSynchronizations()
    >>> orders.update_seq_num("a", 1)
    >>> orders.record_state("event", "a")
    >>> before = orders.is_ordered_after("b", 1, "a")
    >>> orders.stream_wait_for_event("b", "event")
    >>> before, orders.is_ordered_after("b", 1, "a")
    (False, True)
    """

    def __init__(self) -> None:
        self.current_sync_states: dict[_S | int, dict[_S | int, int]] = {}
        self.recorded_sync_states: dict[_E, dict[_S | int, int]] = {}
        self.host_sync_state: dict[_S | int, int] = {}
        self.create_stream(DEFAULT_STREAM_ID)

    def create_stream(self, stream: _S | int) -> None:
        """Twice is once."""
        self._state(stream)

    def create_event(self, event: _E) -> None:
        """One of that name that was there before is forgotten."""
        self.recorded_sync_states[event] = {}

    def delete_event(self, event: _E) -> None:
        self.recorded_sync_states.pop(event, None)

    def update_seq_num(self, stream: _S | int, seq_num: int) -> None:
        """The stream has got new work of that number."""
        self._state(stream)[stream] = seq_num

    def record_state(self, event: _E, stream: _S | int) -> None:
        self.recorded_sync_states[event] = dict(self._state(stream))

    def stream_wait_for_event(self, stream: _S | int, event: _E) -> None:
        _catch_up([self._state(stream)], self._recorded(event))

    def stream_wait_for_stream(self, stream: _S | int, other: _S | int) -> None:
        _catch_up([self._state(stream)], self._state(other))

    def all_streams_wait_for_event(self, event: _E) -> None:
        """The host has."""
        _catch_up([*self.current_sync_states.values(), self.host_sync_state], self._recorded(event))

    def all_streams_wait_for_stream(self, stream: _S | int) -> None:
        """The host has."""
        state = dict(self._state(stream))
        _catch_up([*self.current_sync_states.values(), self.host_sync_state], state)

    def sync_all_streams(self) -> None:
        """The host has waited for all."""
        for stream, state in self.current_sync_states.items():
            self.host_sync_state[stream] = state[stream]
        _catch_up(self.current_sync_states.values(), self.host_sync_state)

    def is_ordered_after(self, current_stream: _S | int, seq_num: int, other_stream: _S | int) -> bool:
        """Whether new work of the stream comes after the other's of that number."""
        self._state(other_stream)
        return seq_num <= self._state(current_stream).get(other_stream, -1)

    def _state(self, stream: _S | int) -> dict[_S | int, int]:
        known = self.current_sync_states.get(stream)
        if known is None:
            self.host_sync_state[stream] = 0
            known = self.current_sync_states[stream] = dict(self.host_sync_state)
        return known

    def _recorded(self, event: _E) -> dict[_S | int, int]:
        return self.recorded_sync_states.setdefault(event, {})


def _catch_up(states: Iterable[dict[_S | int, int]], other: dict[_S | int, int]) -> None:
    for state in states:
        for stream, seq_num in other.items():
            if seq_num > state.get(stream, -1):
                state[stream] = seq_num
