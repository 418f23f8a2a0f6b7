"""Ledger of the memory of a PyTorch program on emulated devices."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import torch

from forebay._base.device_spec import Device
from forebay.backends import driver
from forebay.interop.torch.attribution.allocation_log import AllocationLog
from forebay.interop.torch.attribution.phases import Phases
from forebay.interop.torch.attribution.records import DeviceUse, Record
from forebay.interop.torch.attribution.results import PeakUse, peak_use
from forebay.interop.torch.attribution.user_frames import user_site
from forebay.interop.torch.devices._storage_owners import EmulatedMemory
from forebay.interop.torch.devices.emulated_memory import memory_of, set_observer
from forebay.interop.torch.devices.other_cards import same_cards
from forebay.interop.torch.processes import recorder
from forebay.runtime.allocator import oom_observers
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock

__all__ = ["Ledger"]

_ALLOCATIONS = 2  # of the allocator's counts: the allocations of all sizes
_grad_enabled = torch.is_grad_enabled
_SCANS = 4  # errors, and twice the backward passes, after which all objects are searched, which takes 0.1 s


class Ledger:
    """The allocations of a program by device, from `start` to `stop`."""

    def __init__(self) -> None:
        self.devices: dict[OpenDevice, DeviceUse] = {}
        self.logs: dict[OpenDevice, AllocationLog] = {}  # if the run answers for other cards, too
        self.phases = Phases()
        self.meters: dict[OpenDevice, int] = {}
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._ooms = self._backwards = 0
        self._boundary: dict[OpenDevice, int] = {}  # number after the last backward pass or step
        phases = self.phases
        phases.on_forward, phases.on_backward, phases.after_backward = self._forward, self._keep, self._after_backward
        phases.before_step, phases.on_step = self._before_step, self._after_step
        phases.on_recompute, phases.on_return = self._numbers, self._keep_recomputed

    def start(self) -> None:
        """Begin. Allocations that exist already are not attributed."""
        self.phases.start()
        set_observer(self._observe, self._reached)
        opened = [each.allocator for each in open_device.open_devices().devices if each.device.kind == "cuda"]
        oom_observers.attach("cuda", self._out_of_memory, opened)

    def stop(self) -> None:
        """End. The results stay."""
        set_observer(None)
        self.phases.stop()

    def results(self) -> list[PeakUse]:
        """Return what held the peak of each device that was used, by index."""
        self._settle()
        found = [
            peak_use(opened, use, opened.allocator.meter(self.meters[opened])) for opened, use in self.devices.items()
        ]
        return sorted(found, key=lambda each: each.index)

    def _observe(self, memory: EmulatedMemory) -> None:
        block = memory.block
        if block is None:
            return
        opened = memory.opened
        use = self.devices.get(opened) or self._begin(opened)
        phases = self.phases
        record = Record(
            use.number + 1, memory.nbytes, block.size, block.queue, user_site(), phases.module, phases.phase,
            _grad_enabled(),
        )  # fmt: skip
        use.allocated(record, opened.allocator.current(ALLOCATED_BYTES))
        if (log := self.logs.get(opened)) is not None:
            log.belongs(block.address, record)
        memory.record, memory.freed = record, use.freed

    def _reached(self, opened: OpenDevice, block: AnyBlock, nbytes: int) -> None:
        use = self.devices.get(opened) or self._begin(opened)
        if (log := self.logs.get(opened)) is not None:
            log.allocated(opened.allocator.counts()[_ALLOCATIONS] - 1, block.address, nbytes)
        allocator = opened.allocator
        allocated = allocator.current(ALLOCATED_BYTES)
        use.reached(allocated)
        use.idle_since_oom = False
        recorder.used(use.place, use.capacity, allocated, allocator.current(RESERVED_BYTES))

    def _begin(self, opened: OpenDevice) -> DeviceUse:
        use = self.devices[opened] = DeviceUse(_place(opened), opened.port.memory_info()[1])
        self.meters[opened] = opened.allocator.begin_meter()
        if same_cards():
            self.logs[opened] = AllocationLog()
        return use

    def _out_of_memory(self, index: int, nbytes: int, *_: int) -> None:
        """Mark what is alive while the program still has it."""
        opened = open_device.open_device(Device("cuda", index))
        use = self.devices.get(opened) or self._begin(opened)
        use.failed, use.idle_since_oom = nbytes, True
        recorder.refused(use.place, use.capacity, nbytes)
        if self._ooms < _SCANS:
            self._ooms += 1
            if self.phases.phase == "forward":
                self._keep()
            self._settle()

    def _forward(self, module: torch.nn.Module, arguments: Any) -> None:
        """Mark what an outermost module owns and receives."""
        for tensor in _tensors(arguments):
            _mark_input(tensor)
        _mark_module(module)

    def _keep(self) -> None:
        """Mark the activations: what the forward pass has left when the backward pass begins."""
        for opened, use in self.devices.items():
            boundary = self._boundary.get(opened, 0)
            records = [*use.live.values()]
            forward = any(each.phase == "forward" and each.number > boundary for each in records)
            for record in records:
                if record.number > boundary and record.grad and record.phase == ("forward" if forward else "other"):
                    record.kept = True

    def _numbers(self) -> int:
        """Return the number of the newest record of any device."""
        return max((use.number for use in self.devices.values()), default=0)

    def _keep_recomputed(self, start: int) -> None:
        """Mark the activations that a module has left that was called in the backward pass."""
        for use in self.devices.values():
            for number in reversed(use.live):
                if number <= start:
                    break
                use.live[number].kept = True

    def _after_backward(self) -> None:
        self._set_boundary()
        self._backwards += 1
        if self._backwards <= _SCANS // 2:  # tensors that are no module's, and are deleted before the end
            self._settle()
        for root in [*self.phases.roots]:
            for name, parameter in root.named_parameters():
                if parameter.grad is not None:
                    _mark(parameter.grad, "gradients", f"{type(root).__name__}.{name.rpartition('.')[0]}")

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.add(optimizer)
        self._set_boundary()
        _mark_parameters(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._set_boundary()
        _mark_state(optimizer)

    def _set_boundary(self) -> None:
        for opened, use in self.devices.items():
            self._boundary[opened] = use.number

    def _settle(self) -> None:
        """Mark what the hooks have not seen, as of a program that failed before its first step."""
        for optimizer in [*self._optimizers]:
            _mark_parameters(optimizer)
            _mark_state(optimizer)
        objects = gc.get_objects()
        kinds = set(map(type, objects))  # of which there are few, and a million objects
        modules = _of_kinds(objects, kinds, torch.nn.Module)
        leaves = _of_kinds(objects, kinds, torch.Tensor)
        del objects
        for root in _outermost(modules):
            _mark_module(root)
        for tensor in leaves:
            with suppress(RuntimeError):
                if tensor.is_cuda and tensor.is_leaf and tensor.requires_grad:
                    _mark(tensor, "parameters", only_unmarked=True)
                    if tensor.grad is not None:
                        _mark(tensor.grad, "gradients", only_unmarked=True)


def _place(opened: OpenDevice) -> int:
    """Return the machine's index of a device, which differs where CUDA_VISIBLE_DEVICES selects devices."""
    index = opened.device.index or 0
    visible = getattr(driver(opened.device.kind), "visible", None)  # of emulated devices
    return index if visible is None else int(visible()[index])


