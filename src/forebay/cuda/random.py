"""Random number generators of CUDA devices (`torch.cuda.random`)."""

from __future__ import annotations

from typing import Any, Final

from forebay._base.device_spec import Device, DeviceLike
from forebay.cuda._kind import CUDA
from forebay.names.random import RandomFunctions
from forebay.runtime.random.generator import Generator, RngState
from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "as_device",
    "get_generator",
    "get_rng_state",
    "get_rng_state_all",
    "get_rng_state_offset",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "set_rng_state_offset",
]

_RANDOMS = RandomFunctions(CUDA)
get_rng_state_all: Final = _RANDOMS.get_rng_state_all
set_rng_state_all: Final = _RANDOMS.set_rng_state_all
manual_seed: Final = _RANDOMS.manual_seed
manual_seed_all: Final = _RANDOMS.manual_seed_all
seed: Final = _RANDOMS.seed
seed_all: Final = _RANDOMS.seed_all
initial_seed: Final = _RANDOMS.initial_seed


# Written by tools/write_names.py from tools/names/random.toml: edit the table, not these lines.


def get_rng_state(device: DeviceLike = "cuda") -> Tensor:
    """Return the state of a device's generator.

    As `torch.cuda.get_rng_state`. Initialises CUDA.

    Parameters
    ----------
    device : device or str or int, default "cuda"
        The device; without an index, the current one.

    Returns
    -------
    Tensor
        16 bytes: the seed and the offset.

    Raises
    ------
    IndexError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     cuda.manual_seed(123)
    ...     cuda.get_rng_state()[:2].tolist()
    [123, 0]
    """
    return _RANDOMS.generator(_checked(device) if device is None else device).get_state()


def set_rng_state(new_state: RngState, device: DeviceLike = "cuda") -> None:
    """Set the state of a device's generator.

    As `torch.cuda.set_rng_state`. Before CUDA's first use the call is deferred until then.

    Parameters
    ----------
    new_state : array_like
        16 bytes, as returned by `get_rng_state` here or in PyTorch.
    device : device or str or int, default "cuda"
        The device; without an index, the current one.

    Raises
    ------
    RuntimeError, TypeError
        If `new_state` is not a state.
    """
    _RANDOMS.set_rng_state(new_state, _checked(device))


def get_rng_state_offset(device: DeviceLike = "cuda") -> int:
    """Return the offset of a device's generator.

    As `torch.cuda._get_rng_state_offset`. Initialises CUDA.

    Parameters
    ----------
    device : device or str or int, default "cuda"
        The device; without an index, the current one.

    Returns
    -------
    int
        The number of words that each thread of the device has drawn.

    Raises
    ------
    IndexError
        If the device does not exist.
    """
    return _RANDOMS.get_offset(_checked(device))


def set_rng_state_offset(offset: int, device: DeviceLike = "cuda") -> None:
    """Set the offset of a device's generator.

    As `torch.cuda._set_rng_state_offset`. Before CUDA's first use the call is deferred until then.

    Parameters
    ----------
    offset : int
        The number of words that each thread is to skip, a multiple of 4.
    device : device or str or int, default "cuda"
        The device; without an index, the current one.

    Raises
    ------
    RuntimeError
        If `offset` is not a multiple of 4.
    """
    _RANDOMS.set_offset(offset, _checked(device))


def get_generator(device: DeviceLike) -> Generator:
    """Return a device's default generator.

    As `torch.cuda._get_generator`. Initialises CUDA.

    Parameters
    ----------
    device : device or str or int
        The device; without an index, the current one.

    Returns
    -------
    Generator
        The generator.

    Raises
    ------
    IndexError
        If the device does not exist.
    """
    return _RANDOMS.generator(_checked(device))


def as_device(device: DeviceLike) -> Device:
    """Return the device that an argument specifies.

    As `torch.cuda._get_device`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int
        A device, its name, or the index of a CUDA device.

    Returns
    -------
    Device
        The device.

    Examples
    --------
    >>> str(as_device(1))
    'cuda:1'
    """
    return Device("cuda", device) if isinstance(device, int) else Device(device)


# End of the written lines.


def _checked(device: Any) -> Any:
    """Return a device argument. Raises TypeError for None, which does not select the current device here."""
    if device is None:
        raise TypeError("argument 'device' must be forebay.device, not NoneType")
    return device
