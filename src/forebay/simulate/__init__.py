"""The caching allocator over simulated memory, with the real one's decisions, addresses, statistics and errors.

No memory is allocated, so terabytes cost nothing. Segments get the lowest free address in steps of 2 MiB, as in the
PyTorch recordings in `tests/data`. Streams are numbers; 0 is the default stream. Work on a stream completes immediately
unless `hold_events` delays it.
"""

from forebay.simulate.clock import World
from forebay.simulate.device import Device
from forebay.simulate.pinned import Pinned

__all__ = ["Device", "Pinned", "World"]
