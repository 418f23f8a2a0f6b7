"""Streams and events of CUDA devices, with PyTorch's attributes (`torch.cuda.streams`)."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, ClassVar, Final, Self

from forebay._base.device_spec import Device, DeviceLike
from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError
from forebay.names.streams import StreamContext as StreamContextOfKind
from forebay.names.streams import current_stream_on
from forebay.runtime.base.torch_types import device_type as device_type_of
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.devices.stream_pool import MOST_URGENT
from forebay.runtime.streams import event as events
from forebay.runtime.streams import stream as streams
from forebay.runtime.streams.stream_ids import find_queue

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "as_cuda_stream",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "set_stream",
    "set_stream_by_id",
    "stream",
]

_lazy_init = CUDA.initialisation
_LARGEST_BYTE = 255
_LEGACY_STREAM = 1  # CU_STREAM_LEGACY, another handle of the default stream
_NUMBERS = ("stream_id", "device_index", "device_type")
_ID_KEYWORDS = {*_NUMBERS, "stream_ptr"}
_ANOTHER_DEVICE_TYPE = (
    "Expected stream_.device_type() == DeviceType::CUDA to be true, but got false.  (Could this error message be "
    "improved?  If so, please report an enhancement request to forebay.)"
)


class Stream(streams.Stream):
    """An in-order queue of work on a CUDA device.

    As `torch.cuda.Stream`. Each priority has 32 streams per device, assigned in turn: the 33rd stream is the first
    again. Initialises CUDA and opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default or for a negative index.
    priority : int, default 0
        Between 0 and -3, the most urgent; values outside are clamped.
    **kwargs : int
        Wrap an existing stream instead: `stream_id`, `device_index` and `device_type` as PyTorch numbers them, or
        `stream_ptr`, the driver's handle.

    Raises
    ------
    TypeError
        If there is another keyword argument, or an argument has another type.
    RuntimeError
        If `stream_id` or `device_index` is given without CUDA's `device_type`.
    DeviceError
        If the device, or the stream to wrap, does not exist.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     cuda.Stream(priority=-1).priority
    -1
    """

    _external = False  # True if the stream was wrapped by its handle

    def __init__(self, device: DeviceLike | None = None, priority: int = 0, **kwargs: Any) -> None:
        if kwargs and self._wrap(device, kwargs):
            return
        opened = CUDA.known(device) or _open_current_or(device)
        if priority.__class__ is not int or not MOST_URGENT <= priority <= 0:
            priority = operator.index(priority)
            if not -1 << 31 <= priority < 1 << 31:
                bound = "greater than maximum" if priority > 0 else "less than minimum"
                raise OverflowError(f"signed integer is {bound}")
            priority = max(MOST_URGENT, min(priority, 0))
        self.borrow(opened, priority)

    def _wrap(self, device: Any, named: dict[str, Any]) -> bool:
        """Attach this object to the stream that the keywords denote. Return False if they denote a new stream."""
        if unknown := named.keys() - _ID_KEYWORDS:
            raise TypeError(f"{min(unknown)!r} is an invalid keyword argument for this function")
        stream_id, index, kind = (operator.index(named.get(name, 0)) for name in _NUMBERS)
        pointer = named.get("stream_ptr")
        if pointer is not None:
            _check_pointer(pointer)
        if stream_id or index or kind:
            if kind != device_type_of(CUDA.name):
                raise ForebayError(_ANOTHER_DEVICE_TYPE)
            opened = CUDA.open_device(index if index >= 0 else CUDA.check_range(index))
            self.bind(opened, find_queue(opened, stream_id), 0)
            return True
        if pointer is None:
            return False
        opened = _open_current_or(device)
        self.bind(opened, find_queue(opened, 0 if pointer == _LEGACY_STREAM else pointer), 0)
        self._external = True
        return True

    @property
    def stream_id(self) -> int:
        """PyTorch's stream id; the driver's handle of a stream that was wrapped by it."""
        return self.handle if self._external else super().stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the most urgent priority: `(0, -3)`.

        As `torch.cuda.Stream.priority_range`. Does not initialise CUDA.

        Examples
        --------
        >>> import forebay.cuda as cuda
        >>> cuda.Stream.priority_range()
        (0, -3)
        """
        return 0, MOST_URGENT

    @property
    def cuda_stream(self) -> int:
        """The driver's handle; 0 for the default stream."""
        return self.handle

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the CUDA stream protocol (0) and the driver's handle."""
        return 0, self.handle

    def wait_stream(self, stream: streams.Stream) -> None:
        """Make later work on this stream wait until the work queued so far on another stream is done.

        As `torch.cuda.Stream.wait_stream`. The host does not wait.

        Parameters
        ----------
        stream : Stream
            The stream to wait for.
        """
        streams.Stream.wait_stream(self, stream)

    def record_event(self, event: events.Event | None = None) -> events.Event:
        """Record an event on this stream and return the event.

        As `torch.cuda.Stream.record_event`.

        Parameters
        ----------
        event : Event, optional
            The event to record; a new one by default.

        Raises
        ------
        RuntimeError
            If the event belongs to another device.
        """
        event = Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, o: object) -> bool:
        return isinstance(o, Stream) and o.opened is self.opened and o.stream_id == self.stream_id

    __hash__: Final = streams.Stream.__hash__

    def __repr__(self) -> str:
        return f"<forebay.cuda.Stream device={self.device} cuda_stream={self.handle:#x}>"


