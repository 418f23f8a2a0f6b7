"""Ledger of the memory of a PyTorch program on emulated devices."""

from __future__ import annotations

import gc
import sys
import warnings
from contextlib import suppress
from itertools import compress
from types import FrameType
from typing import Any

import torch

from forebay._base.device_spec import Device
from forebay.backends import driver
from forebay.errors import ForebayWarning
from forebay.interop.torch.attribution.allocation_log import AllocationLog
from forebay.interop.torch.attribution.holders import Holders
from forebay.interop.torch.attribution.marks import (
    mark,
    mark_arguments,
    mark_module,
    mark_parameters,
    mark_state,
    records_of,
    tensors_in,
)
from forebay.interop.torch.attribution.model_copies import ModelCopies
from forebay.interop.torch.attribution.module_members import is_traced, named_parameters, original_module
from forebay.interop.torch.attribution.phases import Phases
from forebay.interop.torch.attribution.records import DeviceUse, Record
from forebay.interop.torch.attribution.results import PeakUse, peak_use
from forebay.interop.torch.attribution.user_frames import user_site
from forebay.interop.torch.attribution.weak_identity import WeakIdentityTable
from forebay.interop.torch.attribution.workspace_log import WorkspaceLog
from forebay.interop.torch.devices._storage_owners import EmulatedMemory
from forebay.interop.torch.devices.emulated_memory import set_observer
from forebay.interop.torch.devices.other_cards import same_cards
from forebay.interop.torch.kernels import convolution_workspaces
from forebay.interop.torch.processes import recorder
from forebay.runtime.allocator import oom_observers
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock
from forebay.runtime.settings import process_settings

__all__ = ["Ledger"]

_ALLOCATIONS = 2  # of the allocator's counts: the allocations of all sizes
_grad_enabled = torch.is_grad_enabled
_node_number = torch.autograd._get_sequence_nr  # of the next node
_SCANS = 4  # errors, and twice the backward passes, after which all objects are searched, which takes 0.1 s
_STATE = {"param_groups", "state"}  # of an optimizer
_FEWEST_LIVE = 64  # records from which on a walk over the variables can find growth
_FIRST_PEAK = 8 << 20  # bytes from which on a peak is walked
_STEP = 2.0  # growth of the peak, and of the number of live records, until the next walk


