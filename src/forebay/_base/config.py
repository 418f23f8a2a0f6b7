"""The environment variables of forebay, in one table. Each is read at its use, not at import."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from forebay._base.byte_sizes import format_bytes, parse_bytes

if TYPE_CHECKING:
    from pathlib import Path  # at run time only when it is needed, as system_memory, which needs it: it takes long

__all__ = [
    "ALLOCATOR_SETTINGS",
    "CPU_DEVICES",
    "CPU_MEMORY",
    "DRIVER_TIMEOUT",
    "EMULATE",
    "HIGH_WATERMARK",
    "LOW_WATERMARK",
    "MPS_ALLOCATOR_LOG",
    "MPS_FAST_MATH",
    "MPS_OPERATION_LOG",
    "MPS_SIGNPOSTS",
    "SANITIZER",
    "STRAY_CONTEXTS",
    "TRACE",
    "UNLIMITED",
    "VARIABLES",
    "Emulated",
    "Variable",
    "allocator_settings",
    "parse_emulated",
]

UNLIMITED = 1 << 44  # bytes: a device with this capacity has no limit but the system's; several such ranges of
# addresses can be reserved

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Variable(Generic[_T]):
    """An environment variable: name, meaning, parser, and default."""

    name: str
    meaning: str
    parse: Callable[[str], _T]
    default: Callable[[], _T]

    def value(self) -> _T:
        """Return the parsed value; the default if unset or empty. Raises ValueError, with the name, if invalid."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"environment variable {self.name}: {error}") from None


