"""Counter sample buffers: times on the GPU at the beginning and the end of passes."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from . import constants as k
from .control import control
from .foundation import NSError
from .objects import Descriptor, Labeled, NSObject, autoreleased, instance, properties, unsigned

DOMAIN = "MTLCounterErrorDomain"
TIMESTAMP = "timestamp"
_SAMPLE = 8  # bytes
_MAX_SAMPLES = 4096


def gpu_now() -> int:
    """Return the GPU's time in ns."""
    return int(control.clock() * 1e9)


class MTLCounter(NSObject):
    """One value of a counter set."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def name(self) -> str:
        return self._name


class MTLCounterSet(NSObject):
    """A set of counters that are sampled together."""

    __slots__ = ("_device", "_name")

    def __init__(self, device: Any, name: str) -> None:
        super().__init__()
        self._device, self._name = device, name

    def name(self) -> str:
        return self._name

    def counters(self) -> tuple[MTLCounter, ...]:
        return (MTLCounter("GPUTimestamp"),)


@properties(counterSet=None, label=None, sampleCount=0, storageMode=k.MTLStorageModeShared)
class MTLCounterSampleBufferDescriptor(Descriptor):
    """The descriptor of a sample buffer."""

    __slots__ = ()


class SampleMemory:
    """The samples, which passes write."""

    def __init__(self, count: int) -> None:
        self.values = [0] * count


class MTLCounterSampleBuffer(Labeled):
    """Memory for samples."""

    __slots__ = ("_device", "_memory", "_mode")

    def __init__(self, device: Any, count: int, mode: int) -> None:
        super().__init__()
        self._device, self._mode = device, mode
        self._memory = SampleMemory(count)

    def device(self) -> Any:
        return self._device

    def sampleCount(self) -> int:
        return len(self._memory.values)

    def resolveCounterRange_(self, extent: Any) -> bytes:
        if self._mode != k.MTLStorageModeShared:
            control.violated("counter-storage", "resolveCounterRange_ of samples in private storage")
        values = self._checked(extent)
        return struct.pack(f"<{len(values)}Q", *values)

    def _checked(self, extent: Any) -> list[int]:
        location, length = (unsigned(each, "range") for each in extent)
        if location + length > len(self._memory.values):
            control.violated(
                "counter-range", f"samples {location} to {location + length} of {len(self._memory.values)}"
            )
        return self._memory.values[location : location + length]


@properties(
    sampleBuffer=None,
    startOfEncoderSampleIndex=k.MTLCounterDontSample,
    endOfEncoderSampleIndex=k.MTLCounterDontSample,
)
class SampleAttachment(Descriptor):
    """Which samples a pass takes."""

    __slots__ = ()


class MTLComputePassSampleBufferAttachmentDescriptor(SampleAttachment):
    """Which samples a compute pass takes."""

    __slots__ = ()


class MTLBlitPassSampleBufferAttachmentDescriptor(SampleAttachment):
    """Which samples a blit pass takes."""

    __slots__ = ()


class Attachments(NSObject):
    """The four places for sample buffers of a pass."""

    __slots__ = ("_kind", "_places")

    def __init__(self, kind: type[SampleAttachment]) -> None:
        super().__init__()
        self._kind = kind
        self._places = [kind() for _ in range(4)]

    def objectAtIndexedSubscript_(self, index: int) -> SampleAttachment:
        return self._places[unsigned(index, "index")]

    def setObject_atIndexedSubscript_(self, attachment: Any, index: int) -> None:
        replaced = self._kind() if attachment is None else instance(attachment, self._kind, "attachment")
        self._places[unsigned(index, "index")] = replaced


class _PassDescriptor(Descriptor):
    """The descriptor of a pass, with its attachments."""

    __slots__ = ("_attachments",)
    _attachment: type[SampleAttachment]

    def __init__(self) -> None:
        super().__init__()
        self._attachments = Attachments(self._attachment)

    def sampleBufferAttachments(self) -> Attachments:
        return self._attachments


@properties(dispatchType=k.MTLDispatchTypeSerial)
class MTLComputePassDescriptor(_PassDescriptor):
    """The descriptor of a compute encoder."""

    __slots__ = ()
    _attachment = MTLComputePassSampleBufferAttachmentDescriptor

    @classmethod
    def computePassDescriptor(cls) -> Any:
        return cls()


class MTLBlitPassDescriptor(_PassDescriptor):
    """The descriptor of a blit encoder."""

    __slots__ = ()
    _attachment = MTLBlitPassSampleBufferAttachmentDescriptor

    @classmethod
    def blitPassDescriptor(cls) -> Any:
        return cls()


def counter_sets(device: Any) -> tuple[MTLCounterSet, ...]:
    """Return the sets that a device can sample."""
    return (MTLCounterSet(device, TIMESTAMP),) if device._gpu.timestamps else ()


def new_sample_buffer(device: Any, descriptor: Any) -> tuple[MTLCounterSampleBuffer | None, NSError | None]:
    """Create a sample buffer as its descriptor says."""
    values = instance(descriptor, MTLCounterSampleBufferDescriptor, "descriptor")._values
    wanted, count = values.get("counterSet"), values.get("sampleCount", 0)
    if wanted is None:
        control.violated("nil", "the counter set is nil")
    if not count or count > _MAX_SAMPLES or wanted._device is not device:
        text = f"a sample buffer of {count} samples is invalid"
        error = NSError(DOMAIN, k.MTLCounterSampleBufferErrorInvalid, text)
        return None, autoreleased(error, "newCounterSampleBufferWithDescriptor_error_")
    mode = values.get("storageMode", k.MTLStorageModeShared)
    return MTLCounterSampleBuffer(device, count, mode), None


def samples_of(encoder: Any, descriptor: Any) -> list[tuple[Any, int, int]]:
    """Return the memory of samples that a pass takes, and the indices at its beginning and its end."""
    found = []
    for attachment in descriptor._attachments._places:
        values = attachment._values
        buffer = values.get("sampleBuffer")
        if buffer is None:
            continue
        if not encoder.device()._gpu.timestamps:
            control.violated("counter-point", f"samples at stage boundaries on {encoder.device()._gpu.name}")
        encoder._uses(buffer)
        places = [values.get(f"{end}OfEncoderSampleIndex", k.MTLCounterDontSample) for end in ("start", "end")]
        for place in places:
            if place != k.MTLCounterDontSample and place >= len(buffer._memory.values):
                control.violated("counter-range", f"sample {place} of {len(buffer._memory.values)}")
        found.append((buffer._memory, *places))
    return found


def take(samples: list[tuple[Any, int, int]], end: int) -> None:
    """Take the samples at the beginning (0) or the end (1) of a pass."""
    for memory, *places in samples:
        if places[end] != k.MTLCounterDontSample:
            memory.values[places[end]] = gpu_now()


def resolve(encoder: Any, samples: Any, extent: Any, destination: Any, offset: int) -> Any:
    """Return the operation that writes samples into a buffer."""
    encoder._uses(instance(samples, MTLCounterSampleBuffer, "sampleBuffer"))
    samples._checked(extent)
    location, length = extent
    if unsigned(offset, "destinationOffset") % _SAMPLE:
        control.violated("counter-range", f"destinationOffset {offset} is no multiple of {_SAMPLE}")
    what = f"resolved samples at {offset}"
    destination._usable(offset, length * _SAMPLE, what)
    region, memory = destination._region, samples._memory

    def write(current: Any) -> None:
        data = struct.pack(f"<{length}Q", *memory.values[location : location + length])
        ctypes.memmove(current.use(region, what, offset, len(data), write=True), data, len(data))

    return write
