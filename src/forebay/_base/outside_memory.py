"""Memory outside PyTorch's allocator: the CUDA context and modules, cuBLAS, cuDNN, compiled kernels.

# Note [Memory outside the allocator]
A card has to hold more than what the allocator reserves: each process has a context, with code of the libraries and
kernels that it loads. How much differs with the card, the versions of the driver, CUDA and PyTorch, and with what the
program uses. `outside_memory.toml` has a range for each class of cards, from recorded figures. The lower end is
withheld from the allocator of an emulated card under `forebay run` and `fit`, so that requests fail, and caches are
released, as they do on a real card at least. A program that fits then, but not with the upper end, is tight. Rejected:
one margin for all cards (0.75 GiB), which is five times the memory outside on a T4; and a verdict from the sum alone,
as what an allocator reserves depends on the memory that it can get.
Test: tests/_base/test_verdicts.py::test_range_outside_the_allocator_decides
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from forebay import profiles
from forebay._base.byte_sizes import format_bytes

__all__ = ["NOTHING", "OutsideMemory", "context_bytes", "in_use", "outside_memory", "workspaces_of_cudnn"]

_WORKSPACES = (  # what the range is from
    "from none to twice the input, output and weight of each backward pass of a dense convolution, between which peaks "
    "of convolutional networks on an A100 and an RTX 3060 were"
)
_SMALLEST_CARD = 2 << 30  # bytes: devices with less are made for tests, and no card: nothing is outside


class OutsideMemory(NamedTuple):
    """The bytes of one process outside the allocator of a card: a usual value, and a range."""

    low: int
    value: int
    high: int
    source: str = ""  #: what the figures are from

    @property
    def text(self) -> str:
        """The value and the range in words, such as "468 MiB (261 to 509)"."""
        if self.low == self.high:
            return format_bytes(self.value)
        unit, size, digits = ("GiB", 1 << 30, 2) if self.high >= 1 << 30 else ("MiB", 1 << 20, 0)
        low, value, high = (f"{nbytes / size:.{digits}f}" for nbytes in (self.low, self.value, self.high))
        return f"{value} {unit} ({low} to {high})"

    def of_processes(self, count: int) -> OutsideMemory:
        """Return the bytes of several processes, each of which has a context."""
        return self._replace(low=self.low * count, value=self.value * count, high=self.high * count)


NOTHING = OutsideMemory(0, 0, 0)


def outside_memory(profile: str, memory: int | None = None, reserve: int | None = None) -> OutsideMemory:
    """Return what one process has outside the allocator of a card.

    Parameters
    ----------
    profile : str
        The card's profile.
    memory : int, optional
        Memory of the card in bytes; that of the profile by default. Nothing is outside if it is less than 2 GiB.
    reserve : int, optional
        The bytes, if the user has set them.

    Raises
    ------
    ValueError
        If there is no such profile, or `reserve` leaves no memory.
    """
    found = profiles.load(profile)
    total = memory or found.properties["total_memory"]
    if reserve is not None:
        if not 0 <= reserve < total:
            raise ValueError(f"{format_bytes(reserve)} of {format_bytes(total)} cannot be reserved: nothing is left")
        return OutsideMemory(reserve, reserve, reserve, "as set by hand")
    if found.kind != "cuda" or total < _SMALLEST_CARD:
        return NOTHING
    return _of_card(found)


def in_use(reserved: int, outside: OutsideMemory, workspaces: int = 0) -> OutsideMemory:
    """Return the bytes of a card in use, as nvidia-smi shows them: a usual value, and a range.

    Parameters
    ----------
    reserved : int
        The bytes that the allocator has reserved.
    outside : OutsideMemory
        What is outside of it.
    workspaces : int, optional
        The bytes that cuDNN's workspaces add at most, half of which are usual: Note [Workspaces of cuDNN].
    """
    estimated = workspaces_of_cudnn(workspaces)
    low, value, high = (reserved + one + other for one, other in zip(outside[:3], estimated[:3], strict=True))
    return OutsideMemory(low, value, high, outside.source)


def workspaces_of_cudnn(most: int) -> OutsideMemory:
    """Return what cuDNN's workspaces add to the reserved bytes, if that is `most` at most: a usual value, and a range.

    Parameters
    ----------
    most : int
        The bytes that they add at most.
    """
    return OutsideMemory(0, most // 2, most, _WORKSPACES) if most else NOTHING


def context_bytes(profile: str, memory: int | None = None) -> int:
    """Return the usual bytes of one process outside the allocator of a card, see `outside_memory`."""
    return outside_memory(profile, memory).value


def _of_card(profile: profiles.Profile) -> OutsideMemory:
    table = _table()
    for card in table.get("card", ()):
        if card["name"] == profile.properties["name"]:
            cuda = f" with CUDA {card['cuda']}" if card["cuda"] else ""
            return _range(card, f"measured on this card with PyTorch {card['torch']}{cuda}")
    row = next(each for each in table["class"] if _meets(profile, each))
    return _range(
        row, f"{table['source']} on {row['name']}, PyTorch {table['torch']} and later, {row['groups']} sources"
    )


def _range(row: dict[str, Any], source: str) -> OutsideMemory:
    low, value, high = (row[name] << 20 for name in ("low", "value", "high"))
    return OutsideMemory(low, value, high, source)


def _meets(profile: profiles.Profile, row: dict[str, Any]) -> bool:
    """Return True if a card meets the conditions of a class; the last class has none."""
    found = profile.properties
    low, high = row.get("memory_gib", (0, 1 << 20))
    if "memory_gib" in row and "AMD" in found["name"]:  # the figures are of NVIDIA's cards
        return False
    if not low << 30 <= found["total_memory"] < high << 30:
        return False
    if row.get("geforce", False):
        return "GeForce" in found["name"]
    return "capabilities" not in row or found["major"] * 10 + found["minor"] in row["capabilities"]


@cache
def _table() -> dict[str, Any]:
    import tomllib  # imported late: most programs need no figures of cards
    from importlib import resources

    text = (resources.files("forebay._base") / "outside_memory.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
