"""Random numbers of MTIA devices. Seeds wait for MTIA's first use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.faces.random import Randoms
from forebay.mtia._kind import MTIA

__all__ = [
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

_RANDOMS = Randoms(MTIA)
get_rng_state_all = _RANDOMS.get_rng_state_all
set_rng_state_all = _RANDOMS.set_rng_state_all
manual_seed = _RANDOMS.manual_seed
manual_seed_all = _RANDOMS.manual_seed_all
seed = _RANDOMS.new_seed  # unlike CUDA's they give it
seed_all = _RANDOMS.new_seed_all


def initial_seed() -> int:
    """The seed of the current device's generator. Initialises MTIA. (`torch.mtia.initial_seed`)"""
    MTIA.initialisation.ensure()
    return _RANDOMS.initial_seed()


def get_rng_state(device: Any = "mtia") -> NDArray[np.uint8]:
    """The state of the device's generator: 16 bytes, seed and offset. Initialises MTIA.

    IndexError where there is no such device. (`torch.mtia.get_rng_state`)

    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     mtia.manual_seed(123)
    ...     mtia.get_rng_state()[:2].tolist()
    [123, 0]
    """
    if device == "mtia" and (known := _RANDOMS.at_hand()) is not None:
        return known.get_state()
    MTIA.initialisation.ensure()
    return _RANDOMS.get_rng_state(MTIA.index(device, optional=True))


def set_rng_state(new_state: Any, device: Any = "mtia") -> None:
    """Let the device's generator go on from a state that `get_rng_state` gave.

    RuntimeError, TypeError for what is no state. (`torch.mtia.set_rng_state`)
    """
    _RANDOMS.set_rng_state(new_state, MTIA.index(device, optional=True))
