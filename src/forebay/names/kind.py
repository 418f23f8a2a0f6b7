"""One device kind as its PyTorch-compatible module uses it: device arguments, initialisation and open devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay import backends
from forebay._base.device_spec import Device, DeviceLike, is_pytorch_device
from forebay.backends.common.cuda_errors import INVALID_DEVICE, accelerator_error
from forebay.errors import ForebayError
from forebay.names._device_context import DeviceArguments
from forebay.runtime.base import lazy_init
from forebay.runtime.base.lazy_init import LazyInit
from forebay.runtime.devices import current, open_device
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.spi import Describes, DeviceProps

__all__ = ["DeviceErrorMessages", "DeviceKind"]

_MIN_INDEX, _MAX_INDEX = -128, 127  # of PyTorch's DeviceIndex


@dataclass(frozen=True)
class DeviceErrorMessages:
    """Error texts of `DeviceKind.index`; PyTorch's modules word them differently."""

    cpu: str = "Expected a {kind} device, but got: {device}"
    other: str = "Expected a {kind} device, but got: {device}"
    other_than_cpu: str = "Expected a {kind} or cpu device, but got: {device}"  # with allow_cpu
    missing_index: str = "Expected a torch.device with a specified index or an integer, but got:{device}"


class DeviceKind(DeviceArguments):
    """A device kind by its name. Only `open_device` and `open_device_for_stream` open a device.

    `no_backend` is the error text of the first use without a backend. `has_hooks` is set for kinds that PyTorch reaches
    through its accelerator hooks: `require_backend` raises the hook's error then.
    """

    def __init__(
        self,
        name: str,
        *,
        deferred_error: type[Exception] | None = None,
        no_backend: str = "",
        has_hooks: bool = False,
        messages: DeviceErrorMessages | None = None,
    ) -> None:
        self.name: str = name
        self._messages = DeviceErrorMessages() if messages is None else messages
        self.initialisation: LazyInit = lazy_init.get(name)
        self.devices: dict[int, Device] = self.initialisation.devices
        super().__init__(name, open_device.named_devices(name), self.initialisation)
        if deferred_error is not None:
            self.initialisation.deferred_error = deferred_error
        if no_backend:
            self.initialisation.no_backend = no_backend
        self.has_hooks = has_hooks

    def device_at(self, index: int) -> Device:
        """Return the Device of that index, which need not exist."""
        return self.devices.get(index) or Device(self.name, index)

    @property
    def display_name(self) -> str:
        """The kind as messages spell it, such as "CUDA"."""
        return self.initialisation.word

    def count(self) -> int:
        """Return the number of devices, 0 for an unknown kind. Devices are counted again until the first use."""
        init = self.initialisation
        return init.count if init.done else open_device.device_count(self.name)

    def index(self, device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
        """Return the index of a device argument; an int is returned unchanged, the CPU device is -1 if allowed.

        With `optional`, an argument without an index selects the current device, which initialises the kind. Raises
        ValueError for another kind or a missing index. (`torch.cuda._utils._get_device_index`)
        """
        found = self.spelled_index(device, optional)
        if found is not None:
            return found
        found = self.named_index(device, allow_cpu=allow_cpu)
        if found is not None:
            return found
        if optional:  # PyTorch accepts any other object here
            return self.current_index()
        raise ValueError(self._messages.missing_index.format(device=device))

    def optional_index(self, device: Any, *, allow_cpu: bool = False) -> int | None:
        """Return the index of a device argument; without one that of the current device, None if there is no device."""
        found = self.named_index(device, allow_cpu=allow_cpu)
        if found is None and (self.has_hooks or self.initialisation.bad_fork or self.count()):
            return self.current_index()
        return found

    def named_index(self, device: Any, *, allow_cpu: bool = False) -> int | None:
        """Return the index that a device argument names, or None. Raises ValueError for another kind."""
        if isinstance(device, int):
            return device
        parsed = Device(device) if isinstance(device, str) or is_pytorch_device(device) else device
        if isinstance(parsed, Device):
            if parsed.kind != self.name:
                is_cpu = parsed.kind == "cpu"
                if is_cpu and allow_cpu:
                    return -1
                messages = self._messages
                text = messages.cpu if is_cpu else messages.other_than_cpu if allow_cpu else messages.other
                raise ValueError(text.format(kind=self.name, device=parsed))
            if parsed.index is not None:
                return parsed.index
        elif isinstance(index := getattr(device, "idx", None), int):  # a DeviceContext, as cuda.device(1)
            return index
        return None

    def explicit_index(self, device: Any) -> int | None:
        """Return the index that a device argument names; None if it selects the current device. Initialises nothing.

        Raises ValueError for another kind. Equals `index(device, optional=True)` in every other respect.
        """
        parsed = Device(device) if isinstance(device, str) or is_pytorch_device(device) else device
        if isinstance(parsed, (int, Device)):
            return None if parsed == Device(self.name) else self.index(parsed)
        index = getattr(parsed, "idx", None)
        return index if isinstance(index, int) else None

    def device(self, device: DeviceLike | None = None) -> Device:
        """Return the Device of a device argument. Raises DeviceError, with CUDA's text, if it does not exist."""
        index = int(self.index(device, optional=True))  # it may be True
        self.check(index)
        return self.device_at(index)

    def check(self, index: int) -> None:
        """Initialise the kind. Raises DeviceError if it has no device of that index."""
        init = self.initialisation
        if not init.done:
            init.ensure()
        count = self.count()
        if not 0 <= index < count:
            note = f"The index {index} is out of range: there {'is' if count == 1 else 'are'} {count}."
            raise accelerator_error(INVALID_DEVICE, kind=self.name, device=f"{self.name}:{index}", note=note)

    def require_backend(self, hook: str) -> None:
        """Raise ForebayError, with PyTorch's text for that hook and the reason, if the kind has no device.

        Does nothing for a kind without `has_hooks`.
        """
        if self.initialisation.done or not self.has_hooks or self.count():
            return
        reason = backends.why_not(self.name)
        raise ForebayError(f"Cannot execute {hook}() without {self.display_name} backend.\n{reason}")

    @staticmethod
    def checked_index(index: Any, function: str) -> int:
        """Return an int as it is. Raises ForebayError, with the text of PyTorch's C++ functions, for another object.

        `function` is the name in the text. An index that does not fit into PyTorch's 8 bits is refused, too.
        """
        if index.__class__ is bool or not isinstance(index, int):
            raise ForebayError(f"invalid argument to {function}")
        if not _MIN_INDEX <= index <= _MAX_INDEX:
            raise ForebayError("Overflow when unpacking DeviceIndex")
        return index

    def check_range(self, index: int) -> int:
        """Return the index. Raises ForebayError, with the text of PyTorch's C++ functions, if it is out of range."""
        count = self.count()
        if not 0 <= index < count:
            raise ForebayError(f"Device index value {index} is out of index range [0, {count})")
        return index

    def current_index(self) -> int:
        """Return the index of this thread's current device. Initialises the kind, but does not open a device."""
        if not self.initialisation.done:
            self.require_backend("getCurrentDevice")
            self.initialisation.ensure()
        return local.state.indices.get(self.name, 0)

    def exchange(self, index: int | None, *, device: Device | None = None) -> int:
        """Make a device current and return the index of the previous one; a negative index only returns -1.

        `device`, if of another kind, then becomes this thread's current device of all kinds.
        """
        now = local.state.device
        is_current = now is not None and now.index == index and now.kind == self.name
        if is_current and index.__class__ is int and device is None and self.initialisation.done:
            return index
        if index.__class__ is not int:
            self.require_backend("maybeExchangeDevice")
            index = self.checked_index(index, "exchangeDevice")
        if index < 0:
            return -1
        init, state = self.initialisation, local.state
        if not init.done:
            self.require_backend("maybeExchangeDevice")
            init.ensure()
        before = state.indices.get(self.name, 0)
        if index != before or state.device is None or state.device.kind != self.name:
            if index >= init.count:  # out of range, or called by a queued call
                self.check(self.checked_index(index, "exchangeDevice"))
            state.make_current(self.device_at(index))
        if device is not None and device.kind != self.name:
            state.make_current(device)
        return before

    def open_device(self, device: DeviceLike | None = None, hook: str = "") -> OpenDevice:
        """Return the device of a device argument, or the current device, and open it if needed.

        With `hook`, calls `require_backend(hook)` before it selects the current device.
        """
        if (found := self.known(device)) is not None:
            return found
        if device is not None:
            return open_device.open_device(self.device(device))
        if hook:
            self.require_backend(hook)
        found = open_device.open_device(self.device())
        current.cache_opened(found)
        return found

    def open_device_for_stream(self, device: Any, function: str) -> OpenDevice:
        """Return the open device for a stream function: -1 is the current one.

        Errors are those of `checked_index`, for `function`, and `check_range`.
        """
        if (found := self.known(device)) is not None:
            return found
        if device is None:
            return self.open_device()
        index = self.index(device, optional=True)
        self.initialisation.ensure()
        if index.__class__ is not int or index > _MAX_INDEX:
            self.checked_index(index, function)
        if index != -1:
            self.check_range(index)
        return self.open_device(None if index in (-1, current.current_index(self.name)) else index)

    def get_open_device(self, device: DeviceLike | None = None) -> OpenDevice | None:
        """Return the device if it is already open, else None. Does not initialise a kind that is not in use."""
        if (found := self.known(device)) is not None:
            return found
        if not self.initialised:
            return None
        return open_device.get_open_device(self.device_at(self.index(device, optional=True)))

    @property
    def initialised(self) -> bool:
        """True once this process has used the kind."""
        return self.initialisation.done

    def describe(self, device: DeviceLike | None = None) -> DeviceProps:
        """Return the device's properties. Initialises the kind; opens the device only if its driver requires that."""
        if (opened := self.known(device)) is not None:
            return opened.port.props
        found = self.device(device)
        index, opened = found.index or 0, open_device.get_open_device(found)
        if opened is not None:
            return opened.port.props
        driver = backends.driver(self.name)
        return driver.describe(index) if isinstance(driver, Describes) else self.open_device(index).port.props
