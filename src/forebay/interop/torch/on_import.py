"""Emulated devices for PyTorch as soon as a program has imported it."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from forebay.interop.torch import deferred_compiler, deferred_symbols
from forebay.interop.torch.import_hook import ImportHook
from forebay.rehearsal import services
from forebay.rehearsal.inside import is_inside

if TYPE_CHECKING:
    from forebay.interop.torch.processes.recorder import Recorder
    from forebay.interop.torch.session import TorchSession

__all__ = [
    "OPTIONS",
    "VARIABLE",
    "install",
    "reach_processes",
    "set_environment",
    "silence_services",
    "uninstall",
    "write_options",
]

VARIABLE = "FOREBAY_TORCH"  # the mode of `patch()`: PyTorch of this process and of its children uses emulated devices
OPTIONS = "options.json"  # in the folder of the records: what each process of the program records beside its peaks
_ENTRIES = 4_000_000  # of the history, which has no stacks here
_STARTUP = str(Path(__file__).with_name("startup"))

_SAFETENSORS = "safetensors.torch"
_TRANSFORMERS = "transformers.modeling_utils"

_hooks: list[ImportHook] = []  # those of PyTorch, safetensors and transformers


def install(after: Callable[[], None] | None = None) -> None:
    """Call a function after the import of PyTorch, at once if it is imported already. By default, patch it."""
    call = after or _patch
    uninstall()
    if "torch" in sys.modules:
        call()
    else:
        _install("torch", lambda _: call())
        # Note [Compiler imported late], Note [Symbolic sizes imported late]
        for name, change in (deferred_compiler.CHANGES | deferred_symbols.CHANGES).items():
            _install(name, change)
        _add(ImportHook(deferred_symbols.NAME, lambda _: None, deferred_symbols.LateLoader))
    if _SAFETENSORS in sys.modules:
        _replace_save_file(sys.modules[_SAFETENSORS])
    else:
        _install(_SAFETENSORS, _replace_save_file)
    if _TRANSFORMERS in sys.modules:
        _replace_search(sys.modules[_TRANSFORMERS])
    else:
        _install(_TRANSFORMERS, _replace_search)


def _install(name: str, after: Callable[[ModuleType], None]) -> None:
    _add(ImportHook(name, after))


def _add(hook: ImportHook) -> None:
    _hooks.append(hook)
    hook.install()


def uninstall() -> None:
    """Remove the hook. PyTorch that was imported stays as it is."""
    while _hooks:
        _hooks.pop().remove()


def silence_services() -> None:
    """Let libraries send nothing to other services, if the files of this program are private, too."""
    if is_inside():
        services.install(ImportHook)


def set_environment(mode: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let Python processes that start with an environment install the hook; by default those that this one starts."""
    environment[VARIABLE] = mode
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if _STARTUP not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([_STARTUP, *filter(None, paths)])


def reach_processes(before: Callable[[], object] | None = None) -> None:
    """Let every process that this one starts get the emulation, whatever environment the program gives it.

    `before` is called before each is started.
    """
    from forebay.interop.torch.processes import started_processes

    started_processes.install(os.environ, _STARTUP, services.VARIABLES if is_inside() else (), before)


def _replace_save_file(module: ModuleType) -> None:
    """Replace the function before another module copies its name. It stays the library's unless PyTorch is patched."""
    from forebay.interop.torch.extensions.safetensors_files import replace_save_file

    replace_save_file(module)


def _replace_search(module: ModuleType) -> None:
    """Let missing weights be assumed, if PyTorch is patched without values."""
    from forebay.interop.torch.extensions.pretrained_weights import replace_search

    replace_search(module)


def _patch() -> None:
    from forebay.interop.torch.processes import recorder
    from forebay.interop.torch.session import TorchSession, running

    if running() is not None:  # a program under `forebay run` that starts `forebay run` has the hooks of both
        return
    found = recorder.start()
    options = {} if found is None else _options(found.folder)
    if options.get("replay_capacity") is not None or options.get("cards"):
        _record_history()
    session = TorchSession(os.environ.get(VARIABLE, "compute"))
    session.start()
    # Searches for garbage and for the objects of a program skip what PyTorch's import has made: 0.1 s each.
    gc.freeze()
    if found is None:  # Note [Emulation by the environment]: a patch of the program itself replaces it
        from forebay.interop.torch.devices import patching

        patching.set_default(session.stop)
        return
    found.when_forked = session.restart_in_child
    if options.get("template"):
        options = _offer(found, options)
    _begin(found, session, options)