class ExternalStream(Stream):
    """A stream created elsewhere, wrapped by its handle.

    As `torch.cuda.ExternalStream`. The creator owns the stream and must keep it alive as long as this object is used,
    and until memory that `record_stream` marked with it is free. Initialises CUDA and opens the device. Emulated
    devices accept only handles of their own streams.

    Parameters
    ----------
    stream_ptr : int or None
        The driver's handle of the stream; None for a new stream.
    device : device or str or int, optional
        The stream's device; the current one by default.
    **kwargs : int
        As for `Stream`.

    Raises
    ------
    RuntimeError
        If `stream_ptr` is neither an int nor None.
    DeviceError
        If the device has no such stream.

    Examples
    --------
    Let forebay's work follow that of CuPy, and the reverse:

    >>> import cupy, forebay.cuda as cuda  # doctest: +SKIP
    >>> theirs = cupy.cuda.Stream(non_blocking=True)  # doctest: +SKIP
    >>> with cuda.stream(cuda.ExternalStream(theirs.ptr)):  # doctest: +SKIP
    ...     tensor.zero_()
    """

    def __init__(self, stream_ptr: int | None, device: DeviceLike | None = None, **kwargs: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr, **kwargs)


def _check_pointer(pointer: Any) -> None:
    if not isinstance(pointer, int):
        raise ForebayError(f"stream_ptr must be an int or None, got {type(pointer).__name__}")
    if pointer < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if pointer >= 1 << 64:
        raise OverflowError("int too big to convert")


def _open_current_or(device: Any) -> OpenDevice:
    """Return the device of an argument, opened; the current one for None or a negative index."""
    if device is None:
        return CUDA.open_device()
    index = CUDA.index(device, optional=True)
    if index.__class__ is not int or not 0 <= index < CUDA.count():
        CUDA.initialisation.ensure()
        CUDA.checked_index(index, "exchangeDevice")
    return CUDA.open_device(None if index < 0 else index)


# Written by tools/write_names.py from tools/names/streams.toml: edit the table, not these lines.


def as_cuda_stream(stream: streams.Stream) -> Stream:
    """Return the stream as a `forebay.cuda.Stream` of the same queue.

    Parameters
    ----------
    stream : forebay.Stream
        A stream of a CUDA device.

    Returns
    -------
    Stream
        The stream itself if it is one already; otherwise the result replaces it as current or default stream.
    """
    return streams.cast_to_face(Stream, stream)


def default_stream(device: DeviceLike | None = None) -> Stream:
    """Return a device's default stream, which has the handle 0.

    As `torch.cuda.default_stream`. Initialises CUDA and opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    Stream
        The stream that every thread uses until it selects another one.

    Raises
    ------
    DeviceError
        If the device does not exist.
    """
    return as_cuda_stream(streams.default_stream_for(CUDA.open_device_for_stream(device, "getDefaultStream")))


