"""The environment variables that forebay reads, in one table; each is read when it is asked for, not at import."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from forebay.byte_sizes import format_bytes, parse_bytes

__all__ = [
    "ALLOCATOR_SETTINGS",
    "EMULATE",
    "HIGH_WATERMARK",
    "HOST_DEVICES",
    "HOST_MEMORY",
    "LOW_WATERMARK",
    "SANITIZER",
    "STRAY_CONTEXTS",
    "TRACE",
    "VARIABLES",
    "Emulated",
    "Variable",
    "allocator_settings",
    "available_memory",
    "parse_emulated",
    "usable_memory",
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Variable(Generic[_T]):
    """One environment variable: its name, what it is for, how its text is read, and its value when it is not set."""

    name: str
    meaning: str
    parse: Callable[[str], _T]
    default: Callable[[], _T]

    def value(self) -> _T:
        """What it says now; ValueError, naming the variable, where that makes no sense. Empty means not set."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"environment variable {self.name}: {error}") from None


def usable_memory(root: Path = Path("/")) -> int:
    """The bytes of memory that this process may use: what the machine has, or what its control groups allow."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(group.limit for group in _groups(root))])


def available_memory(root: Path = Path("/")) -> int | None:
    """The bytes that this process could take now before the machine swaps; None where the system does not tell."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if found is None:
        return None
    return min([int(found[1]) << 10, *(group.limit - group.used() for group in _groups(root))])


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group that limits memory."""

    folder: Path
    limit: int
    usage: str  # the file that tells how much is used
    cache: str  # what of that the system takes back when it must, in memory.stat

    def used(self) -> int:
        text = _text(self.folder / self.usage).strip()
        found = re.search(rf"^{self.cache} (\d+)$", _text(self.folder / "memory.stat"), re.MULTILINE)
        return max(int(text or 0) - (int(found[1]) if found else 0), 0)


def _groups(root: Path) -> Iterator[_Group]:
    """The process's control groups and all above them that limit memory."""
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops, limit = [mounts, mounts / "unified"], "memory.max"
            usage, cache = "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            tops, limit = [mounts / "memory"], "memory.limit_in_bytes"
            usage, cache = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        for top in tops:
            group = top / path.lstrip("/")
            # A container sees its own group as the top, while `path` may still count from the machine's.
            for folder in (group, *group.parents):
                if folder.is_relative_to(top) and (text := _text(folder / limit).strip()).isdecimal():
                    yield _Group(folder, int(text), usage, cache)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _devices(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 64:
        return int(text)
    raise ValueError(f"{text!r} is not a number of devices from 1 to 64")


def _share_of_memory() -> int:
    try:
        devices = HOST_DEVICES.value()
    except ValueError:  # told where the number of devices matters
        devices = 1
    return usable_memory() * 3 // 4 // devices


HOST_DEVICES = Variable("FOREBAY_HOST_DEVICES", "how many host devices there are; 1 if not set", _devices, lambda: 1)
HOST_MEMORY = Variable(
    "FOREBAY_HOST_MEMORY",
    f"the memory of each host device, as {format_bytes(16 << 30)} or 512m; if not set, they share three quarters of "
    "the memory that the process may use",
    parse_bytes,
    _share_of_memory,
)


@dataclass(frozen=True, slots=True)
class Emulated:
    """Devices of a kind to emulate: how many, with which profile, whether guarded against the host."""

    kind: str
    count: int = 1
    profile: str = ""
    guard: bool = False

    def __str__(self) -> str:
        """As `parse_emulated` reads it."""
        profile = f"@{self.profile}" if self.profile else ""
        return f"{self.kind}:{self.count}{profile}{'+guard' if self.guard else ''}"


_EMULATED = re.compile(r"([a-z]+)(?::([1-9][0-9]?))?(?:@([^\s+]+))?(\+guard)?")


def parse_emulated(text: str) -> tuple[Emulated, ...]:
    """`cuda:2@h200`, or `cuda:2@h200+guard`, or several with commas between; ValueError for anything else.

    >>> parse_emulated("cuda:2@h200")
    (Emulated(kind='cuda', count=2, profile='h200', guard=False),)
    """
    found = []
    for part in text.split(","):
        match = _EMULATED.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                f"{part.strip()!r} does not say what to emulate: expected KIND:COUNT@PROFILE, as cuda:2@h200, "
                "or cuda:2@h200+guard"
            )
        found.append(Emulated(match[1], int(match[2] or 1), match[3] or "", match[4] is not None))
    if len({each.kind for each in found}) < len(found):
        raise ValueError(f"{text!r} names a kind twice")
    return tuple(found)


EMULATE: Variable[tuple[Emulated, ...]] = Variable(
    "FOREBAY_EMULATE",
    "devices that this machine stands in for, as cuda:2@h200 (see `forebay.emulate`); none if not set",
    parse_emulated,
    tuple,
)
SANITIZER = Variable(
    "TORCH_CUDA_SANITIZER",
    "anything: from `import forebay.cuda` on, races between CUDA's streams raise an error (`forebay.observe.races`)",
    bool,
    bool,
)
STRAY_CONTEXTS = Variable(
    "TORCH_CUDA_CHECK_STRAY_CONTEXT",
    "warn or error: what `forebay.cuda.set_device` does where other devices are open already; nothing if not set",
    str.lower,
    str,
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
    "of an MPS device's recommended memory, the share that may be allocated, 0 to 2; 0 is without a limit; 1.7 if not "
    "set",
    _ratio,
    _no_ratio,
)
LOW_WATERMARK: Variable[float | None] = Variable(
    "PYTORCH_MPS_LOW_WATERMARK_RATIO",
    "the share from which on memory counts as short, 0 to the high one; 0 is never; 1.4 if not set, 1.0 where the GPU "
    "has memory of its own",
    _ratio,
    _no_ratio,
)


def _file(text: str) -> Path:
    path = Path(text)
    if not path.name or path.is_dir():
        raise ValueError(f"{text!r} is a directory, and a file is wanted")
    return path


TRACE: Variable[Path | None] = Variable(
    "FOREBAY_TRACE",
    "the file that `forebay.mps.profiler` and `forebay.cuda.profiler` write their trace to, when they stop; if not "
    "set, the former writes forebay-trace-PID.pftrace to the current directory, and the latter records nothing",
    _file,
    lambda: None,
)
VARIABLES: tuple[Variable[Any], ...] = (
    HOST_DEVICES,
    HOST_MEMORY,
    EMULATE,
    SANITIZER,
    STRAY_CONTEXTS,
    HIGH_WATERMARK,
    LOW_WATERMARK,
    TRACE,
)

# The allocator's settings: ours first, then PyTorch's two in the order that it was seen to follow.
ALLOCATOR_SETTINGS = ("FOREBAY_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocator_settings(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The variable that counts and its text, as it is; two empty strings where none is set.

    One of PyTorch's counts when it is empty, too, as there; ours does not, like all of ours.
    """
    environ = os.environ if environ is None else environ
    ours, *theirs = ALLOCATOR_SETTINGS
    if (text := environ.get(ours, "")).strip():
        return ours, text
    return next(((name, environ[name]) for name in theirs if name in environ), ("", ""))