def _offer(found: Recorder, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Offer a template of this process. Returns the options of this run: of another one in each copy."""
    from forebay import backends
    from forebay._base.config import EMULATE, parse_emulated
    from forebay.interop.torch.processes import recorder, template

    request = template.offer(found.folder, **options["template"])
    if request is None:
        return options
    os.environ |= {EMULATE.name: request["emulate"], recorder.FOLDER: request["folder"]}
    (emulated,) = parse_emulated(request["emulate"])
    driver: Any = backends.driver("cuda")
    driver.exchange(emulated.profile, emulated.memory, emulated.reserve)
    found.restart(request["folder"])
    return _options(found.folder)


def _begin(found: Recorder, session: TorchSession, options: Mapping[str, Any]) -> None:
    """Begin a run with its options: what it records, and how it ends."""
    from forebay._base.assumption_choices import AssumptionChoices
    from forebay.interop.torch.devices import other_cards
    from forebay.interop.torch.processes import assumed_values, checked_kernels

    checked_kernels.begin(checks=bool(options.get("check_kernels")))
    capacity = options.get("replay_capacity")
    assumed_values.choose(AssumptionChoices.from_options(options.get("assumptions", {})))
    if options.get("deadline"):
        _watch_time(found, options["deadline"], options["max_seconds"])
    other_cards.begin((tuple(each) for each in options.get("cards", ())), found.write)
    found.details = lambda: _details(session, capacity)
    found.cards = lambda final: _cards(session, final=final)


def write_options(folder: Path, **options: Any) -> None:
    """Write what each process of a program reads from the folder of the records: see `OPTIONS`."""
    (folder / OPTIONS).write_text(json.dumps(options))


def _watch_time(found: Recorder, deadline: float, seconds: float) -> None:
    """Record the line at which the time of the program is over: Note [Time limit]."""
    from forebay.interop.torch.processes import time_limit

    if not found.is_main:  # else `forebay run` does so
        note = found.end_by_limit
        time_limit.watch(deadline - time_limit.EARLIER, lambda line: note(time_limit.ending_at(seconds, line)))


def _cards(session: TorchSession, *, final: bool) -> dict[str, Any]:
    """Return what is known about other cards: what they would have done, at the end, and those that differ."""
    from forebay.interop.torch.devices import other_cards

    shared = session.shared_results() if final else {}
    return {"shared": shared, "differing": other_cards.differing()}


def _options(folder: str) -> Mapping[str, Any]:
    try:
        options = json.loads((Path(folder) / OPTIONS).read_text())
    except (OSError, ValueError):
        return {}
    return options if isinstance(options, dict) else {}


def _record_history() -> None:
    from forebay.runtime.history import recording

    recording.set_whole("cuda", lambda pool: recording.start_whole(pool, _ENTRIES, stacks=False))


def _details(session: TorchSession, capacity: int | None) -> list[dict[str, Any]]:
    """Return what held the peak of each device and, if wanted, the settings with which the allocations fit a card."""
    found, workspaces = [], session.most_workspaces()
    for use in session.results():
        details = {**use.as_json(), "index": session.place_of(use.index), "workspaces": workspaces.get(use.index, 0)}
        if capacity is not None:
            details["suffices"], details["settings"] = _settings(use.index, capacity)
        found.append(details)
    return found


def _settings(index: int, capacity: int) -> tuple[bool, tuple[str, ...]]:
    from forebay._base.device_spec import Device
    from forebay.interop.torch.attribution.other_settings import settings_that_fit
    from forebay.runtime.devices.open_device import open_device
    from forebay.runtime.memory.device_snapshot import take_snapshot

    return settings_that_fit(take_snapshot(open_device(Device("cuda", index))), capacity)