def _devices(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 64:
        return int(text)
    raise ValueError(f"{text!r} is not a number of devices from 1 to 64")


def _share_of_memory() -> int:
    try:
        devices = CPU_DEVICES.value()
    except ValueError:  # reported by the function that counts devices
        devices = 1
    from forebay._base.system_memory import usable_memory

    return usable_memory() * 3 // 4 // devices


CPU_DEVICES = Variable("FOREBAY_CPU_DEVICES", "how many CPU devices there are; 1 if not set", _devices, lambda: 1)
CPU_MEMORY = Variable(
    "FOREBAY_CPU_MEMORY",
    f"the memory of each CPU device, as {format_bytes(16 << 30)} or 512m; if not set, they share three quarters of "
    "the memory that the process may use",
    parse_bytes,
    _share_of_memory,
)


@dataclass(frozen=True, slots=True)
class Emulated:
    """Devices of one kind to emulate: number, profile, memory of each, and whether host accesses to it are refused.

    `reserve` is what is outside the allocator, which it cannot get (`forebay._base.outside_memory`).
    """

    kind: str
    count: int = 1
    profile: str = ""
    guard: bool = False
    memory: int | None = None  # bytes; None: as the profile
    reserve: int = 0  # bytes of the memory of each device

    def __str__(self) -> str:
        """Return the text that `parse_emulated` reads."""
        profile = f"@{self.profile}" if self.profile else ""
        memory = "" if self.memory is None else f"+memory={self.memory}"
        reserve = f"+reserve={self.reserve}" if self.reserve else ""
        return f"{self.kind}:{self.count}{profile}{memory}{reserve}{'+guard' if self.guard else ''}"


_EMULATED = re.compile(
    r"([a-z]+)(?::([1-9][0-9]?))?(?:@([^\s+]+))?(?:\+memory=([^+,]+))?(?:\+reserve=([^+,]+))?(\+guard)?"
)


def parse_emulated(text: str) -> tuple[Emulated, ...]:
    """Parse `cuda:2@h200`, `cuda:2@h200+memory=8GiB+guard`, or several of these separated by commas.

    A profile alone, as in `h200`, is one device of its kind. Raises ValueError for other texts.

    >>> parse_emulated("cuda:2@h200")
    (Emulated(kind='cuda', count=2, profile='h200', guard=False, memory=None, reserve=0),)
    """
    found = []
    for part in text.split(","):
        match = _EMULATED.fullmatch(part.strip()) or _EMULATED.fullmatch(_with_kind(part.strip()))
        if match is None:
            raise ValueError(
                f"{part.strip()!r} is not a valid emulation: expected KIND:COUNT@PROFILE, as in cuda:2@h200, "
                "cuda:2@h200+memory=8GiB+guard, or a profile, as in h200"
            )
        memory = parse_bytes(match[4]) if match[4] else None
        reserve = parse_bytes(match[5]) if match[5] else 0
        found.append(Emulated(match[1], int(match[2] or 1), match[3] or "", match[6] is not None, memory, reserve))
    if len({each.kind for each in found}) < len(found):
        raise ValueError(f"{text!r} names a kind twice")
    return tuple(found)


def _with_kind(part: str) -> str:
    """Return an emulation with the kind of its profile, if it begins with one."""
    from forebay import profiles  # imported late: most texts begin with a kind

    try:
        return f"{profiles.load(part.partition('+')[0]).kind}@{part}"
    except ValueError:
        return part


EMULATE: Variable[tuple[Emulated, ...]] = Variable(
    "FOREBAY_EMULATE",
    "devices to emulate, as in cuda:2@h200 (see `forebay.emulate`); none if not set",
    parse_emulated,
    tuple,
)
SANITIZER = Variable(
    "TORCH_CUDA_SANITIZER",
    "any value: races between CUDA streams raise an error (`forebay.observe.races`), from `import forebay.cuda` on",
    bool,
    bool,
)
STRAY_CONTEXTS = Variable(
    "TORCH_CUDA_CHECK_STRAY_CONTEXT",
    "warn or error: the action of `forebay.cuda.set_device` if other devices are open already; nothing if not set",
    str.lower,
    str,
)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 < value <= threading.TIMEOUT_MAX:
        return value
    raise ValueError(f"{text!r} is not a number of seconds, as 2.5")


DRIVER_TIMEOUT = Variable(
    "FOREBAY_DRIVER_TIMEOUT",
    "how many seconds the start of NVIDIA's driver may take, after which there are no CUDA devices; 10 if not set",
    _seconds,
    lambda: 10.0,
)


def _ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number, as 1.4") from None


def _no_ratio() -> None:
    return None


HIGH_WATERMARK: Variable[float | None] = Variable(
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
    "the share of an MPS device's recommended memory that may be allocated, 0 to 2; 0 means no limit; 1.7 if not set",
    _ratio,
    _no_ratio,
)
LOW_WATERMARK: Variable[float | None] = Variable(
    "PYTORCH_MPS_LOW_WATERMARK_RATIO",
    "the share above which cached memory is released, 0 to the high ratio; 0 means never; 1.4 if not set, 1.0 for GPUs "
    "with dedicated memory",
    _ratio,
    _no_ratio,
)


def _bits(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if value >= 0:
        return value
    raise ValueError(f"{text!r} is not a sum of options, as 6")


MPS_ALLOCATOR_LOG = Variable(
    "PYTORCH_DEBUG_MPS_ALLOCATOR",
    "prints of MPS memory, a sum: 1 a summary at exit, 2 allocations, 4 frees, 8 changes of the reserved memory, 16 "
    "only what is larger than 1 MiB; 0 if not set",
    _bits,
    int,
)
MPS_OPERATION_LOG = Variable(
    "PYTORCH_MPS_LOG_PROFILE_INFO",
    "prints of MPS operations, a sum: 1 operations, 2 copies; at exit 16 statistics of operations, 32 of copies, 8 of "
    "both; 0 if not set",
    _bits,
    int,
)
MPS_SIGNPOSTS = Variable(
    "PYTORCH_MPS_TRACE_SIGNPOSTS",
    "trace of `forebay.mps.profiler` from the first use of MPS until the end, a sum: 1 or 16 events, 2 or 32 "
    "intervals, 4 wait for each operation; 0, none, if not set",
    _bits,
    int,
)
MPS_FAST_MATH = Variable(
    "PYTORCH_MPS_FAST_MATH",
    "1: `forebay.mps.compile_shader` compiles with fast math, which is less exact; without if not set",
    lambda text: text != "0",
    bool,
)


def _file(text: str) -> Path:
    from pathlib import Path

    path = Path(text)
    if not path.name or path.is_dir():
        raise ValueError(f"{text!r} is a directory, not a file")
    return path


TRACE: Variable[Path | None] = Variable(
    "FOREBAY_TRACE",
    "the file that `forebay.mps.profiler` and `forebay.cuda.profiler` write their trace to, when they stop; if not "
    "set, the former writes forebay-trace-PID.pftrace to the current directory, and the latter records nothing",
    _file,
    lambda: None,
)
VARIABLES: tuple[Variable[Any], ...] = (
    CPU_DEVICES,
    CPU_MEMORY,
    EMULATE,
    SANITIZER,
    STRAY_CONTEXTS,
    DRIVER_TIMEOUT,
    HIGH_WATERMARK,
    LOW_WATERMARK,
    MPS_ALLOCATOR_LOG,
    MPS_OPERATION_LOG,
    MPS_SIGNPOSTS,
    MPS_FAST_MATH,
    TRACE,
)

# Variables of allocator settings in order of precedence: forebay's, then PyTorch's two in its order.
ALLOCATOR_SETTINGS = ("FOREBAY_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocator_settings(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the name and the text of the variable that applies; two empty strings if none is set.

    PyTorch's variables apply when they are empty, as there; forebay's does not.
    """
    environ = os.environ if environ is None else environ
    ours, *theirs = ALLOCATOR_SETTINGS
    if (text := environ.get(ours, "")).strip():
        return ours, text
    return next(((name, environ[name]) for name in theirs if name in environ), ("", ""))
