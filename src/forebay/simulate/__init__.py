"""The allocator over simulated memory: every decision, address, number and error of the real one, and no bytes.

Memory goes lowest address first, in steps of 2 MiB, as PyTorch's recordings in `tests/data` have it; terabytes cost
nothing. Streams are numbers, 0 is the default one. Work on them is done at once, unless `hold_events` says otherwise.
"""

from forebay.simulate.clock import World
from forebay.simulate.device import Device
from forebay.simulate.pinned import Pinned

__all__ = ["Device", "Pinned", "World"]
