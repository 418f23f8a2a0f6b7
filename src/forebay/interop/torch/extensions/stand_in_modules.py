"""Stand-ins for packages that install with CUDA only, where PyTorch can compute what they compute.

# Note [Stand-ins of packages]
flash-attn, apex and xformers compile CUDA code when they are installed, so a machine without a GPU has none of them. If
a program imports one while devices are emulated, the import would fail: then it gets a module with the functions that
programs use most, which PyTorch's operators compute, and the report lists that. A library that only looks whether the
package is there, as transformers does at its import, finds none: it would choose other code than on a machine without
the package. The program asks for flash-attn also by the option of a model of transformers, `flash_attention_2`.
Rejected: modules for all who import them, as a library that prefers apex would then use it unasked.
Test: tests/interop/torch/extensions/test_stand_in_modules.py::test_program_gets_a_module_and_a_library_finds_none
"""

from __future__ import annotations

import importlib.metadata
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from forebay.interop.torch.devices import values
from forebay.interop.torch.extensions import attention_stand_ins, module_stand_ins
from forebay.interop.torch.import_hook import ImportHook
from forebay.interop.torch.processes import assumed_values

__all__ = ["StandIns", "install_stand_ins"]

_ATTENTION = attention_stand_ins.FLASH
_MODULES: Mapping[str, Mapping[str, Any]] = {
    "flash_attn": {**_ATTENTION, "__version__": "2.8.3"},
    "flash_attn.flash_attn_interface": _ATTENTION,
    "flash_attn.bert_padding": attention_stand_ins.PADDING,
    "xformers": {"__version__": "0.0.33"},
    "xformers.ops": attention_stand_ins.XFORMERS,
    "apex": {},
    "apex.normalization": module_stand_ins.NORMALIZATION,
    "apex.optimizers": module_stand_ins.OPTIMIZERS,
    "deepspeed": {},
    "deepspeed.ops": {},
    "deepspeed.ops.adam": module_stand_ins.ADAM,
}
_DISTRIBUTIONS = {"flash_attn": ("flash-attn", "2.8.3")}  # what libraries ask for beside the module
_BY = {"flash_attn": "PyTorch's flash attention", "xformers": "PyTorch's attention"}
_LIBRARIES = ("/site-packages/", "/dist-packages/", f"{sysconfig.get_path('stdlib')}/", "<frozen")
_OURS = f"{Path(__file__).parents[3]}/"
# The model of transformers asks for flash-attn by these methods.
_REQUESTS = ("_check_and_adjust_attn_implementation", "_flash_attn_2_can_dispatch", "_check_and_enable_flash_attn_2")


class _Loader(Loader):
    """The loader of a stand-in."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_MODULES[module.__name__])


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a package that is not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        name, version = _DISTRIBUTIONS[self._package]
        texts = {"METADATA": f"Name: {name}\nVersion: {version}\n", "top_level.txt": f"{self._package}\n"}
        return texts.get(filename)

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent / str(path)


class StandIns(MetaPathFinder):
    """The last finder, which finds what no other does."""

    def __init__(self) -> None:
        self.granted: set[str] = set()  # packages that the program has asked for

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        """Return the specification of a stand-in for the program."""
        package = name.partition(".")[0]
        if name not in _MODULES or not (package in self.granted or _is_program()):
            return None
        self.grant(package)
        return ModuleSpec(name, _Loader(), is_package=any(each.startswith(f"{name}.") for each in _MODULES))

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        """Return the metadata of the packages that the program has asked for."""
        wanted = getattr(context, "name", None)
        for package in self.granted & _DISTRIBUTIONS.keys():
            if wanted is None or wanted.replace("-", "_").lower() == package:
                yield _Distribution(package)

    def grant(self, package: str) -> None:
        """Let everyone find the stand-in of a package, and note that it is one."""
        if package not in self.granted:
            self.granted.add(package)
            by = _BY.get(package, "PyTorch")
            assumed_values.note(values.calling_line()[0], f"{package} is not installed: computed by {by}")


def install_stand_ins(undo: ExitStack) -> None:
    """Find stand-ins from now on. `undo` receives what removes them."""
    finder = StandIns()
    sys.meta_path.append(finder)
    undo.callback(_remove, finder)
    loaded = sys.modules.get("transformers.modeling_utils")
    if loaded is not None:
        _follow_requests(loaded, finder, undo)
        return
    hook = ImportHook("transformers.modeling_utils", lambda module: _follow_requests(module, finder, undo))
    hook.install()
    undo.callback(hook.remove)


def _remove(finder: StandIns) -> None:
    if sys.meta_path is not None:  # else the interpreter exits
        sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and isinstance(getattr(module, "__loader__", None), _Loader):
            del sys.modules[name]


def _follow_requests(module: ModuleType, finder: StandIns, undo: ExitStack) -> None:
    """Let a model of transformers that is asked for flash-attn find it."""
    model = module.PreTrainedModel
    for name in _REQUESTS:
        method = vars(model).get(name)
        if callable(method):
            setattr(model, name, _granting(method, finder))
            undo.callback(setattr, model, name, method)


def _granting(method: Callable[..., Any], finder: StandIns) -> Callable[..., Any]:
    is_choice = method.__name__ == _REQUESTS[0]

    @wraps(method)
    def request(self: Any, *args: Any, **keywords: Any) -> Any:
        wanted = args[0] if args else keywords.get("attn_implementation")
        if (not is_choice or wanted == "flash_attention_2") and _is_absent("flash_attn", finder):
            finder.grant("flash_attn")
            _forget_answers()
        return method(self, *args, **keywords)

    return request


def _is_absent(package: str, finder: StandIns) -> bool:
    if package in finder.granted or package in sys.modules:
        return False
    return all(each is finder or _finds(each, package) is None for each in sys.meta_path)


def _finds(finder: Any, name: str) -> ModuleSpec | None:
    find = getattr(finder, "find_spec", None)
    return None if find is None else find(name, None)


def _forget_answers() -> None:
    """Let transformers look again for the packages that are installed."""
    asked: Any = sys.modules.get("transformers.utils.import_utils")
    for name, function in vars(asked).items() if asked is not None else ():
        if hasattr(function, "cache_clear") and ("flash_attn" in name or "package" in name):
            function.cache_clear()


def _is_program() -> bool:
    """Return True if the program itself imports, and not a library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen importlib", f"{_LIBRARIES[2]}importlib/")):
            return not any(each in file for each in _LIBRARIES)
        frame = frame.f_back
    return False
