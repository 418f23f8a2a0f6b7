"""Match of allocations with their frees: native/snapshot/lifetimes.hpp over the rows of a snapshot."""

import numpy as np
from numpy.typing import NDArray

def match(
    trace: bytes | NDArray[np.uint8], blocks: bytes | NDArray[np.uint8], segments: bytes | NDArray[np.uint8]
) -> bytes:
    """Return the lifetimes of all allocations, as bytes of rows; the arguments are the bytes of the tables.

    Raises ValueError if the arguments are no rows, and IndexError if a block is in no segment.
    """
