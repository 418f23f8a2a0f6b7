"""The computers that the stand-in can be: their GPUs, their memory and the version of macOS."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

GIB = 1 << 30
MIB = 1 << 20
_APPLE = tuple(f"Apple{number}" for number in range(1, 11))
COMMON = ("Common1", "Common2", "Common3", "Mac1", "Mac2")


def apple(generation: int) -> tuple[str, ...]:
    """Return the families of an Apple GPU of macOS 13 or later."""
    return (*_APPLE[:generation], *COMMON, "Metal3")


@dataclass(frozen=True)
class GPU:
    """One GPU; sizes in bytes."""

    name: str
    memory: int  # that it can allocate
    working_set: int
    max_buffer: int
    families: tuple[str, ...] = apple(7)
    unified: bool = True
    low_power: bool = False
    removable: bool = False
    headless: bool = False
    heap_alignment: int = 256  # of buffers in heaps
    page: int = 16384  # heaps and buffers of their own are multiples of it
    threads: int = 1024  # at most in a threadgroup
    threadgroup_memory: int = 32768
    timestamps: bool = True  # counter set "timestamp" at stage boundaries
    architecture: str = "applegpu_g13g"


@dataclass(frozen=True)
class Machine:
    """A Mac."""

    gpus: tuple[GPU, ...]
    memory: int
    macos: tuple[int, int, int] = (14, 5, 0)
    thermal_state: int = 0
    cores: int = field(default=8)


M1 = GPU("Apple M1", 8 * GIB, 5726623061, 4 * GIB)
M2_ULTRA = GPU("Apple M2 Ultra", 192 * GIB, 154618822656, 115964116992, apple(8))
_AMD = GPU(
    "AMD Radeon Pro 5500M",
    4 * GIB,
    4 * GIB,
    3584 * MIB,
    (*COMMON, "Metal3"),
    unified=False,
    page=4096,
    timestamps=False,
)
_OLD = GPU(
    "Intel HD Graphics 5000", 1536 * MIB, 1536 * MIB, 1 * GIB, ("Common1", "Common2", "Mac1"), low_power=True, page=4096
)

MACHINES = {
    "m1-8gib": Machine((M1,), 8 * GIB),
    "m2-ultra-192gib": Machine((M2_ULTRA,), 192 * GIB, cores=24),
    "two": Machine((M1, replace(M1, name="Apple M1 (second)")), 8 * GIB),
    "intel": Machine((_AMD,), 16 * GIB),
    "intel-old": Machine((_OLD,), 8 * GIB, (11, 7, 0)),
    "old-macos": Machine((replace(M1, families=apple(7)[:-1]),), 8 * GIB, (12, 6, 0)),
    "none": Machine((), 8 * GIB),
}