def set_stream(stream: streams.Stream | None) -> None:
    """Make a stream this thread's current one, and its device the current device.

    As `torch.cuda.set_stream`.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Raises
    ------
    TypeError
        If `stream` is not a stream.
    """
    if stream is not None:
        streams.set_stream(stream)


def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """Make the stream with PyTorch's numbers this thread's current one.

    As `torch.cuda._set_stream_by_id`. Initialises CUDA and opens the device.

    Parameters
    ----------
    stream_id : int
        As `Stream.stream_id`.
    device_index : int
        The index of the stream's device.
    device_type : int
        As `Stream.device_type`.

    Raises
    ------
    RuntimeError
        If `device_type` is not that of CUDA.
    DeviceError
        If the device or the stream does not exist.
    """
    numbers = (stream_id, device_index, device_type)
    if not all(isinstance(number, int) for number in numbers) or device_type != device_type_of(CUDA.name):
        raise ForebayError(_ANOTHER_DEVICE_TYPE)
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def get_stream_from_external(data_ptr: int, device: DeviceLike | None = None) -> Stream:
    """Return a stream created elsewhere, wrapped by its handle, which is its `stream_id`.

    As `torch.cuda.get_stream_from_external`. Initialises CUDA and opens the device.

    Parameters
    ----------
    data_ptr : int
        The driver's handle of the stream, which its creator keeps alive.
    device : device or str or int, optional
        The stream's device; the current one by default.

    Raises
    ------
    TypeError
        If `data_ptr` is not an int.
    DeviceError
        If the device has no such stream.
    """
    if not isinstance(data_ptr, int):
        raise TypeError(f"get_stream_from_external(): argument 'data_ptr' must be int, not {type(data_ptr).__name__}")
    return Stream(int(device) if isinstance(device, bool) else device, stream_ptr=data_ptr)


def stream(stream: streams.Stream | None) -> StreamContext:
    """Return a context manager that makes a stream and its device current.

    As `torch.cuda.stream`. Initialises CUDA.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     s = cuda.Stream()
    ...     with cuda.stream(s):
    ...         cuda.current_stream() == s
    True
    """
    return StreamContext(stream)


# End of the written lines.


def current_stream(device: DeviceLike | None = None) -> Stream:
    """Return this thread's current stream on a device.

    As `torch.cuda.current_stream`. Initialises CUDA and opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    Stream
        The stream that receives this thread's work on the device.

    Raises
    ------
    DeviceError
        If the device does not exist.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     cuda.current_stream() == cuda.default_stream()
    True
    """
    if device is None:
        known = local.state.stream
        if known.__class__ is Stream and not known.opened.unusable:
            return known
    return current_stream_on(CUDA.open_device_for_stream(device, "getCurrentStream"), Stream)


class StreamContext(StreamContextOfKind):
    """A context manager that makes a stream and its device current.

    As `torch.cuda.StreamContext`. On exit the previous streams of both devices and the previous device are restored.
    Not re-entrant: enter a context again only after leaving it. Creating one initialises CUDA.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Raises
    ------
    TypeError
        On entry, if `stream` is not a stream.
    """

    kind = CUDA
    stream_class: ClassVar[type[Stream]] = Stream

    def __init__(self, stream: streams.Stream | None) -> None:
        self.stream = stream
        if not _lazy_init.done and (_lazy_init.bad_fork or CUDA.count()):
            _lazy_init.ensure()
        # Without a device nothing is done.
        self.idx: int = local.state.indices.get("cuda", 0) if _lazy_init.done else -1
        self.src_prev_stream: streams.Stream | None = None
        self.dst_prev_stream: streams.Stream | None = None

    @staticmethod
    def as_stream_class(stream: streams.Stream) -> Stream:
        """Return the stream as a `forebay.cuda.Stream`; itself if it is one already.

        Parameters
        ----------
        stream : forebay.Stream
            A stream of a CUDA device.
        """
        return as_cuda_stream(stream)


