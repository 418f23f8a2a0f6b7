"""Random number functions of `forebay.mps`."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay._base.device_spec import DeviceLike
from forebay.mps._kind import MPS, require_backend
from forebay.names.random import RandomFunctions
from forebay.runtime.devices.current import current_index
from forebay.runtime.random.generator import Generator, RngState, default_generator
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["generator", "generator_if_available", "get_rng_state", "manual_seed", "seed", "set_rng_state"]

_RANDOMS = RandomFunctions(MPS)


def generator() -> Generator:
    """Return the current device's generator, shared with `forebay.random`.

    Does not initialise MPS. Raises Forked after a fork of a process that used it.
    (`torch.mps._get_default_mps_generator`)
    """
    require_backend("getDefaultGenerator")
    MPS.initialisation.check_fork()
    return _default()


def generator_if_available() -> Generator | None:
    """Return the current device's generator, or None without a device. (`torch.mps._default_mps_generator`)"""
    return _default() if MPS.count() else None


def _default() -> Generator:
    return default_generator(MPS.device_at(current_index(MPS.name)))


# Written by tools/write_names.py from tools/names/random.toml: edit the table, not these lines.


def get_rng_state(device: DeviceLike = "mps") -> Tensor:  # noqa: ARG001 -- PyTorch's signature; there is one device
    """Return the state of the device's generator.

    As `torch.mps.get_rng_state`. Does not initialise MPS.

    Parameters
    ----------
    device : object, default "mps"
        Ignored, as in PyTorch.

    Returns
    -------
    Tensor
        44 bytes in PyTorch's format.

    Raises
    ------
    ForebayError
        If there is no MPS device.

    Examples
    --------
    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     state = mps.get_rng_state()
    ...     first = forebay.rand(3, device="mps").tolist()
    ...     mps.set_rng_state(state)
    ...     first == forebay.rand(3, device="mps").tolist()
    True
    """
    initialised = _RANDOMS.initialised_generator()
    return (generator() if initialised is None else initialised).get_state()


def set_rng_state(new_state: RngState, device: DeviceLike = "mps") -> None:  # noqa: ARG001 -- as above
    """Set the state of the device's generator.

    As `torch.mps.set_rng_state`. Does not initialise MPS.

    Parameters
    ----------
    new_state : Tensor or numpy.ndarray
        A state that `get_rng_state` returned, here or in PyTorch.
    device : object, default "mps"
        Ignored, as in PyTorch.

    Raises
    ------
    RuntimeError
        If the state has the wrong size.
    TypeError
        If `new_state` is not an array of uint8.
    ForebayError
        If there is no MPS device.
    """
    state = np.ascontiguousarray(new_state) if isinstance(new_state, np.ndarray) else new_state
    generator().set_state(state)


def seed() -> None:
    """Seed the device's generator with a random number.

    As `torch.mps.seed`. Does not initialise MPS.

    Raises
    ------
    ForebayError
        If there is no MPS device.
    """
    generator().seed()


def manual_seed(seed: int) -> None:
    """Seed the device's generator; do nothing without a device.

    As `torch.mps.manual_seed`. Does not initialise MPS.

    Parameters
    ----------
    seed : int
        From -2**63 to 2**64 - 1; negative seeds are taken modulo 2**64.
    """
    initialised = _RANDOMS.initialised_generator()
    if initialised is not None or MPS.count():
        (_default() if initialised is None else initialised).manual_seed(int(seed))


# End of the written lines.
