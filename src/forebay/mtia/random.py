"""Random number functions of MTIA devices. Seeds are queued until MTIA's first use."""

from __future__ import annotations

from typing import Any, Final

from forebay._base.device_spec import DeviceLike
from forebay.mtia._kind import MTIA
from forebay.names.random import RandomFunctions
from forebay.runtime.random.generator import RngState
from forebay.runtime.tensors.tensor import Tensor

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

_RANDOMS = RandomFunctions(MTIA)
get_rng_state_all: Final = _RANDOMS.get_rng_state_all
set_rng_state_all: Final = _RANDOMS.set_rng_state_all
manual_seed: Final = _RANDOMS.manual_seed
manual_seed_all: Final = _RANDOMS.manual_seed_all
seed: Final = _RANDOMS.seed_and_return  # CUDA's functions return None
seed_all: Final = _RANDOMS.seed_all_and_return


# Written by tools/write_names.py from tools/names/random.toml: edit the table, not these lines.


def initial_seed() -> int:
    """Return the seed of the current device's generator.

    As `torch.mtia.initial_seed`. Initialises MTIA.

    Returns
    -------
    int
        The seed.
    """
    MTIA.initialisation.ensure()
    return _RANDOMS.initial_seed()


def get_rng_state(device: DeviceLike = "mtia") -> Tensor:
    """Return the state of a device's generator.

    As `torch.mtia.get_rng_state`. Initialises MTIA.

    Parameters
    ----------
    device : device or str or int, default "mtia"
        The device; the current one by default.

    Returns
    -------
    Tensor
        16 bytes: seed and offset.

    Raises
    ------
    IndexError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     mtia.manual_seed(123)
    ...     mtia.get_rng_state()[:2].tolist()
    [123, 0]
    """
    if device == "mtia" and (generator := _RANDOMS.initialised_generator()) is not None:
        return generator.get_state()
    MTIA.initialisation.ensure()
    return _RANDOMS.get_rng_state(MTIA.index(device, optional=True))


def set_rng_state(new_state: RngState, device: DeviceLike = "mtia") -> None:
    """Set the state of a device's generator.

    As `torch.mtia.set_rng_state`. Initialises MTIA if `device` has no index.

    Parameters
    ----------
    new_state : Tensor or numpy.ndarray
        A state that `get_rng_state` returned.
    device : device or str or int, default "mtia"
        The device; the current one by default.

    Raises
    ------
    RuntimeError
        If the state has the wrong size.
    TypeError
        If `new_state` is not an array of uint8.
    """
    _RANDOMS.set_rng_state(new_state, MTIA.index(device, optional=True))


# End of the written lines.