class Event(events.Event):
    """A marker in a stream, to query, wait for or time.

    As `torch.cuda.Event`. The first `record` determines the event's device.

    Parameters
    ----------
    enable_timing : bool, default False
        Record the time, for `elapsed_time`.
    blocking : bool, default False
        Stored without effect: no wait spins for long.
    interprocess : bool, default False
        Allow other processes to import the event, see `ipc_handle`.
    external : bool, default False
        Make `record` and `wait` in a graph capture nodes of the graph, which each replay repeats, so that the event can
        be used outside the graph. Otherwise they order the captured streams only.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     event = cuda.Event()
    ...     event.record()
    ...     event.synchronize()
    ...     event.query()
    True
    """

    _another_index = "Event device {} does not match recording stream's device {}."
    _not_an_event = "expected other to be a forebay.cuda.Event object"

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        if not (enable_timing.__class__ is blocking.__class__ is interprocess.__class__ is external.__class__ is bool):
            flags = (enable_timing, blocking, interprocess, external)
            enable_timing, blocking, interprocess, external = map(_flag, flags)
        self._init("cuda", None, enable_timing, blocking, interprocess)
        self.external = external

    def record(self, stream: streams.Stream | None = None) -> None:
        """Record the event after the work queued so far on a stream, replacing an earlier record.

        As `torch.cuda.Event.record`. Does not wait.

        Parameters
        ----------
        stream : Stream, optional
            The stream; the current one by default.

        Raises
        ------
        RuntimeError
            If the stream is on another device than the event.
        """
        self.record_on(current_stream() if stream is None else stream)

    def wait(self, stream: streams.Stream | None = None) -> None:
        """Make later work on a stream wait for the event.

        As `torch.cuda.Event.wait`. The host does not wait. Does nothing if the event was never recorded.

        Parameters
        ----------
        stream : Stream, optional
            The stream; the current one by default.
        """
        events.Event.wait(self, current_stream() if stream is None else stream)  # faster than super()

    def ipc_handle(self) -> bytes:
        """Return 64 bytes by which another process can import the event while it exists here; see `from_ipc_handle`.

        As `torch.cuda.Event.ipc_handle`. An event that was never recorded is assigned to the current device.

        Raises
        ------
        DeviceError
            Unless the event was created with `interprocess=True` and without timing.
        """
        if self.device is None:
            self.bind(CUDA.open_device(None).device)
        return super().ipc_handle()

    @classmethod
    def from_ipc_handle(cls, device: DeviceLike, handle: bytes) -> Self:
        """Return the event that another process exported.

        As `torch.cuda.Event.from_ipc_handle`. Initialises CUDA and opens the device.

        Parameters
        ----------
        device : device or str or int
            The event's device.
        handle : bytes
            The result of `ipc_handle` in the other process.

        Raises
        ------
        DeviceError
            If the handle is of this process, or the other process or its event no longer exists.
        """
        if isinstance(device, (str, int, Device)) and device.__class__ is not bool:
            named = Device(device)
            if named.kind != CUDA.name:
                raise ForebayError(f"Event can only be created on CUDA devices, but got device type {named.kind}")
            device = CUDA.open_device(CUDA.index(named, optional=True)).device
        else:
            name = type(device).__name__
            raise TypeError(f"from_ipc_handle(): argument 'device' (position 1) must be forebay.device, not {name}")
        return super().from_ipc_handle(device, handle)

    @property
    def cuda_event(self) -> int:
        """A number that identifies the event in this process; 0 until the event is recorded."""
        return self.event_id

    def elapsed_time(self, end_event: events.Event) -> float:
        """Return the milliseconds from this event to another one.

        As `torch.cuda.Event.elapsed_time`. Does not wait.

        Parameters
        ----------
        end_event : Event
            The later event.

        Raises
        ------
        ValueError
            If an event was not created with `enable_timing=True`, or not recorded.
        RuntimeError
            If the work before one of the events is not done.
        """
        return events.Event.elapsed_time(self, end_event)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        return f"<forebay.cuda.Event {self.cuda_event:#x}>" if self.recorded else "<forebay.cuda.Event uninitialized>"


def _flag(value: Any) -> bool:
    """Return a flag of an event. Raises TypeError or OverflowError unless it is a bool or a byte, as in PyTorch."""
    number = operator.index(value)
    if number < 0:
        raise OverflowError("unsigned byte integer is less than minimum")
    if number > _LARGEST_BYTE:
        raise OverflowError(
            "unsigned byte integer is greater than maximum"
            if number < 1 << 63
            else "Python int too large to convert to C long"
        )
    return bool(number)
