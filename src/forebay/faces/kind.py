"""One kind of device as its face sees it: which device an argument means, and the way to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay import backends
from forebay.backends.common.cuda_errors import INVALID_DEVICE, accelerator_error
from forebay.device_spec import Device
from forebay.errors import ForebayError
from forebay.runtime.base import lazy_init
from forebay.runtime.devices import current, open_device
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.spi import Describes, DeviceProps

__all__ = ["Kind", "Refusals"]


@dataclass(frozen=True)
class Refusals:
    """What `Kind.index` says of a device that cannot be meant: PyTorch's modules say it differently."""

    host: str = "Expected a {kind} device, but got: {device}"
    other: str = "Expected a {kind} device, but got: {device}"
    other_than_host: str = "Expected a {kind} or cpu device, but got: {device}"  # where the host may be meant
    unnamed: str = "Expected a torch.device with a specified index or an integer, but got:{device}"


class Kind:
    """A kind by its name. Nothing here opens a device but `opened`.

    `no_backend` is what its first use says where there is no backend. With `hooks` PyTorch asks that by the name of a
    function, and `hook` says which one there is nobody for.
    """

    def __init__(
        self,
        name: str,
        *,
        deferred_error: type[Exception] | None = None,
        no_backend: str = "",
        hooks: bool = False,
        refusals: Refusals | None = None,
    ) -> None:
        self.name = name
        self._refusals = Refusals() if refusals is None else refusals
        self.initialisation = lazy_init.of(name)
        self._named: dict[int, Device] = {}
        if deferred_error is not None:
            self.initialisation.deferred_error = deferred_error
        if no_backend:
            self.initialisation.no_backend = no_backend
        self._hooks = hooks

    def named(self, index: int) -> Device:
        """The device of that index: one object, as to make one takes long."""
        found = self._named.get(index)
        return self._named.setdefault(index, Device(self.name, index)) if found is None else found

    @property
    def word(self) -> str:
        """The kind as messages spell it."""
        return self.initialisation.word

    def count(self) -> int:
        """How many devices there are; 0 for a kind that nobody knows. They are counted anew until the first use."""
        first = self.initialisation
        return first.count if first.done else open_device.device_count(self.name)

    def index(self, device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
        """The index that is meant: an int is itself, a kind alone the current one, if that is `optional`.

        Raises ValueError for other kinds, for no index where it is not optional, and for what is no device; asking for
        the current one initialises the kind. (`torch.cuda._utils._get_device_index`)
        """
        if isinstance(device, int):
            return device
        named = Device(device) if isinstance(device, str) else device
        if isinstance(named, Device):
            if named.kind != self.name:
                host = named.kind in ("cpu", "host")
                if host and allow_cpu:
                    return -1
                said = self._refusals
                text = said.host if host else said.other_than_host if allow_cpu else said.other
                raise ValueError(text.format(kind=self.name, device=named))
            if named.index is not None:
                return named.index
        elif isinstance(index := getattr(device, "idx", None), int):  # one of `with cuda.device(1)`
            return index
        if optional:  # be it what it may, as in PyTorch
            return self.current_index()
        raise ValueError(self._refusals.unnamed.format(device=device))

    def device(self, device: Any = None) -> Device:
        """The device that is meant. DeviceError, with CUDA's words, where there is none of that index."""
        index = self.index(device, optional=True)
        self.check(index)
        return self.named(index)

    def check(self, index: int) -> None:
        """Initialises the kind; DeviceError where it has no device of that index."""
        first = self.initialisation
        if not first.done:
            first.ensure()
        count = self.count()
        if not 0 <= index < count:
            note = f"There {'is' if count == 1 else 'are'} {count}; this is index {index}."
            raise accelerator_error(INVALID_DEVICE, kind=self.name, device=f"{self.name}:{index}", note=note)

    def hook(self, name: str) -> None:
        """ForebayError where there is no device that `name` could be asked of: PyTorch's words, and the reason.

        Nothing for a kind that PyTorch does not ask so.
        """
        if self.initialisation.done or not self._hooks or self.count():
            return
        reason = backends.why_not(self.name)
        raise ForebayError(f"Cannot execute {name}() without {self.word} backend.\n{reason}")

    def ranged(self, index: int) -> int:
        """The same index. ForebayError, in the words of PyTorch's C++ functions, where there is no such device."""
        count = self.count()
        if not 0 <= index < count:
            raise ForebayError(f"Device index value {index} is out of index range [0, {count})")
        return index

    def current_index(self) -> int:
        """The index of this thread's current device. Initialises the kind, but opens nothing."""
        if not self.initialisation.done:
            self.hook("getCurrentDevice")
            self.initialisation.ensure()
        return local.here.indices.get(self.name, 0)

    def exchange(self, index: int, *, device: Device | None = None) -> int:
        """Make that device current, gives the index of the one before; a negative one changes nothing and gives -1.

        `device` becomes this thread's current device of all kinds, if it is another than that.
        """
        if index < 0:
            return -1
        first, state = self.initialisation, local.here
        if not first.done:
            self.hook("maybeExchangeDevice")
            first.ensure()
        before = state.indices.get(self.name, 0)
        if index != before or state.device is None or state.device.kind != self.name:
            if index >= first.count:  # it is that, or this is a queued call
                self.check(index)
            current.make_current(self.named(index))
        if device is not None and device.kind != self.name:
            current.make_current(device)
        return before

    def opened(self, device: Any = None, hook: str = "") -> OpenDevice:
        """The device that is meant, or the current one, opened if it is not yet; `hook` is asked before."""
        if device is not None:
            return open_device.open_device(self.device(device))
        found = local.here.opened
        if found is not None and found.kind == self.name:
            return found
        if hook:
            self.hook(hook)
        found = open_device.open_device(self.device())
        current.keep(found)
        return found

    def opened_for_stream(self, device: Any) -> OpenDevice:
        """The same as PyTorch's functions of streams have it: -1 is the current one, other errors are `ranged`'s."""
        if device is None:
            return self.opened()
        index = self.index(device, optional=True)
        self.initialisation.ensure()
        if index != -1:
            self.ranged(index)
        return self.opened(None if index in (-1, current.current_index(self.name)) else index)

    def opened_if(self, device: Any = None) -> OpenDevice | None:
        """The same, or None where it is not open: then nothing is initialised or touched."""
        if device is None:
            found = local.here.opened
            if found is not None and found.kind == self.name:  # and not gone
                return found  # what follows takes microseconds
        if not self.initialised:
            return None
        return open_device.opened_if(self.named(self.index(device, optional=True)))

    @property
    def initialised(self) -> bool:
        """Whether the kind was used, by this process."""
        return self.initialisation.done

    def describe(self, device: Any = None) -> DeviceProps:
        """What the device is. Initialises the kind, but opens the device only where its driver cannot tell before."""
        named = self.device(device)
        index, opened = named.index or 0, open_device.opened_if(named)
        if opened is not None:
            return opened.port.props
        driver = backends.driver(self.name)
        return driver.describe(index) if isinstance(driver, Describes) else self.opened(index).port.props
