"""The process of one run: calls the function on the emulated card, and writes the result to a file."""

from __future__ import annotations

import pickle
import runpy
import sys
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.interop.torch import on_import
from forebay.interop.torch.fit.results import FitResult
from forebay.interop.torch.session import running

if TYPE_CHECKING:
    from forebay.interop.torch.attribution import PeakUse
    from forebay.interop.torch.fit.tasks import FitTask

__all__ = ["main"]

_ENTRIES = 4_000_000  # of the history, which has no stacks here


def main() -> None:
    """Run the task in the file of the first argument, and write the result to that of the second."""
    request, answer = map(Path, sys.argv[1:3])
    task: FitTask = pickle.loads(request.read_bytes())  # noqa: S301 -- written by the process that started this one
    result = _run(task)
    partial = answer.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(result))
    partial.rename(answer)


def _run(task: FitTask) -> FitResult:
    from forebay.runtime.history import recording

    on_import.set_environment(task.mode)
    on_import.install()
    recording.set_default(
        "cuda", lambda allocator: recording.start(allocator, context=None, max_entries=_ENTRIES), None
    )
    message = ""
    try:
        _call(task)
    except SystemExit as error:
        message = f"SystemExit: {error.code}" if error.code else ""
    except BaseException as error:  # noqa: BLE001 -- the result says which
        message = _text(error)
    session = running()
    uses = session.results() if session is not None else []
    if not uses:
        return FitResult(task.profile, {}, not message, 0, 0, _capacity(), {}, message)
    use = max(uses, key=lambda each: (each.ooms > 0, each.peak_reserved))
    return FitResult(
        profile=task.profile,
        parameters={},
        fits=not message and all(each.fits for each in uses),
        peak_allocated=use.peak_allocated,
        peak_reserved=use.peak_reserved,
        capacity=use.capacity,
        categories={each.name: each.nbytes for each in use.categories},
        message=message or ("" if use.fits else f"{use.ooms} requests ran out of memory, which the program handled"),
        settings=_settings(task, use) if task.measures_need and not message else (),
    )


def _text(error: BaseException) -> str:
    """Return an error as text; that of memory begins with PyTorch's words, that of others with the type."""
    name = type(error).__name__
    return str(error) if name == "OutOfMemoryError" else f"{name}: {error}"


def _call(task: FitTask) -> None:
    if task.path:
        spawn.prepare({"sys_path": [*task.path]} | ({"init_main_from_path": task.main} if task.main else {}))
    if task.script:
        sys.argv[:] = task.script
        sys.path.insert(0, str(Path(task.script[0]).resolve().parent))
        runpy.run_path(task.script[0], run_name="__main__")
        return
    function, arguments = pickle.loads(task.payload)  # noqa: S301 -- as above
    function(**arguments)


def _capacity() -> int:
    from forebay import backends
    from forebay.spi import Describes

    driver = backends.driver("cuda")
    return driver.describe(0).total_bytes if isinstance(driver, Describes) else 0


def _settings(task: FitTask, use: PeakUse) -> tuple[str, ...]:
    """Return the settings with which a replay of all allocations fits the card; none if its own settings suffice."""
    from forebay.device_spec import Device
    from forebay.interop.torch.attribution.text import for_pytorch
    from forebay.runtime.devices import open_device
    from forebay.runtime.memory.device_snapshot import take_snapshot
    from forebay.snapshot.replay.engine import History

    snapshot = take_snapshot(open_device.open_device(Device("cuda", use.index)))
    if snapshot.lost:
        return ()
    history = History(snapshot)
    if not history.run(None, task.capacity).refused:  # the program depends on the size of the memory
        return ()
    found = []
    for settings in history.recorded.alternatives(growable=True, limited=False):
        outcome = history.run(settings, task.capacity)
        if not outcome.refused and not outcome.stopped:
            found.append((outcome.peak_reserved, for_pytorch(history.recorded.as_environment(settings))))
    return tuple(environment for _, environment in sorted(found))
