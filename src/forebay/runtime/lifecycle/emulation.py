"""Emulation: a named kind of device, served by this machine."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from forebay import backends
from forebay.byte_sizes import parse_bytes
from forebay.errors import WrongState
from forebay.runtime.allocator import oom_observers, pluggable_allocator
from forebay.runtime.base import lazy_init
from forebay.runtime.devices import current, open_device, retired_devices
from forebay.runtime.history import recording
from forebay.runtime.memory import ipc_memory
from forebay.runtime.random import generator
from forebay.spi import Driver

__all__ = ["Emulation", "emulate", "forget_kind"]


_running: dict[str, Emulation] = {}


class Emulation:
    """What `forebay.emulate` gives: its end is `stop()`, or that of its `with` block."""

    def __init__(self, kind: str, steps: ExitStack) -> None:
        self.kind = kind
        self._steps = steps
        _running[kind] = self  # whoever called and kept nothing has it for good

    def stop(self) -> None:
        """End it, once its devices' work is done: what was made on them is unusable. Twice is once."""
        self._steps.close()
        if _running.get(self.kind) is self:
            del _running[self.kind]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def emulate(
    kind: str, count: int = 1, profile: str | None = None, memory: int | str | None = None, guard: bool = False
) -> Emulation:
    """Let this machine stand in for devices of another kind, at once; as a context manager, until its end.

    `profile` says what they are (if nothing is said, cuda's are "h200", those of mps "apple_m3_max", of mtia "mtia_v2";
    see docs/reference/profiles.md), `memory` how much they have, if not as much as that: bytes, or a size as "4GiB".
    Names of such devices end in "(emulated)". Each emulation starts anew: no stream, no seed, no statistics of another
    are there. With `guard` the host cannot touch their memory outside queued work: to try ends the process (SIGSEGV)
    and shows the line that did. Opens nothing.
    ValueError for what makes no sense, WrongState while devices of the kind are in use.

    >>> import forebay
    >>> with forebay.emulate("cuda", count=2, profile="h200"):
    ...     forebay.device_count("cuda"), forebay.empty(3, device="cuda:1").device
    (2, device('cuda:1'))
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 64:
        raise ValueError(f"count is a number of devices from 1 to 64, not {count!r}")
    nbytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if nbytes is not None and (not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 1):
        raise ValueError(f"memory is a number of bytes or a size as '4GiB', not {memory!r}")
    first = lazy_init.of(kind)
    first.check_fork()
    if first.done:
        raise WrongState(f"devices of kind {kind!r} are in use already: emulate them before, or stop their emulation")
    retired_devices.close()
    steps = ExitStack()
    steps.enter_context(backends.emulating(kind, count, profile or "", nbytes, guard=bool(guard)))
    steps.callback(_end, kind, backends.driver(kind))
    current.look_again()
    return Emulation(kind, steps)


def _end(kind: str, driver: Driver) -> None:
    if backends.driver(kind) is driver:  # else another emulation took its place, and what is in use is that one's
        forget_kind(kind)


def forget_kind(kind: str) -> None:
    """As if no device of the kind had ever been used, once its work is done; what was made there is unusable."""
    with ExitStack() as steps:  # all of them, though a warning of one may have been made an error
        steps.callback(lazy_init.of(kind).reset)
        steps.callback(generator.forget_kind, kind)
        steps.callback(current.forget_kind, kind)
        steps.callback(pluggable_allocator.forget_kind, kind)
        steps.callback(recording.forget_kind, kind)
        steps.callback(oom_observers.forget_kind, kind)
        steps.callback(open_device.end_kind, kind)
        steps.callback(ipc_memory.forget_kind, kind)  # comes first
