"""The accelerator's generators. (`torch.accelerator.random`)"""

from __future__ import annotations

from typing import Any

from forebay._base.device_spec import DeviceLike
from forebay.accelerator._kind import accelerator
from forebay.accelerator._utils import _index_or_current
from forebay.names.random import RandomFunctions
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["get_rng_state", "get_rng_state_all", "initial_seed"]


# Written by tools/write_names.py from tools/names/random.toml: edit the table, not these lines.


def initial_seed(device: DeviceLike | None = None, /) -> int:
    """Return the seed of the device's generator.

    As `torch.accelerator.random.initial_seed`. Initialises the kind.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default, also for -1.

    Returns
    -------
    int
        The seed.
    """
    return RandomFunctions(accelerator()).generator(_index_or_current(device)).initial_seed()


def get_rng_state(device: DeviceLike | None = None, /) -> Tensor:
    """Return the state of the device's generator.

    As `torch.accelerator.random.get_rng_state`. Initialises the kind.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default, also for -1.

    Returns
    -------
    Tensor
        Bytes in the format of the kind.
    """
    return RandomFunctions(accelerator()).get_rng_state(_index_or_current(device))


# End of the written lines.


def get_rng_state_all() -> list[Tensor]:
    """Return the states of the generators of all devices of the kind. Initialises the kind."""
    return RandomFunctions(accelerator()).get_rng_state_all()
