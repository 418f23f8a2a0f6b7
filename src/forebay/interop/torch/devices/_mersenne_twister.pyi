"""The Mersenne Twister of PyTorch's generator of the CPU, without its numbers."""

from typing import Any

# Advance a state, as many words of 64 bits, by a number of draws of 32 bits. ValueError if it is no state.
def advance(words: Any, count: int) -> None: ...
