"""Controls of the stand-in for tests: the machine, failures, gates and latency, and the counts of objects and calls."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from .machines import MACHINES, Machine
from .rules import MetalRuleViolation, NotImitated

WAIT_LIMIT = 60  # seconds that a blocking call waits before it gives up; a real one would wait forever


@dataclass
class Failure:
    """The failure of a call that a test makes fail; `code` and `domain` are those of an NSError."""

    after: int
    code: int
    domain: str
    text: str
    sticky: bool


class Control:
    """The state that a test can read and set.

    All names of selectors have PyObjC's spelling; with the name of a class and a space before it, a selector means that
    of the class only: "MTLHeap newBufferWithLength_options_".
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.clock: Callable[[], float] = time.monotonic
        self.machine = MACHINES[os.environ.get("SOFTMETAL_MACHINE", "m1-8gib")]
        self.latency = int(os.environ.get("SOFTMETAL_LATENCY", "0")) / 1e6  # seconds for each command buffer
        self.event_timeout = 5.0  # seconds after which the GPU aborts a command buffer that waits: MLX's users say so
        self.memory: int | None = None  # bytes that each device can allocate, instead of what its GPU has
        self.strict_pools = True
        self.strict_hazards = True
        self.over_retains = True  # as PyObjC up to 12.2.2; see objects.new_reference
        self.capture_enabled = os.environ.get("MTL_CAPTURE_ENABLED") == "1"
        self.violations: list[MetalRuleViolation] = []
        self.refused: list[str] = []  # what was not imitated
        self.owner: int | None = None  # the process that has used Metal
        self._running = 0  # committed command buffers and blocks of the program that have not ended
        self.forked = False  # this is a child of such a process
        self._live: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._failures: dict[str, Failure] = {}
        self._interrupts: dict[str, int] = {}
        self._buffer_errors: list[Failure] = []
        self._permits: int | None = None  # None: the gate is open
        self._forget: list[Callable[[], None]] = []

    # the machine

    def use(self, machine: str | Machine, **changes: object) -> None:
        """Become another machine; `changes` are fields of its GPUs or of the machine itself."""
        chosen = MACHINES[machine] if isinstance(machine, str) else machine
        of_machine = {key: changes.pop(key) for key in ("macos", "thermal_state", "cores") if key in changes}
        gpus = tuple(replace(gpu, **changes) for gpu in chosen.gpus)  # type: ignore[arg-type]
        with self.lock:
            self.machine = replace(chosen, gpus=gpus, **of_machine)  # type: ignore[arg-type]
            for forget in self._forget:
                forget()

    def on_new_machine(self, forget: Callable[[], None]) -> None:
        self._forget.append(forget)

    # counts

    def live(self, name: str | None = None) -> int | dict[str, int]:
        """Return how many objects of a class exist, or of all classes that have some."""
        with self.lock:
            return self._live[name] if name else {key: count for key, count in self._live.items() if count}

    def calls(self, selector: str | None = None) -> int | dict[str, int]:
        """Return how often a selector was called, on all classes together, or the counts of all selectors."""
        with self.lock:
            if selector:
                return self._calls[selector]
            return {name: count for name, count in self._calls.items() if " " not in name}

    def born(self, name: str) -> None:
        with self.lock:
            self._live[name] += 1

    def died(self, name: str) -> None:
        with self.lock:
            self._live[name] -= 1

    def after_fork(self) -> None:
        """Replace the locks, which threads of the parent may hold."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._running = 0
        self.forked = self.owner is not None

    # failures

    def fail(
        self, selector: str, after: int = 0, code: int = 1, domain: str = "", text: str = "", *, sticky: bool = False
    ) -> None:
        """Make a call of a selector fail as Metal would, after some calls that succeed.

        A selector with an error argument returns (None, error), one that returns an object None; `commit` ends the
        command buffer with the error, and any other raises the exception that PyObjC makes of an NSException.
        """
        self._failures[selector] = Failure(after, code, domain, text, sticky)

    def interrupt(self, selector: str, after: int = 0) -> None:
        """Send SIGINT to the process during a call of a selector."""
        self._interrupts[selector] = after

    def fail_command_buffer(self, code: int, after: int = 0, *, sticky: bool = False, text: str = "") -> None:
        """Make a committed command buffer end with an error of MTLCommandBufferErrorDomain."""
        self._buffer_errors.append(Failure(after, code, "MTLCommandBufferErrorDomain", text, sticky))

    def enter(self, selector: str, owner: str = "") -> Failure | None:
        """Count a call of a selector of a class and return how it fails, if it does."""
        pid = os.getpid()
        with self.lock:
            if self.owner is None:
                self.owner = pid
            elif self.owner != pid:
                self.violated("fork", f"process {pid} calls {selector}, but process {self.owner} has used Metal")
            names = (selector, f"{owner} {selector}")
            self._calls.update(names)
            due = [self._due(name) for name in names]
        return due[0] or due[1]

    def leave(self, selector: str, owner: str = "") -> None:
        """Send the signal that a test wants during a call: as C code does, the call completes before Python notices."""
        for name in (selector, f"{owner} {selector}"):
            left = self._interrupts.get(name)
            if left is not None:
                self._interrupts[name] = left - 1
                if left == 0:
                    del self._interrupts[name]
                    signal.raise_signal(signal.SIGINT)

    def _due(self, name: str) -> Failure | None:
        failure = self._failures.get(name)
        if failure is None:
            return None
        if failure.after:
            failure.after -= 1
            return None
        if not failure.sticky:
            del self._failures[name]
        return failure

    def buffer_error(self) -> Failure | None:
        """Return the error of the command buffer that is about to execute."""
        with self.lock:
            for failure in self._buffer_errors:
                if failure.after:
                    failure.after -= 1
                    continue
                if not failure.sticky:
                    self._buffer_errors.remove(failure)
                return failure
        return None

    # the gate of the GPU

    def hold(self) -> None:
        """Let no further command buffer begin on the GPU."""
        with self.changed:
            self._permits = 0

    def step(self, count: int = 1) -> None:
        """Let some more command buffers execute while the gate is held."""
        with self.changed:
            self._permits = (self._permits or 0) + count
            self.changed.notify_all()

    def release(self) -> None:
        """Open the gate."""
        with self.changed:
            self._permits = None
            self.changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the gate inside a with statement."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def pass_gate(self) -> None:
        """Wait on a queue's thread until a command buffer may begin, then for the latency."""
        with self.changed:
            self.changed.wait_for(lambda: self._permits is None or self._permits > 0)
            if self._permits is not None:
                self._permits -= 1
        if self.latency:
            threading.Event().wait(self.latency)

    def began(self) -> None:
        """Count work that one of the stand-in's threads will end."""
        with self.changed:
            self._running += 1

    def ended(self) -> None:
        """Count its end."""
        with self.changed:
            self._running -= 1
            self.changed.notify_all()

    def wait_until_idle(self) -> None:
        """Wait until all command buffers have completed and all handlers have returned."""
        with self.changed:
            idle = self.changed.wait_for(lambda: self._running == 0, WAIT_LIMIT)
        assert idle, f"{self._running} command buffers or handlers have not ended after {WAIT_LIMIT} s"

    # complaints

    def violated(self, key: str, detail: str) -> None:
        """Record that a rule was broken, and raise it."""
        violation = MetalRuleViolation(key, detail)
        self.violations.append(violation)
        raise violation

    def note_violation(self, key: str, detail: str) -> None:
        """Record that a rule was broken where no caller could be told."""
        self.violations.append(MetalRuleViolation(key, detail))

    def refuse(self, what: str) -> None:
        """Record the use of something that is not imitated, and raise NotImitated."""
        self.refused.append(what)
        raise NotImitated(f"{what} is not imitated by tests/softmetal")

    def check(self) -> None:
        """Raise the first rule that was broken, or the first use that was refused, since the last reset."""
        from .storage import check_zombies

        check_zombies()
        if self.violations:
            raise self.violations[0]
        if self.refused:
            raise NotImitated(f"not imitated: {', '.join(self.refused)}")

    def reset(self) -> None:
        """Forget failures, counts of calls and complaints, open the gate, and become the first machine again."""
        with self.changed:
            self._failures.clear()
            self._interrupts.clear()
            self._buffer_errors.clear()
            self._calls.clear()
            self.violations.clear()
            self.refused.clear()
            self.latency = 0.0
            self.event_timeout = 5.0
            self.memory = None
            self.strict_pools = self.strict_hazards = self.over_retains = True
            self.capture_enabled = os.environ.get("MTL_CAPTURE_ENABLED") == "1"
            self.clock = time.monotonic
        self.release()
        self.use(os.environ.get("SOFTMETAL_MACHINE", "m1-8gib"))


control = Control()
os.register_at_fork(after_in_child=control.after_fork)
