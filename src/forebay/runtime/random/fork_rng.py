"""`fork_rng`: random number states that are restored at the end of a block."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from forebay._base.device_spec import CPU, Device, DeviceLike
from forebay.runtime.base import lazy_init
from forebay.runtime.devices.current import accelerator_kind, current_index
from forebay.runtime.devices.open_device import device_count
from forebay.runtime.random import generator

__all__ = ["fork_rng"]

_warned = False


@contextmanager
def fork_rng(
    devices: Iterable[DeviceLike] | None = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str | None = None,
) -> Iterator[None]:
    """Restore the states of random number generators at the end of the context.

    Parameters
    ----------
    devices : iterable of device or str or int, optional
        The devices whose generators are restored, besides the CPU's; all devices of `device_type` by default.
    enabled : bool, optional
        False to restore nothing.
    _caller, _devices_kw : str, optional
        Names in the warning, as in PyTorch.
    device_type : str, optional
        The kind of the devices; the current accelerator's by default, else `"cuda"`.

    Yields
    ------
    None

    Raises
    ------
    RuntimeError
        If `device_type` is not a kind of device.
    IndexError
        If a device does not exist.

    Warns
    -----
    UserWarning
        Once, if there are several devices and `devices` is not given.

    Notes
    -----
    As `torch.random.fork_rng`. The states are restored after an exception, too. Initialises the kind of the devices,
    but does not open a device.

    Examples
    --------
    >>> import forebay
    >>> _ = forebay.manual_seed(0)
    >>> with forebay.random.fork_rng():
    ...     inside = forebay.rand(3)
    >>> inside.tolist() == forebay.rand(3).tolist()
    True
    """
    kind = _kind_of(device_type)
    if not enabled:
        yield
        return
    if devices is None:
        indices = _all_indices(kind, _caller, _devices_kw)
    else:
        indices = [_index_of(kind, each) for each in devices]
    if indices:
        lazy_init.get(kind).ensure()
    saved = [(each, each.state_bytes()) for each in (generator.default_generator(CPU), *_generators(kind, indices))]
    try:
        yield
    finally:
        for each, state in saved:
            each.set_state(np.frombuffer(state, np.uint8))


def _kind_of(device_type: Any) -> str:
    if not device_type:
        return accelerator_kind() or "cuda"
    if not isinstance(device_type, (str, Device)):
        text = f"Invalid value of device '{device_type}', expect forebay.device, str, or None"
        raise RuntimeError(text)  # noqa: TRY004 -- PyTorch's
    return Device(device_type).kind


def _all_indices(kind: str, caller: str, keyword: str) -> list[int]:
    count = 0 if kind == "cpu" else device_count(kind)
    if count > 1:
        _warn_of_many(count, kind, caller, keyword)
    return list(range(count))


def _index_of(kind: str, device: Any) -> int:
    """Return the index of a device, whose own kind is ignored, as in PyTorch."""
    if isinstance(device, int):
        device = Device(kind, device)
    elif not isinstance(device, Device):
        if not isinstance(device, str):
            raise TypeError(f"a device must be forebay.device, not {type(device).__name__}")
        device = Device(device)
    return current_index(kind) if device.index is None else device.index


def _generators(kind: str, indices: list[int]) -> list[generator.Generator]:
    count = device_count(kind)
    for index in indices:
        if index >= count:
            raise IndexError("tuple index out of range")  # of `default_generators`
    return [generator.default_generator(Device(kind, index)) for index in indices]


def _warn_of_many(count: int, kind: str, caller: str, keyword: str) -> None:
    global _warned  # noqa: PLW0603 - PyTorch warns once in a process
    if _warned:
        return
    _warned = True
    word = kind.upper()
    warnings.warn(
        f"{word} reports that you have {count} available devices, and you have used {caller} without explicitly "
        f"specifying which devices are being used. For safety, we initialize *every* {word} device by default, which "
        f"can be quite slow if you have a lot of {word}s. If you know that you are only making use of a few {word} "
        f"devices, set the environment variable {word}_VISIBLE_DEVICES or the '{keyword}' keyword argument of {caller} "
        "with the set of devices you are actually using. For example, if you are using CPU only, set "
        f"device.upper()_VISIBLE_DEVICES= or devices=[]; if you are using device 0 only, set {word}_VISIBLE_DEVICES=0 "
        f"or devices=[0].  To initialize all devices and suppress this warning, set the '{keyword}' keyword argument "
        f"to `range(torch.{kind}.device_count())`.",
        stacklevel=4,
    )