class Ledger:
    """The allocations of a program by device, from `start` to `stop`."""

    def __init__(self) -> None:
        self.devices: dict[OpenDevice, DeviceUse] = {}
        self.logs: dict[OpenDevice, AllocationLog] = {}  # if the run answers for other cards, too
        self.workspaces: dict[OpenDevice, WorkspaceLog] = {}  # of devices with convolutions of cuDNN
        self.phases = Phases()
        self.meters: dict[OpenDevice, int] = {}
        self._optimizers: WeakIdentityTable[torch.optim.Optimizer, bool] = WeakIdentityTable()
        self._ooms = self._backwards = 0
        self._boundary: dict[OpenDevice, int] = {}  # number after the last backward pass or step
        self._seen: dict[OpenDevice, int] = {}  # number up to which records were asked whether they survive
        self._holders, self._copies = Holders(), ModelCopies()
        self._next_count = _FEWEST_LIVE
        self._next_peak: dict[OpenDevice, float] = {}
        self._walking = False
        phases = self.phases
        phases.on_forward, phases.on_result = self._forward, self._after_forward
        phases.on_backward, phases.after_backward = self._before_backward, self._after_backward
        phases.before_step, phases.on_step = self._before_step, self._after_step
        phases.on_recompute, phases.on_return = self._numbers, self._keep_recomputed

    def start(self) -> None:
        """Begin. Allocations that exist already are not attributed."""
        self.phases.start()
        set_observer(self._observe, self._reached)
        convolution_workspaces.set_listener(self._note_workspace)
        opened = [each.allocator for each in open_device.open_devices().devices if each.device.kind == "cuda"]
        oom_observers.attach("cuda", self._out_of_memory, opened)

    def stop(self) -> None:
        """End. The results stay."""
        set_observer(None)
        convolution_workspaces.set_listener(None)
        self.phases.stop()

    def results(self) -> list[PeakUse]:
        """Return what held the peak of each device that was used, by index."""
        self._settle()
        self._walk(sys._getframe(1))
        sites, usual = self._holders.sites, self.phases.usual_calls
        found = [
            peak_use(opened, use, opened.allocator.meter(self.meters[opened]), sites, usual)
            for opened, use in self.devices.items()
        ]
        return sorted(found, key=lambda each: each.index)

    def most_workspaces(self) -> dict[int, int]:
        """Return the bytes that cuDNN's workspaces add at most to what is reserved, by index of the device."""
        found = {}
        for opened, log in self.workspaces.items():
            if (use := self.devices.get(opened)) is not None:
                reserved = max(opened.allocator.meter(self.meters[opened])[1], use.peak_reserved)
                found[opened.device.index or 0] = log.most(reserved)
        return found

    def _note_workspace(self, opened: OpenDevice, nbytes: int, is_forward: bool) -> None:
        if (log := self.workspaces.get(opened)) is None:
            log = self.workspaces[opened] = WorkspaceLog(opened)
        log.requested(nbytes, is_forward=is_forward)

    def _observe(self, memory: EmulatedMemory) -> None:
        block = memory.block
        if block is None:
            return
        opened = memory.opened
        use = self.devices.get(opened) or self._begin(opened)
        phases = self.phases
        site, role = user_site()
        record = Record(
            use.number + 1, memory.nbytes, block.size, block.queue, site, phases.module, phases.phase, _grad_enabled()
        )
        record.role, record.node = role, _node_number() - 1
        record.call, record.backward = phases.calls, phases.backwards
        use.allocated(record, _in_use(opened)[0])
        if (log := self.logs.get(opened)) is not None:
            log.belongs(block.address, record)
        memory.record, memory.freed = record, use.freed
        if use.peak > self._next_peak[opened] and use.peak_number == record.number:
            self._next_peak[opened] = use.peak * _STEP
            self._walk(sys._getframe(1))

    def _reached(self, opened: OpenDevice, block: AnyBlock, nbytes: int) -> None:
        use = self.devices.get(opened) or self._begin(opened)
        if (log := self.logs.get(opened)) is not None:
            log.allocated(opened.allocator.counts()[_ALLOCATIONS] - 1, block.address, nbytes)
        allocated, reserved = _in_use(opened)
        use.reached(allocated, reserved)
        use.idle_since_oom = False
        recorder.used(use.place, use.capacity, allocated, reserved)

    def _begin(self, opened: OpenDevice) -> DeviceUse:
        use = self.devices[opened] = DeviceUse(_place(opened), opened.port.memory_info()[1])
        self.meters[opened] = opened.allocator.begin_meter()
        self._next_peak[opened] = _FIRST_PEAK
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
            self._walk(sys._getframe(1))

    def _walk(self, frame: FrameType) -> None:
        """Find the variables that hold the live records: Note [Variables are read without a trace]."""
        if self._walking:
            return
        self._walking = True
        try:
            self._holders.walk(frame, self.devices.values(), self._copies)
        except Exception as error:  # noqa: BLE001 -- no report may end a program, whatever its objects are
            with suppress(ForebayWarning):  # a program may turn warnings into errors
                warnings.warn(f"the holders of memory are unknown: {error!r}", ForebayWarning, stacklevel=2)
        finally:
            self._walking = False

    def _walk_if_growing(self) -> None:
        count = sum(len(use.live) for use in self.devices.values())
        if count >= self._next_count:
            self._next_count = int(count * _STEP)
            self._walk(sys._getframe(1))

    def _pass_boundary(self) -> None:
        """Note which of the newest records are alive when another part of an iteration begins."""
        for opened, use in self.devices.items():
            seen = self._seen.get(opened, 0)
            for number in reversed(use.live):
                if number <= seen:
                    break
                use.live[number].survived = True
            self._seen[opened] = use.number

    def _forward(self, module: torch.nn.Module, arguments: Any) -> None:
        """Mark what an outermost module owns and receives."""
        self._pass_boundary()
        mark_arguments(arguments, type(module).__name__)
        mark_module(module, self._copies.category(module))
        self._walk_if_growing()

    def _after_forward(self, module: torch.nn.Module, result: Any) -> None:
        """Mark what an outermost module returns without a graph."""
        if not _grad_enabled():
            for tensor in tensors_in(result):
                for record in records_of(tensor):
                    if not record.category and record.phase == "forward":
                        record.category = "outputs"

    def _before_backward(self, roots: Any) -> None:
        self._pass_boundary()
        for tensor in tensors_in(roots):
            mark(tensor, "loss", only_unmarked=True)
        self._keep()

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
                use.live[number].category = use.live[number].category or "recomputed activations"

    def _after_backward(self) -> None:
        self._set_boundary()
        self._backwards += 1
        if self._backwards <= _SCANS // 2:  # tensors that are no module's, and are deleted before the end
            self._settle()
            self._walk(sys._getframe(1))
        for root in [*self.phases.roots]:
            for name, parameter in named_parameters(root):
                if parameter.grad is not None:
                    mark(parameter.grad, "gradients", f"{type(root).__name__}.{name.rpartition('.')[0]}")

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.set(optimizer, True)
        self._pass_boundary()
        self._set_boundary()
        mark_parameters(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._set_boundary()
        mark_state(optimizer)

    def _set_boundary(self) -> None:
        for opened, use in self.devices.items():
            self._boundary[opened] = use.number

    def _settle(self) -> None:
        """Mark what the hooks have not seen, as of a program that failed before its first step."""
        modules, leaves, optimizers = _objects_of_pytorch(gc.get_objects())
        for optimizer in optimizers:
            if object.__getattribute__(optimizer, "__dict__").keys() >= _STATE:  # else its __init__ has failed
                self._optimizers.set(optimizer, True)  # also if its steps are compiled, which call no hook
        for optimizer in [*self._optimizers]:
            mark_parameters(optimizer)
            mark_state(optimizer)
        roots = _outermost(modules)
        self._copies.find(roots, [*self._optimizers])
        for root in roots:
            mark_module(root, self._copies.category(root))
        for tensor in leaves:
            with suppress(RuntimeError):
                if tensor.is_cuda and tensor.is_leaf and tensor.requires_grad:
                    mark(tensor, "parameters", only_unmarked=True)
                    if tensor.grad is not None:
                        mark(tensor.grad, "gradients", only_unmarked=True)


def _in_use(opened: OpenDevice) -> tuple[int, int]:
    """Return the bytes that are allocated and reserved on a device.

    Without the caching allocator, which counts both, they are what the device has given to the program.
    """
    allocated, reserved = opened.allocator.current(ALLOCATED_BYTES), opened.allocator.current(RESERVED_BYTES)
    if process_settings.caching:
        return allocated, reserved
    uncached = max(getattr(opened.port, "reserved", 0) - reserved, 0)  # of emulated devices: what the program has
    return allocated + uncached, reserved + uncached


def _place(opened: OpenDevice) -> int:
    """Return the machine's index of a device, which differs where CUDA_VISIBLE_DEVICES selects devices."""
    index = opened.device.index or 0
    visible = getattr(driver(opened.device.kind), "visible", None)  # of emulated devices
    return index if visible is None else int(visible()[index])


def _objects_of_pytorch(
    objects: list[Any],
) -> tuple[list[torch.nn.Module], list[torch.Tensor], list[torch.optim.Optimizer]]:
    """Return the modules, tensors and optimizers among objects, of which there may be a million.

    No loop of Python sees each. They are told by their types, of which there are few, as `isinstance` may execute code
    of the program.
    """
    kinds = set(map(type, objects))
    classes = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)
    wanted = {each for each in kinds if issubclass(each, classes)}
    found = [*compress(objects, map(wanted.__contains__, map(type, objects)))]
    modules, tensors, optimizers = ([each for each in found if issubclass(type(each), kind)] for kind in classes)
    return modules, tensors, optimizers


def _outermost(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that no other one contains."""
    own = [each for each in modules if original_module(each) is each and not is_traced(each)]
    inner = {id(original_module(child)) for module in own for child in vars(module).get("_modules", {}).values()}
    return [each for each in own if id(each) not in inner]
