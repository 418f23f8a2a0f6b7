"""Random number generators, seeds and states, under PyTorch's names where it has them.

Functions called without a device use the CPU, as PyTorch's. No function here opens a device.
"""

from __future__ import annotations

from forebay.runtime.random.fork_rng import fork_rng
from forebay.runtime.random.generator import (
    Generator,
    default_generator,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from forebay.runtime.random.launch_geometry import Geometry

__all__ = [
    "Generator",
    "Geometry",
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "thread_safe_generator",
]


def thread_safe_generator() -> Generator | None:
    """Return None, for the default generator: there are no workers of a data loader.

    As `torch.random.thread_safe_generator`.
    """
    return None
