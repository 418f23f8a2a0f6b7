"""Every hook by which a lower layer calls a higher one, in the order in which they are set.

# Note [Hooks of lower layers]
A module imports lower layers only (DESIGN.md). Where it needs a higher one, it declares an empty hook: a list of
functions, an attribute of `hooks`, or an attribute of a class. They are set here and nowhere else, when the package is
imported, so that a reader of the lower module finds what it calls. Hooks that a program sets are not among them.
The rejected alternative is an import inside the function that needs it: it hides a circle.
Test: tests/house/test_wiring.py::test_hooks_are_set_in_one_module
"""

from __future__ import annotations

import atexit
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay import _oom_advice, backends
from forebay._base import config, device_spec
from forebay.interop import reductions_at_fork
from forebay.records import model
from forebay.runtime.allocator import oom_message
from forebay.runtime.base import lazy_init
from forebay.runtime.devices import current, description, open_device
from forebay.runtime.lifecycle import exit_and_fork
from forebay.runtime.random import generator
from forebay.runtime.settings import process_settings
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream
from forebay.runtime.tensors import creation, rng_states
from forebay.runtime.tensors.new_methods import factories
from forebay.runtime.tensors.tensor import Tensor
from forebay.runtime.tensors.untyped_storage import UntypedStorage

if TYPE_CHECKING:
    from forebay.records.model import Snapshot
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.snapshot.analysis.timeline import Timeline

__all__: list[str] = []

_MPS_VARIABLES = (config.MPS_ALLOCATOR_LOG, config.MPS_OPERATION_LOG, config.MPS_SIGNPOSTS)


def _follow_mps_variables(opened: OpenDevice) -> None:
    """Do what PyTorch's variables for MPS request, which is imported only if one is set."""
    if opened.device.kind == "mps" and any(variable.value() for variable in _MPS_VARIABLES):
        import_module("forebay.observe.mps_logs").follow(opened)


def _snapshot_html(snapshot: Snapshot) -> str:
    return str(import_module("forebay.snapshot.report.notebook").snapshot_html(snapshot))


def _timeline_html(timeline: Timeline) -> str:
    return str(import_module("forebay.snapshot.report.notebook").timeline_html(timeline))


def _strided_tensor(*arguments: Any) -> Tensor:
    """Create a tensor with given strides, which few programs do: its module is imported when one does."""
    made: Tensor = import_module("forebay.runtime.tensors.other_factories").strided_tensor(*arguments)
    return made


# device(name): is the name of a kind that a backend or an installed package provides?
device_spec.hooks.installed = backends.drivers
# device(index), and a device without a kind: the kind of the current accelerator.
device_spec.hooks.accelerator = current.accelerator_kind
# The display of a device in a notebook: its memory and state.
device_spec.hooks.describe = description.describe
# The display of a snapshot in a notebook, and that of a timeline.
model.hooks.html = _snapshot_html
model.hooks.timeline_html = _timeline_html

# Before a kind's first use: its allocators keep some settings of that moment.
lazy_init.before_first_use.append(process_settings.keep_for_kind)
# Before each device is opened, outside the lock: processes may send its tensors.
open_device.BEFORE_OPENING.append(reductions_at_fork.register)
# After each device was opened, before its first use.
open_device.WHEN_OPENED.append(_follow_mps_variables)

# Stream.record_event() creates events.
Stream.event_class = Event
# get_state() of a generator returns a tensor.
generator.hooks.state_tensor = rng_states.state_tensor
# A tensor's methods create others.
factories.empty, factories.strided, factories.tensor = creation.empty_for, _strided_tensor, creation.tensor
# A storage copies, fills and prints its bytes as a tensor.
UntypedStorage.tensor_type = Tensor
# The text of an OutOfMemory: a setting that would have avoided it.
oom_message.ADVISERS.append(_oom_advice.advise)

# A fork: functions that run before it do so in reverse order, so that queues are completed while imports still go on.
os.register_at_fork(
    before=reductions_at_fork.before_fork,
    after_in_parent=reductions_at_fork.after_fork_in_parent,
    after_in_child=reductions_at_fork.after_fork_in_child,
)
os.register_at_fork(before=exit_and_fork.before_fork, after_in_child=exit_and_fork.after_fork_in_child)
# The interpreter's exit.
atexit.register(exit_and_fork.at_exit)
