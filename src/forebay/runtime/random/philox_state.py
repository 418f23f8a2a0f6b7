"""The position of a generator in Philox's sequence, which several generators can share.

# Note [Positions of draws]
Numbers equal PyTorch's on a GPU bit for bit, so each draw takes as many words as CUDA's kernel: what each of its
threads draws, rounded up to a multiple of 4, whatever the tensor needs (`launch_geometry`). The position is one tuple
that is replaced under a lock, so that threads draw different numbers and a reader needs no lock. A captured draw has an
offset from the start of the replay; each launch inserts seed and offset, and advances each state by all draws of the
graph, so that draws outside and inside graphs interleave as on a GPU. A graph has the states, not the generators, which
may get another one. Rejected: a sequence for each thread, and a position that counts elements.
Test: tests/runtime/random/test_fill.py::test_offset_advances_as_in_pytorch,
  tests/runtime/graphs/test_random_numbers.py::test_replays_continue_the_generators_sequence
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forebay.runtime.base import capture_state
from forebay.runtime.devices.current import local

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["PhiloxState", "after_fork_in_child"]

_UINT64_MAX = (1 << 64) - 1

_lock = threading.RLock()  # guards every position; reentrant, since a destructor may run while it is held


class PhiloxState:
    """A seed and an offset in words. Generators share it after `graphsafe_set_state`, and graphs draw from it."""

    __slots__ = ("position",)

    def __init__(self, seed: int, offset: int = 0) -> None:
        self.position: tuple[int, int] = seed, offset  # one tuple, so that reading it needs no lock

    def set(self, seed: int, offset: int) -> None:
        with _lock:
            self.position = seed, offset

    def set_offset(self, offset: int) -> None:
        with _lock:
            self.position = self.position[0], offset

    def advance(self, words: int, opened: OpenDevice | None = None) -> tuple[int, int]:
        """Return the seed and offset, and advance the offset by the words, rounded up to a multiple of 4.

        For work on this thread's current stream on a device; if that stream is captured, return the source number and
        relative offset of `spi.Captures`, and advance those of the capture. Without a device, of no stream.
        """
        if capture_state.active and opened is not None:
            stream = local.state.streams.get(opened)
            if stream is not None and (capture := stream.capture) is not None:
                return capture.draw(self, words)
        with _lock:
            seed, offset = self.position
            self.position = seed, (offset + -(-words // 4) * 4) & _UINT64_MAX
            return seed, offset


def after_fork_in_child() -> None:
    """Replace the lock in a forked child, as a thread of the parent may have held it. Positions are kept."""
    global _lock  # noqa: PLW0603 -- as above
    _lock = threading.RLock()
