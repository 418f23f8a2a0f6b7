"""Random numbers: generators, their seeds and their states. PyTorch's names where it has them.

A device without a name in the call is the current one. No function here opens a device.
"""

from __future__ import annotations

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
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]
