"""Random numbers of CUDA devices. (`torch.cuda.random`)"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.cuda._kind import CUDA
from forebay.device_spec import Device
from forebay.faces.random import Randoms
from forebay.runtime.random.generator import Generator

__all__ = [
    "generator",
    "get_offset",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "named",
    "seed",
    "seed_all",
    "set_offset",
    "set_rng_state",
    "set_rng_state_all",
]

_RANDOMS = Randoms(CUDA)
get_rng_state_all = _RANDOMS.get_rng_state_all
set_rng_state_all = _RANDOMS.set_rng_state_all
manual_seed = _RANDOMS.manual_seed
manual_seed_all = _RANDOMS.manual_seed_all
seed = _RANDOMS.seed
seed_all = _RANDOMS.seed_all
initial_seed = _RANDOMS.initial_seed


def get_rng_state(device: Any = "cuda") -> NDArray[np.uint8]:
    """The state of the device's generator: 16 bytes, seed and offset. Initialises CUDA.

    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     cuda.manual_seed(123)
    ...     cuda.get_rng_state()[:2].tolist()
    [123, 0]
    """
    if device == "cuda" and (known := _RANDOMS.at_hand()) is not None:
        return known.get_state()
    return _RANDOMS.get_rng_state(device)


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Let the device's generator go on from a state that `get_rng_state` gave, here or in PyTorch.

    RuntimeError, TypeError for what is no state.
    """
    _RANDOMS.set_rng_state(new_state, device)


def get_offset(device: Any = "cuda") -> int:
    """How many words each thread of the device has drawn. (`torch.cuda._get_rng_state_offset`)"""
    return _RANDOMS.get_offset(device)


def set_offset(offset: int, device: Any = "cuda") -> None:
    """Where the device's generator goes on, a multiple of 4. (`torch.cuda._set_rng_state_offset`)"""
    _RANDOMS.set_offset(offset, device)


def generator(device: Any) -> Generator:
    """The device's generator. (`torch.cuda._get_generator`)"""
    return _RANDOMS.generator(device)


def named(device: Any) -> Device:
    """The device under its name; an int is an index. (`torch.cuda._get_device`)"""
    return Device("cuda", device) if isinstance(device, int) else Device(device)
