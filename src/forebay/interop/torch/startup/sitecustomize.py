"""Start of a Python process that a program under `forebay run` starts: installs the hook for PyTorch or for NumPy.

`forebay.interop.torch.on_import.set_environment`, or `forebay.commands.run_started.reach_processes`, puts this folder
on PYTHONPATH. The program's own sitecustomize, which this file hides, is imported instead of it.
"""

import atexit
import gc
import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

__all__ = ["begin", "install_hooks"]


def _load(file: str) -> Any:
    """Load a module by its path: most processes never import PyTorch, and need not import forebay."""
    path = os.path.join(_forebay, *file.split("/"))  # noqa: PTH118 -- pathlib is slow to import
    spec = spec_from_file_location(f"_forebay_{os.path.basename(file)[:-3]}", path)  # noqa: PTH119 -- as above
    module = module_from_spec(spec)  # type: ignore[arg-type]  # the file exists
    spec.loader.exec_module(module)  # type: ignore[union-attr]  # as above
    return module


def install_hooks() -> Any:
    """Let PyTorch use emulated devices when it is imported. Returns the class of the hooks."""
    hook = _load("interop/torch/import_hook.py").ImportHook
    hook("torch", lambda _: _patch()).install()
    compiler, symbols = map(_load, ("interop/torch/deferred_compiler.py", "interop/torch/deferred_symbols.py"))
    for name, change in (compiler.CHANGES | symbols.CHANGES).items():
        hook(name, change).install()
    hook(symbols.NAME, lambda _: None, symbols.LateLoader).install()
    hook("safetensors.torch", _replace_save_file).install()
    return hook


def _install() -> None:
    hook = install_hooks()
    services: tuple[str, ...] = ()
    if os.environ.get("FOREBAY_REHEARSAL") == "inside":
        loaded = _load("rehearsal/services.py")
        loaded.install(hook)
        services = loaded.VARIABLES
    if os.environ.get("FOREBAY_REHEARSAL_FOLDER"):
        _redirect_files(os.environ["FOREBAY_REHEARSAL_FOLDER"])
    if os.environ.get("FOREBAY_REHEARSAL_RENAMES"):
        _load("rehearsal/folder_renames.py").install()
        _load("rehearsal/foreign_files.py").install()
    _load("interop/torch/processes/started_processes.py").install(os.environ, _folder, services)


def _redirect_files(text: str) -> None:
    import json

    details = json.loads(text)
    functions = _load("rehearsal/file_functions.py")
    functions.install(_load("rehearsal/merged_view.py").MergedView(details["folder"], details["real"]))
    _load("rehearsal/socket_addresses.py").install(functions.place_of)
    sys.modules["forebay.rehearsal.file_functions"] = functions  # which others ask for the places of files


def _replace_save_file(module: ModuleType) -> None:
    _use_own_forebay()
    from forebay.interop.torch.extensions.safetensors_files import replace_save_file

    replace_save_file(module)


def _finish() -> None:
    """Record the end of a process that may have used devices, or ended with an exception: most do neither."""
    name = "forebay.interop.torch.processes.recorder"
    if name in sys.modules or "forebay.runtime.devices.open_device" in sys.modules or hasattr(sys, "last_value"):
        from importlib import import_module

        _use_own_forebay()
        import_module(name).finish()
    if "torch" in sys.modules:
        # The interpreter searches for garbage several times while it ends: 0.7 s, for a process that has nothing to do.
        gc.freeze()


def _patch() -> None:
    _use_own_forebay()
    from forebay.interop.torch import on_import

    on_import.install()


def _use_own_forebay() -> None:
    """Import the forebay of this file, which another installation hides where PYTHONPATH is ignored."""
    if "forebay" in sys.modules:
        return
    own = os.path.join(_forebay, "__init__.py")  # noqa: PTH118 -- as above
    found = find_spec("forebay")
    if found is None or found.origin is None or not os.path.samefile(found.origin, own):  # noqa: PTH121 -- as above
        spec = spec_from_file_location("forebay", own, submodule_search_locations=[_forebay])
        module = sys.modules["forebay"] = module_from_spec(spec)  # type: ignore[arg-type]  # the file exists
        try:
            spec.loader.exec_module(module)  # type: ignore[union-attr]  # as above
        except BaseException:
            del sys.modules["forebay"]
            raise


def begin() -> None:
    """Install the hooks, if this process is one of a program on emulated devices, or of one that is recorded."""
    if os.environ.get("FOREBAY_TORCH"):
        _install()
        if os.environ.get("FOREBAY_RECORDS"):
            atexit.register(_finish)  # the first, which runs last
    elif os.environ.get("FOREBAY_RUN"):
        _load("commands/started_child.py").begin(_load, _use_own_forebay, _folder)


_folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- as above
_forebay = os.path.dirname(os.path.dirname(os.path.dirname(_folder)))  # noqa: PTH120 -- as above
if __name__ == "sitecustomize":
    sys.path[:] = [each for each in sys.path if each != _folder]
    begin()
    _this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 -- the program's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = _this
