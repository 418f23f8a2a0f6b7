"""Properties of named devices: one file each, with the source of every number. Does not open a device.

Properties have PyTorch's names and units, with the values that a real device's driver reports: `total_memory` is what
a program can use, which is less than the nominal size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

__all__ = ["Profile", "load", "names"]

_NAMESPACE = "8d1f5a0e-93c4-5b7e-a5a6-70656e73746f"  # of the UUIDs of emulated devices


@dataclass(frozen=True)
class Profile:
    """Properties of a device model. Both mappings are read-only.

    Parameters
    ----------
    name : str
        The profile's name.
    kind : str
        The device kind: "cuda", "mps" or "mtia".
    properties : mapping
        For CUDA those of `torch.cuda.get_device_properties`, without those that `at` adds; for MPS those that
        `torch.mps` and `torch.backends.mps` report.
    sensors : mapping
        For CUDA the ranges of the sensors: `idle_power` to `max_power` in mW, `idle_temperature` to
        `busy_temperature` in °C, `idle_clock` to `max_clock` in MHz, and `memory` in bytes, with the driver's share.
        Empty for other kinds, and for cards of which none are known.
    note : str
        What a user must know about results for this card; "" if there is nothing.
    """

    name: str
    kind: str
    properties: Mapping[str, Any]
    sensors: Mapping[str, int]
    note: str = ""

    def at(self, index: int) -> dict[str, Any]:
        """Return the properties of one device of the machine.

        Parameters
        ----------
        index : int
            The device's index.

        Returns
        -------
        dict
            `properties`, with a UUID and, for CUDA, the PCI address. The same in every process and on every machine.

        Examples
        --------
        >>> [load("h200").at(index)["pci_bus_id"] for index in range(2)]
        [24, 25]
        """
        own: dict[str, Any] = {"uuid": _uuid(f"{self.name} {index}")}
        if self.kind == "cuda":
            carry, own["pci_bus_id"] = divmod(self.properties["pci_bus_id"] + index, 256)
            own["pci_domain_id"] = self.properties["pci_domain_id"] + carry
            own["gcnArchName"] = self.properties["name"]  # as in PyTorch without ROCm
        return {**self.properties, **own}


def names(kind: str | None = None) -> tuple[str, ...]:
    """Return the names of the profiles, in alphabetical order.

    Parameters
    ----------
    kind : {"cuda", "mps", "mtia"}, optional
        The device kind; all kinds by default.
    """
    return tuple(name for name in _files() if kind is None or _read(name).kind == kind)


def load(name: str) -> Profile:
    """Return a profile.

    Parameters
    ----------
    name : str
        The profile's name. Case, spaces and punctuation are ignored.

    Raises
    ------
    ValueError
        If there is no such profile.

    Examples
    --------
    >>> load("RTX 4090").properties["multi_processor_count"]
    128
    """
    known = {_normalized(each): each for each in _files()}
    found = known.get(_normalized(name))
    if found is None:
        from difflib import get_close_matches  # imported late: only errors need it

        near = get_close_matches(_normalized(name), known, n=1, cutoff=0.5)
        hint = f", the nearest is {known[near[0]]!r}" if near else ""
        raise ValueError(f"there is no profile {name!r}{hint}; there are {', '.join(_files())}")
    return _read(found)


def _normalized(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


@cache
def _uuid(name: str) -> str:
    from uuid import UUID, uuid5  # imported late: most programs need no UUIDs

    return str(uuid5(UUID(_NAMESPACE), name))


@cache
def _files() -> tuple[str, ...]:
    from importlib import resources  # imported late: most programs use no profiles

    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@cache
def _read(name: str) -> Profile:
    import tomllib
    from importlib import resources

    text = (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    properties, sensors = (MappingProxyType(table.get(part, {})) for part in ("properties", "sensors"))
    return Profile(name, table["kind"], properties, sensors, table.get("note", ""))
