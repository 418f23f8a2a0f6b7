"""Backends of vendors, forebay's own included, import only `forebay.vendor`, `forebay.spi` and `forebay.errors`.

What they need beyond that is missing for other packages, too. Every import counts: at the start, inside functions, for
annotations, in Cython, in stubs, and by name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BACKENDS = {  # folder: its package
    "src/forebay/backends/nvidia": "forebay.backends.nvidia",
    "src/forebay/backends/metal": "forebay.backends.metal",
    "examples/vendor_plugin/src/forebay_acme": "forebay_acme",
    "examples/vendor_plugin/tests": "forebay.testing",
}
SURFACE = ("forebay.vendor", "forebay.spi", "forebay.errors")
_FROM = re.compile(r"^\s*from\s+(\.*[\w.]*)\s+c?import\s*(?:\(([^)]*)\)|([^\n(]+))", re.MULTILINE)
_IMPORT = re.compile(r"^\s*c?import\s+(\w[\w., ]*)", re.MULTILINE)
_BY_NAME = re.compile(r"""(?:import_module|__import__)\(\s*["']([\w.]+)""")


def names_in(listed: str) -> set[str]:
    """Return the names in "a, b as c", which may span several lines with comments."""
    lines = (line.partition("#")[0] for line in listed.splitlines())
    return {name.split()[0] for name in " ".join(lines).split(",") if name.strip()}


def forebay_imports(source: str, package: str) -> set[str]:
    """Return the full names of everything that a source of a package imports from forebay, or from the package."""
    found = {*_BY_NAME.findall(source)}
    for modules in _IMPORT.findall(source):
        found |= names_in(modules)
    for base, many, few in _FROM.findall(source):
        # A relative import is of the package, or, with two dots, of what is above it.
        full = f"{package}{base.rstrip('.') if base == '.' else base}" if base.startswith(".") else base
        found |= {f"{full}.{name}" for name in names_in(many or few)}
    return {name for name in found if name.startswith(("forebay.", f"{package}.")) or name == "forebay"}


def outside_surface(source: str, package: str) -> list[str]:
    """Return the imports that another package's backend could not make."""
    allowed = (package, *SURFACE)
    return sorted(
        name
        for name in forebay_imports(source, package)
        if ".." in name or not any(f"{name}.".startswith(f"{each}.") for each in allowed)
    )


def sources(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".pyi", ".pyx", ".pxd"})


@pytest.mark.parametrize(("folder", "package"), BACKENDS.items())
def test_backend_imports_only_the_surface(folder, package):
    assert sources(folder)
    found = {path.relative_to(ROOT).as_posix(): outside_surface(path.read_text(), package) for path in sources(folder)}
    assert {path: names for path, names in found.items() if names} == {}


def test_backends_use_the_surface():
    used = {
        name
        for folder, package in BACKENDS.items()
        for path in sources(folder)
        for name in forebay_imports(path.read_text(), package)
    }
    assert {"forebay.vendor.integer_of", "forebay.vendor.cuda_errors", "forebay.spi.DeviceProps"} <= used


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("from forebay._base import config", "forebay._base.config"),
        ("import forebay", "forebay"),
        ("from forebay import vendor, cuda", "forebay.cuda"),
        ("import os, forebay.runtime as runtime", "forebay.runtime"),
        (
            "def f():\n    from forebay.backends.common.mmap import unmap_memory",
            "forebay.backends.common.mmap.unmap_memory",
        ),
        ("if TYPE_CHECKING:\n    from forebay.memory import (\n        a,\n    )", "forebay.memory.a"),
        ("from forebay.backends.common._releases cimport ReleaseLog", "forebay.backends.common._releases.ReleaseLog"),
        ("cimport forebay._core", "forebay._core"),
        ("importlib.import_module('forebay.memory')", "forebay.memory"),
        ("from forebay.vendors import x", "forebay.vendors.x"),
        ("from forebay.backends.metal.queue import MetalQueue", "forebay.backends.metal.queue.MetalQueue"),
        ("from ..common import arguments", "forebay.backends.nvidia..common.arguments"),
    ],
)
def test_planted_import_is_found(source, imported):
    assert outside_surface(source, "forebay.backends.nvidia") == [imported]


@pytest.mark.parametrize(
    "source",
    [
        "from forebay.vendor import (\n    AddressSpace,\n    PageLedger,\n)",
        "from forebay import errors, spi, vendor",
        "from forebay.spi.required import Port",
        "from forebay.backends.nvidia._stream cimport Current",
        "from .queue import CudaQueue",
        "import numpy as np\nfrom cuda.bindings import driver",
    ],
)
def test_allowed_import_is_not_found(source):
    assert outside_surface(source, "forebay.backends.nvidia") == []
