"""Figures of all processes of the user that offer them, and of the machine's GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from forebay.observe.monitor import sockets
from forebay.observe.monitor.figures import ProcessFigures
from forebay.observe.monitor.sensors import MachineGpu, machine_gpus

__all__ = ["MachineFigures", "read_machine"]

_READERS = 16  # a process that is stopped delays its reader, not the others


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """Figures of a machine."""

    processes: tuple[ProcessFigures, ...]  #: the processes that replied, by id
    gpus: tuple[MachineGpu, ...]  #: the machine's GPUs
    failures: dict[int, str]  #: the reason for each process that did not reply


def read_machine(pids: Iterable[int] | None = None, stacks: int = 0, stacks_of: int | None = None) -> MachineFigures:
    """Read the figures of processes and of the machine's GPUs.

    Parameters
    ----------
    pids : iterable of int, optional
        Process ids; by default all processes of the user that offer figures.
    stacks : int, default 0
        The most call stacks of each device.
    stacks_of : int, optional
        The process whose stacks are read; all by default.

    Raises
    ------
    OSError
        If the directory of the sockets cannot be used.
    """
    requested = pids is not None
    pids = sockets.listening() if pids is None else list(pids)
    failures: dict[int, str] = {}

    def read(pid: int) -> ProcessFigures | None:
        try:
            return sockets.read_process(pid, stacks if stacks_of in (None, pid) else 0)
        except (FileNotFoundError, ConnectionRefusedError):
            if requested:  # the others have ended since they were listed
                failures[pid] = "it offers no figures: it was not started by forebay run, or has ended"
        except (TimeoutError, BlockingIOError):
            failures[pid] = f"it did not reply within {sockets.TIMEOUT:.0f} seconds"
        except (OSError, ValueError) as error:
            failures[pid] = f"its figures cannot be read: {error}"
        return None

    with ThreadPoolExecutor(_READERS) as pool:
        gpus = pool.submit(machine_gpus)
        found = [process for process in pool.map(read, pids) if process is not None]
        return MachineFigures(tuple(found), tuple(gpus.result()), failures)
