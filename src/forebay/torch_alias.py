"""Import forebay under the name `torch`, for programs whose imports cannot be changed.

`import forebay as torch` is enough for a program of one's own. Other packages contain `import torch`,
`from torch.cuda.memory import ...` and `importlib.metadata.version("torch")`; after `install()` these mean forebay.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from types import ModuleType
from typing import Any, NoReturn

import forebay
from forebay.errors import ForebayError, Unsupported
from forebay.version import __version__ as torch_version

__all__ = ["install"]

# The modules of PyTorch that forebay has. `torch.backends` is beside `forebay.backends`, which is forebay's own.
_MODULES = {name: f"forebay.{name}" for name in ("_C", "_utils", "accelerator", "cuda", "distributed", "mps", "mtia")}
_MODULES |= {name: f"forebay.{name}" for name in ("random", "storage", "types", "version", "xpu")}
_MODULES["backends"] = "forebay.names.torch_backends"
_MODULES["multiprocessing"] = "forebay.interop.multiprocessing"


def install(placeholders: Iterable[str] = ()) -> None:
    """Make forebay the module `torch` of this process.

    `torch.cuda` and the other modules are forebay's module objects. `torch.__version__` is `"2.15.0+forebay"`. An
    installed PyTorch is not changed, but this process can no longer import it. A further call adds placeholders.

    Parameters
    ----------
    placeholders : iterable of str, optional
        Packages of PyTorch's tensor library, such as `"nn"` and `"optim"`, that can be imported although forebay does
        not have them. Every name in them is a class without instances, for annotations, `isinstance` and base classes;
        creating an instance raises Unsupported. Otherwise their import raises ModuleNotFoundError.

    Raises
    ------
    ForebayError
        If the program has imported PyTorch.

    Examples
    --------
    Call it before the first import of a package that uses PyTorch::

        from forebay.torch_alias import install

        install(placeholders=["nn"])
        import pytorch_memlab
    """
    current = sys.modules.get("torch")
    if current is None:
        current = sys.modules["torch"] = _Torch()
        sys.meta_path.insert(0, _finder)
    elif not isinstance(current, _Torch):
        raise ForebayError("this process has imported PyTorch; call forebay.torch_alias.install() first")
    _placeholders.update(placeholders)


_placeholders: set[str] = set()


class _Torch(ModuleType):
    """The module `torch`: the names of forebay, with PyTorch's version."""

    def __init__(self) -> None:
        super().__init__("torch", forebay.__doc__)
        self.__path__: list[str] = []  # a package
        self.__file__ = forebay.__file__
        self.__spec__ = ModuleSpec("torch", _finder, is_package=True)
        self.__version__ = torch_version

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES or name in _placeholders:
            return importlib.import_module(f"torch.{name}")
        try:
            return getattr(forebay, name)
        except AttributeError:
            raise AttributeError(f"module 'torch' (forebay) has no attribute {name!r}", name=name, obj=self) from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(forebay), *_MODULES, *_placeholders})


class _PlaceholderType(type):
    """Metaclass of the names in placeholder packages: attributes are placeholders, calls raise."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{cls.__module__}.{cls.__name__}", name)

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002 -- of any class
        raise Unsupported(f"{cls.__module__}.{cls.__qualname__} needs PyTorch: forebay is a runtime", ability="tensors")


def _placeholder(module: str, name: str) -> Any:
    return _PlaceholderType(name, (), {"__module__": module, "__doc__": "Part of PyTorch that forebay does not have."})


class _PlaceholderModule(ModuleType):
    """A module with forebay's names, if forebay has such a module, and placeholders for all others."""

    def __init__(self, name: str, counterpart: str | None) -> None:
        super().__init__(name)
        self._known = vars(importlib.import_module(counterpart)) if counterpart else {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = self.__dict__[name] = self._known[name] if name in self._known else _placeholder(self.__name__, name)
        return found


class _Finder(DistributionFinder, Loader):
    """Finder and loader of the modules below `torch`, and of the metadata of the distribution."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}  # of forebay's modules, by name

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 -- a finder's
        package, _, inner = fullname.partition(".")
        if package != "torch" or not inner or not (_counterpart(inner) or inner.partition(".")[0] in _placeholders):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        inner = spec.name.removeprefix("torch.")
        counterpart = _counterpart(inner)
        if counterpart is None or inner.partition(".")[0] in _placeholders:
            return _PlaceholderModule(spec.name, counterpart)
        found = importlib.import_module(counterpart)
        self._specs[found.__name__] = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self._specs:
            module.__spec__ = self._specs.pop(module.__name__)  # the import system has replaced it

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        if context is not None and context.name == "torch":
            yield _TorchDistribution()


def _counterpart(inner: str) -> str | None:
    """Return the name of forebay's module for one below `torch`, such as "cuda.memory"; None if there is none."""
    top, dot, rest = inner.partition(".")
    if top not in _MODULES:
        return None
    name = f"{_MODULES[top]}{dot}{rest}"
    try:
        return name if importlib.util.find_spec(name) else None
    except ModuleNotFoundError:  # of a parent that is not a package
        return None


class _TorchDistribution(Distribution):
    """Metadata with the version, which packages read to find out whether PyTorch is installed."""

    def read_text(self, filename: str) -> str | None:
        metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {torch_version}\nSummary: forebay as torch\n"
        return metadata if filename == "METADATA" else None

    def locate_file(self, path: str | PathLike[str]) -> Any:
        raise FileNotFoundError(path)


_finder = _Finder()
