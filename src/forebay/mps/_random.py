"""Random numbers of the MPS device, for `forebay.mps` to list."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.faces.random import Randoms
from forebay.mps._kind import MPS, check_there_for
from forebay.runtime.devices.current import current_index
from forebay.runtime.random.generator import Generator, default_generator

__all__ = ["generator", "generator_if_there", "get_rng_state", "manual_seed", "seed", "set_rng_state"]

_RANDOMS = Randoms(MPS)


def generator() -> Generator:
    """The device's generator, the same that `forebay.random` has. (`torch.mps._get_default_mps_generator`)

    To ask is no first use: PyTorch knows none of MPS. Forked where the parent process used the device.
    """
    check_there_for("getDefaultGenerator")
    MPS.initialisation.check_fork()
    return _default()


def generator_if_there() -> Generator | None:
    """The same; None where there is no device. (`torch.mps._default_mps_generator`)"""
    return _default() if MPS.count() else None


def _default() -> Generator:
    return default_generator(MPS.named(current_index(MPS.name)))


def get_rng_state(device: Any = "mps") -> NDArray[np.uint8]:  # noqa: ARG001 -- PyTorch's signature; there is one device
    """The state of the device's generator: 44 bytes, in PyTorch's form. What `device` says does not matter, as there.

    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     state = mps.get_rng_state()
    ...     first = forebay.rand(3, device="mps").tolist()
    ...     mps.set_rng_state(state)
    ...     first == forebay.rand(3, device="mps").tolist()
    True
    """
    known = _RANDOMS.at_hand()
    return (generator() if known is None else known).get_state()


def set_rng_state(new_state: Any, device: Any = "mps") -> None:  # noqa: ARG001 -- as above
    """Let the device's generator go on from a state that `get_rng_state` gave, here or in PyTorch.

    RuntimeError, TypeError for what is no state.
    """
    state = np.ascontiguousarray(new_state) if isinstance(new_state, np.ndarray) else new_state
    generator().set_state(state)


def manual_seed(seed: int) -> None:
    """Seed the device's generator; nothing, not even an error, where there is no device."""
    known = _RANDOMS.at_hand()
    if known is not None or MPS.count():
        (_default() if known is None else known).manual_seed(int(seed))


def seed() -> None:
    """Seed the device's generator at random."""
    generator().seed()
