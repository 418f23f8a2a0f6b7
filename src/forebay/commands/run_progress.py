"""The progress line of `forebay run --progress`: time and memory while the program runs."""

from __future__ import annotations

import threading
import time

from forebay._base.byte_sizes import format_bytes
from forebay._base.signal_mask import signals_blocked
from forebay._base.system_memory import resident_memory
from forebay.commands.terminal import Terminal

TERMINAL_SECONDS, FILE_SECONDS = 1.0, 10.0  # between two lines; on a terminal each replaces the one before


class ProgressLine:
    """A thread that prints a line about the memory in use, until `stop`."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._is_terminal = terminal.console().is_terminal
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay progress", daemon=True)
        self._started = time.monotonic()
        with signals_blocked():
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self._is_terminal:
            self._terminal.print("\r\x1b[K")

    def _run(self) -> None:
        while not self._stopped.wait(TERMINAL_SECONDS if self._is_terminal else FILE_SECONDS):
            line = progress_text(time.monotonic() - self._started)
            self._terminal.print(f"\r{line}\x1b[K" if self._is_terminal else f"{line}\n")


def progress_text(seconds: float) -> str:
    """Return the line: the memory of all open devices, and the resident memory of the process."""
    from forebay import memory
    from forebay.runtime.devices import open_device

    devices = [each.device for each in open_device.open_devices().devices]
    now, peak = (sum(map(read, devices)) for read in (memory.memory_allocated, memory.max_memory_allocated))
    _, resident = resident_memory()
    minutes, rest = divmod(int(seconds), 60)
    sizes = f"allocated {format_bytes(now)}, peak {format_bytes(peak)}, resident {format_bytes(resident)}"
    return f"forebay: {minutes}:{rest:02}, {sizes}"
