"""The accelerator's generators. (`torch.accelerator.random`)"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.accelerator._kind import accelerator
from forebay.accelerator._utils import _index_or_current
from forebay.faces.random import Randoms

__all__ = ["get_rng_state", "get_rng_state_all", "initial_seed"]


def initial_seed(device: Any = None, /) -> int:
    """The seed of the device's generator; -1 is the current device. Initialises the kind."""
    return Randoms(accelerator()).generator(_index_or_current(device)).initial_seed()


def get_rng_state(device: Any = None, /) -> NDArray[np.uint8]:
    """The state of the device's generator, in the kind's form; -1 is the current device. Initialises the kind."""
    return Randoms(accelerator()).get_rng_state(_index_or_current(device))


def get_rng_state_all() -> list[NDArray[np.uint8]]:
    """The states of all the kind's devices. Initialises the kind."""
    return Randoms(accelerator()).get_rng_state_all()
