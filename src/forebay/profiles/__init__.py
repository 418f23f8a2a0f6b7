"""What named devices are: one file each, with its sources. Data only; nothing is opened.

The properties have PyTorch's names and units, as the driver of a real one reports them: `total_memory` is what a
program gets to see, less than the number on the box.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

__all__ = ["Profile", "load", "names"]

_FAMILY = "8d1f5a0e-93c4-5b7e-a5a6-70656e73746f"  # of the names of emulated devices


@dataclass(frozen=True)
class Profile:
    """A device as it leaves the factory; both mappings are read-only.

    `properties` of a CUDA device are those of `torch.cuda.get_device_properties`, less what `at` adds; of an MPS one
    what `torch.mps` and `torch.backends.mps` tell of it. `sensors`, of CUDA devices only, are the readings between
    which a model of one moves: `idle_power` to `max_power` in mW, `idle_temperature` to `busy_temperature` in °C,
    `idle_clock` to `max_clock` in MHz, and `memory` in bytes, with the part that the driver keeps for itself.
    """

    name: str
    kind: str
    properties: Mapping[str, Any]
    sensors: Mapping[str, int]

    def at(self, index: int) -> dict[str, Any]:
        """The properties of the machine's device of that index: those with a UUID and, if it is a card, a slot.

        The same in every process and on every machine.

        >>> [load("h200").at(index)["pci_bus_id"] for index in range(2)]
        [24, 25]
        """
        own: dict[str, Any] = {"uuid": _uuid(f"{self.name} {index}")}
        if self.kind == "cuda":
            further, own["pci_bus_id"] = divmod(self.properties["pci_bus_id"] + index, 256)
            own["pci_domain_id"] = self.properties["pci_domain_id"] + further
            own["gcnArchName"] = self.properties["name"]  # as PyTorch has it where there is no ROCm
        return {**self.properties, **own}


def names(kind: str | None = None) -> tuple[str, ...]:
    """The profiles there are, in all or of one kind: "cuda", "mps" or "mtia"."""
    return tuple(name for name in _files() if kind is None or _read(name).kind == kind)


def load(name: str) -> Profile:
    """The profile of that name; case, spaces and punctuation do not matter. ValueError where there is none.

    >>> load("RTX 4090").properties["multi_processor_count"]
    128
    """
    plain = {_plain(known): known for known in _files()}
    found = plain.get(_plain(name))
    if found is None:
        from difflib import get_close_matches  # late: so that only mistakes wait for it

        near = get_close_matches(_plain(name), plain, n=1, cutoff=0.5)
        hint = f", the nearest is {plain[near[0]]!r}" if near else ""
        raise ValueError(f"there is no profile {name!r}{hint}; there are {', '.join(_files())}")
    return _read(found)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


@cache
def _uuid(name: str) -> str:
    from uuid import UUID, uuid5  # late: a program that has no such devices need not wait for it

    return str(uuid5(UUID(_FAMILY), name))


@cache
def _files() -> tuple[str, ...]:
    from importlib import resources  # late: a program that names no profile need not wait for it

    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@cache
def _read(name: str) -> Profile:
    import tomllib
    from importlib import resources

    text = (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    properties, sensors = (MappingProxyType(table.get(part, {})) for part in ("properties", "sensors"))
    return Profile(name, table["kind"], properties, sensors)