def _mark(tensor: torch.Tensor, category: str, module: str = "", *, only_unmarked: bool = False) -> Record | None:
    """Set the category of a tensor's memory, and its module. Tensors that have no memory on a device are ignored."""
    try:
        record: Record | None = memory_of(tensor).record
    except (KeyError, RuntimeError, NotImplementedError):  # not on an emulated device, or without a storage
        return None
    if record is None or (only_unmarked and record.category):
        return record
    record.category = category
    if module:
        record.module = module
    return record


def _mark_input(tensor: torch.Tensor) -> None:
    with suppress(KeyError, RuntimeError, NotImplementedError):  # as in `_mark`
        record = memory_of(tensor).record
        if record is not None and not record.category and record.phase == "other":  # else another module has made it
            record.category = "inputs"


def _mark_module(root: torch.nn.Module) -> None:
    kind = type(root).__name__
    with suppress(RuntimeError, AttributeError):  # a module whose __init__ has failed
        for name, parameter in root.named_parameters():
            if parameter.is_cuda:
                module = f"{kind}.{name}".rpartition(".")[0]
                _mark(parameter, "parameters", module)
                if parameter.grad is not None:
                    _mark(parameter.grad, "gradients", module)
        for name, buffer in root.named_buffers():
            if buffer.is_cuda:
                _mark(buffer, "buffers", f"{kind}.{name}".rpartition(".")[0])


def _of_kinds(objects: list[Any], kinds: Iterable[type], base: type) -> list[Any]:
    """Return the objects whose types are subclasses of `base`. `kinds` are the types of all objects."""
    wanted = {each for each in kinds if issubclass(each, base)}
    return [each for each in objects if type(each) in wanted]


def _outermost(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that no other one contains."""
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    return [each for each in modules if id(each) not in inner]


def _mark_parameters(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            record = _mark(parameter, "parameters", only_unmarked=True)
            if parameter.grad is not None:
                _mark(parameter.grad, "gradients", record.module if record is not None else "")


def _mark_state(optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        module = ""
        if isinstance(parameter, torch.Tensor):
            with suppress(KeyError, RuntimeError):
                record = memory_of(parameter).record
                module = record.module if record is not None else ""
        for tensor in _tensors(state):
            _mark(tensor, "optimizer state", module)


def _tensors(value: Any, depth: int = 4) -> Iterable[torch.Tensor]:
    """Yield the tensors in a value, also those in lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each, depth - 1)
