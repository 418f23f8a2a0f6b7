"""The memory that held the peak of a device, by category, by module and by line of the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

from forebay._base.verdicts import DeviceEvents
from forebay.interop.torch.attribution.growth import Kept, kept_memory
from forebay.records.model import Frame
from forebay.records.site_labels import label_of

if TYPE_CHECKING:  # modules that import PyTorch: a report may be about processes of a program that does not
    from forebay.interop.torch.attribution.records import DeviceUse, Record
    from forebay.interop.torch.attribution.user_frames import Site
    from forebay.interop.torch.attribution.variables import Variable
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["CATEGORIES", "Holder", "PeakUse", "by_category", "peak_use", "peak_use_of"]

# Categories in the order of reports.
CATEGORIES = (
    "parameters", "gathered parameters", "copies of parameters", "loaded checkpoints", "buffers", "gradients",
    "gradient buckets", "optimizer state", "activations", "recomputed activations", "loss", "inputs", "outputs",
    "caches", "data", "temporaries", "other", "workspaces",
)  # fmt: skip
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer, whose modules have names
_LAST_NUMBER = re.compile(r"(?<=\.)\d+$")
_MANY = 16  # modules from which on those of a list are added up, too
_ROWS = 50  # modules and lines that are kept


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory at the peak that belongs together."""

    # A category, a module or a line. Numbers in the name of a module are replaced by "*", and its memory is that of all
    # modules of that name.
    name: str
    nbytes: int  # bytes in blocks, rounded as the allocator does
    count: int  # number of allocations
    share: float  # fraction of all bytes at the peak, from 0 to 1


@dataclass(frozen=True, slots=True)
class PeakUse:
    """The holders of the peak of one device. Sizes are in bytes."""

    index: int
    name: str
    capacity: int
    peak_allocated: int  # peak of the bytes in blocks, from the allocator
    peak_reserved: int  # peak of the bytes in segments, from the allocator
    allocations: int  # number of allocations of tensors
    ooms: int  # number of requests that ran out of memory
    failed: int  # bytes of the last one
    idle_since_oom: bool  # nothing was allocated after it
    # The peak by category, in the order of `CATEGORIES`; without those that held nothing. "workspaces" are what kernels
    # take beside tensors: workspaces of cuBLAS, and buffers for one call.
    categories: tuple[Holder, ...]
    modules: tuple[Holder, ...]  # the peak by module, most first
    lines: tuple[Holder, ...]  # the peak by line of the program, most first
    phase: str  # where the program was at the peak: forward, backward, optimizer or other
    # What the peak has of several iterations, or through an exception or a closure, most first.
    kept: tuple[Kept, ...] = ()

    @property
    def events(self) -> DeviceEvents:
        """Events of the device, for a verdict."""
        return DeviceEvents(
            self.index, self.capacity, self.peak_allocated, self.peak_reserved, self.ooms, self.failed,
            self.idle_since_oom,
        )  # fmt: skip

    @property
    def spare(self) -> int:
        """The bytes of the device that were never reserved."""
        return self.capacity - self.peak_reserved

    def as_json(self) -> dict[str, Any]:
        """Return the fields, and `spare`, as values that `json.dumps` accepts."""
        return {**asdict(self), "spare": self.spare}


def peak_use_of(fields: Mapping[str, Any]) -> PeakUse:
    """Return the result that `PeakUse.as_json` returned in another process."""
    found = {each.name: fields[each.name] for each in dataclass_fields(PeakUse)}
    for name in ("categories", "modules", "lines"):
        found[name] = tuple(Holder(**each) for each in found[name])
    found["kept"] = tuple(Kept(**each) for each in found["kept"])
    return PeakUse(**found)


def peak_use(
    opened: OpenDevice, use: DeviceUse, meter: Sequence[int], sites: Mapping[Site, Variable], usual_calls: int = 0
) -> PeakUse:
    """Return what held the peak of a device; `meter` has the allocator's peaks of allocated and reserved bytes.

    `sites` and `usual_calls` are those of `kept_memory`.
    """
    records = [*use.at_peak()]
    allocated, reserved = max(meter[0], use.peak), max(meter[1], use.peak_reserved)  # also without the cache
    total = max(allocated, 1)
    categories = _group(records, _category, total)
    others = allocated - sum(each.size for each in records)  # memory that is no tensor's
    if others > 0:
        categories["workspaces"] = Holder("workspaces", others, 0, others / total)
    modules = _group(records, _module, total)
    if len(modules) > _MANY:
        modules = _group(records, lambda record: _LAST_NUMBER.sub("*", _module(record)), total)
    newest = max(records, key=lambda each: each.number, default=None)
    return PeakUse(
        index=opened.device.index or 0,
        name=opened.port.props.name.removesuffix(" (emulated)"),
        capacity=opened.port.memory_info()[1],
        peak_allocated=allocated,
        peak_reserved=reserved,
        allocations=use.allocations,
        ooms=opened.allocator.num_ooms,
        failed=use.failed,
        idle_since_oom=use.idle_since_oom,
        categories=tuple(categories[name] for name in CATEGORIES if name in categories),
        modules=_largest(modules),
        lines=_largest(_group(records, _line, total)),
        phase=newest.phase if newest is not None else "other",
        kept=kept_memory(records, sites, _category, total, usual_calls),
    )


def by_category(held: Iterable[tuple[Record | None, int]], allocated: int) -> list[Mapping[str, Any]]:
    """Return what holds a peak of `allocated` bytes, as the categories of `PeakUse.as_json`, with names and bytes only.

    `held` are blocks: the record of each, None if it is no tensor's, and its size.
    """
    sums = dict.fromkeys(CATEGORIES, 0)
    for record, size in held:
        if record is not None:
            sums[_category(record)] += size
    sums["workspaces"] += allocated - sum(sums.values())
    return [{"name": name, "nbytes": nbytes} for name, nbytes in sums.items() if nbytes]


def _group(records: Iterable[Record], key: Callable[[Record], str], total: int) -> dict[str, Holder]:
    sums: dict[str, list[int]] = {}
    for record in records:
        pair = sums.setdefault(key(record), [0, 0])
        pair[0] += record.size
        pair[1] += 1
    return {name: Holder(name, nbytes, count, nbytes / total) for name, (nbytes, count) in sums.items()}


def _largest(holders: Mapping[str, Holder]) -> tuple[Holder, ...]:
    return tuple(sorted(holders.values(), key=lambda each: (-each.nbytes, each.name)))[:_ROWS]


def _category(record: Record) -> str:
    if record.category:
        return record.category
    if record.role and not (record.role == "caches" and record.kept):  # else a graph has saved it
        return record.role
    if record.phase == "other":
        if record.kept:
            return "activations"
        if record.holder is not None:
            return "data"
        return "other" if record.survived else "temporaries"
    # A forward pass that ended before its backward pass, such as at the peak of a program that ran out of memory.
    # Or one whose result is kept, and that no backward pass follows.
    unfinished = record.phase == "forward" and record.grad and (record.alive or record.survived)
    return "activations" if record.kept or unfinished else "temporaries"


def _module(record: Record) -> str:
    outside = "(optimizer)" if record.phase == "optimizer" else "(outside modules)"
    return _NUMBER.sub("*", record.module) or outside


def _line(record: Record) -> str:
    if record.site is None:
        return "(no line)"
    code, line = record.site
    return label_of(Frame(code.co_filename, code.co_qualname, line))
