"""The CUDA library of bitsandbytes on emulated devices.

bitsandbytes computes with a library of C functions, which receive the addresses of tensors. Its Python code allocates
all memory, so it runs as on a GPU, and only the functions of the library are replaced: they compute the values with
bitsandbytes' operators for the CPU. Without values they compute nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import sys
from contextlib import ExitStack
from functools import cache
from types import ModuleType
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.graph_capture import run_or_capture
from forebay.interop.torch.extensions.addressed_values import memory_of_address
from forebay.interop.torch.extensions.bitsandbytes_functions import FUNCTIONS, HOST_FUNCTIONS, LibraryFunction
from forebay.interop.torch.import_hook import ImportHook

__all__ = ["BitsandbytesLibrary", "replace_bitsandbytes"]

_LOADER = "bitsandbytes.cextension"
_FUNCTIONAL = "bitsandbytes.functional"
_UTILITIES = "bitsandbytes.backends.utils"
_OPERATORS = "bitsandbytes.backends.cuda.ops"
_HOLDERS = (_LOADER, _FUNCTIONAL, "bitsandbytes.backends.cpu.ops", _OPERATORS)  # of the library, in the name `lib`
_TABLES = ("str2optimizer32bit", "str2optimizer8bit_blockwise")  # of the library's functions
_CachedFunction = type(cache(len))


class BitsandbytesLibrary:
    """The library that bitsandbytes calls: its own one, except while devices are emulated.

    Parameters
    ----------
    own : object
        What bitsandbytes has loaded: a library, or an object whose functions raise its error.
    host : object
        A library with the functions for the CPU.

    Attributes
    ----------
    is_emulating : bool
        Whether the functions are those for emulated devices.
    """

    compiled_with_cuda = True

    def __init__(self, own: Any, host: Any) -> None:
        self._own, self._host = own, host
        self.is_emulating = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in FUNCTIONS and name not in HOST_FUNCTIONS:
            return getattr(self._host, name)
        function = _ReplacedFunction(self, name, getattr(self._own, name))
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class _ReplacedFunction:
    """A function of the library, in place of one of ctypes."""

    def __init__(self, library: BitsandbytesLibrary, name: str, own: Any) -> None:
        self._library, self._own, self.__name__ = library, own, name

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("argtypes", "restype"):
            setattr(self._own, name, value)
        super().__setattr__(name, value)

    def __call__(self, *args: Any) -> Any:
        if not self._library.is_emulating:
            return self._own(*args)
        plain = [each.value if isinstance(each, ctypes._SimpleCData) else each for each in args]
        if self.__name__ in HOST_FUNCTIONS:
            return HOST_FUNCTIONS[self.__name__](*plain)
        _compute(FUNCTIONS[self.__name__], plain)
        return 0  # no error, from the functions that return a code


def _compute(function: LibraryFunction, args: list[Any]) -> None:
    written = [each for at in function.written if (each := memory_of_address(args[at])) is not None]
    if not values.is_computed():
        for memory in written:
            memory.known = None
        return
    run = function.prepare(*args)

    def run_without_gradients() -> None:
        with torch.no_grad():
            run()

    run_or_capture(run_without_gradients, [memory.values for memory in written])


def replace_bitsandbytes(undo: ExitStack) -> None:
    """Let bitsandbytes use emulated devices, whether the program has imported it or imports it later.

    Parameters
    ----------
    undo : ExitStack
        Receives the calls that let it use its own library again.
    """
    log = logging.getLogger(_LOADER)
    log.addFilter(_is_no_load_error)
    undo.callback(log.removeFilter, _is_no_load_error)
    undo.callback(_stop)
    if _LOADER in sys.modules:
        _replace_library(sys.modules[_LOADER])
        importlib.import_module(_OPERATORS)  # bitsandbytes itself imports it only if there is a CUDA device
    else:
        hook = ImportHook(_LOADER, _replace_library)
        hook.install()
        undo.callback(hook.remove)


def _is_no_load_error(record: logging.LogRecord) -> bool:
    return "library load error" not in str(record.msg)


def _replace_library(loader: ModuleType) -> None:
    """Replace the library in all modules of bitsandbytes, and let it emulate."""
    library = vars(loader)["lib"]
    if not isinstance(library, BitsandbytesLibrary):
        library = BitsandbytesLibrary(library, _host_library(loader))
        for name in _HOLDERS:
            if name in sys.modules:
                vars(sys.modules[name])["lib"] = library
        for name in _TABLES:
            table = _names(_OPERATORS).get(name, {})
            table.update({key: tuple(library[each.__name__] for each in table[key]) for key in table})
    library.is_emulating = True


def _host_library(loader: Any) -> Any:
    """Return a library with the functions for the CPU: the one that is loaded has them, if one is loaded."""
    if isinstance(loader.lib, getattr(loader, "ErrorHandlerMockBNBNativeLibrary", ())):
        specs = loader.get_cuda_specs
        loader.get_cuda_specs = lambda: None  # then the library for the CPU is chosen
        try:
            return loader.get_native_library()
        except (OSError, RuntimeError):  # its functions raise the error of loading
            pass
        finally:
            loader.get_cuda_specs = specs
    return loader.lib


def _stop() -> None:
    """Let bitsandbytes use its own library, and forget the emulated devices: later ones may have other properties."""
    library = _names(_LOADER).get("lib")
    if isinstance(library, BitsandbytesLibrary):
        library.is_emulating = False
    for kept in (_names(_FUNCTIONAL).get("name2qmap", {}), _names(_UTILITIES).get("_code_4bit_cache", {})):
        for key in [key for key, tensor in kept.items() if tensor.is_cuda]:
            del kept[key]
    contexts = _names(_FUNCTIONAL).get("CUBLAS_Context")
    if contexts is not None:
        contexts._instance = None
    for each in _names(_OPERATORS).values():
        if isinstance(each, _CachedFunction):
            each.cache_clear()


def _names(module: str) -> dict[str, Any]:
    """Return the names of a module; none if it is not imported."""
    return vars(sys.modules[module]) if module in sys.modules else {}
