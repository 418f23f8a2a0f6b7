"""Import order: the layers and package orders of DESIGN.md, checked against every import statement of the sources.

Imports inside functions count as executed imports. Imports under TYPE_CHECKING, and those of stubs, may go against the
order and form cycles only where `TYPING_EXCEPTIONS` lists them with a reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import pytest

# One line for each layer, from 0. A group of modules may import all lower layers, the groups of its layer before a "<",
# and its own modules. "forebay" is the package's own file, the public names.
LAYERS = (
    "_core errors profiles",
    "spi < _base < records rehearsal",
    "backends.common < backends < vendor < backends.nvidia backends.metal",
    "runtime",
    "simulate observe < snapshot",
    "names memory random storage < interop flight_recorder < _oom_advice < _wiring",
    "accelerator cuda mps mtia < _C _utils distributed types version xpu < interop.torch < forebay",
    "testing torch_alias < commands < __main__",
)
# The order of packages inside a layer: each imports only those before it. Modules beside the packages come last.
_RUNTIME = "base settings history allocator pinned devices streams memory random tensors graphs lifecycle"
ORDERS = {
    "forebay.runtime": _RUNTIME.split(),
    "forebay.backends": ["common", "host", "emulated", "nvidia", "metal", "plugins"],
    "forebay.observe": ["telemetry", "ranges", "races", "tracing", "monitor"],
    "forebay.snapshot": ["formats", "analysis", "replay", "report"],
}
# The passes over a snapshot, each after those that it may import (Note [Snapshots are read in three passes]).
PASSES = ("torch_decode", "torch_validate", "torch_columns", "torch_pickle")
# Imports for annotations that may go against the order and form cycles, at most three entries: prefixes of the modules
# that import, the prefix of the modules that they import, and the reason.
TYPING_EXCEPTIONS = [
    (
        "runtime.base.observers runtime.base.capture_state",
        "runtime",
        "signatures of observers and the state of a capture name what is observed and captured",
    ),
    (
        "runtime.devices runtime.streams",
        "runtime.streams",
        "a device has a default stream and a thread a current one; a stream records events, and an event has a stream",
    ),
    (
        "runtime.memory runtime.random runtime.tensors",
        "runtime.tensors.tensor",
        "a Tensor has the functions of these modules as methods, and its storages and generators take tensors",
    ),
]
# Snapshots open no device and are read where only these are installed.
DEVICE_FREE = "snapshot"
DEVICE_FREE_IMPORTS = {
    *("snapshot", "records", "simulate", "errors", "_base", "spi", "_core"),
    *("numpy", "rich"),
    *("compression", "zstandard", "pyarrow"),  # for compressed files (of Python 3.14, or an extra) and Parquet
}


class Import(NamedTuple):
    importer: str
    imported: str  # a module of forebay, or the top module of another package
    line: int
    when: str  # "start", "late" inside a function, or "typing"


class Place(NamedTuple):
    layer: int
    group: int  # number of "<" before it
    name: str


PLACES = {
    name: Place(layer, group, name)
    for layer, line in enumerate(LAYERS)
    for group, names in enumerate(line.split("<"))
    for name in names.split()
}


def place_of(module: str) -> Place:
    """Return the place of the longest prefix of the module in LAYERS."""
    inner = module.removeprefix("forebay.")
    while inner not in PLACES:
        inner, _, last = inner.rpartition(".")
        if not last or not inner:
            raise LookupError(f"{module} is in no layer: add it to LAYERS, and to the drawing in DESIGN.md")
    return PLACES[inner]


def imports_of(module: str, source: str, modules: set[str], *, is_package: bool = False) -> Iterator[Import]:
    """Yield every import statement of a source, and every importlib.import_module("...")."""

    def named(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(base, names, level):
                if level:
                    package = module.split(".") if is_package else module.split(".")[:-1]
                    base = ".".join([*package[: len(package) - level + 1], *([base] if base else [])])
                for alias in names:
                    yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else str(base)
            case ast.Call(function, [ast.Constant(str(name)), *_]) if ast.unparse(function).endswith("import_module"):
                yield name

    def walk(node: ast.AST, when: str) -> Iterator[Import]:
        for name in named(node):
            top = name.split(".")[0]
            yield Import(module, name if top == "forebay" else top, node.lineno, when)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "start":
            when = "late"
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            when = "typing"
        for child in ast.iter_child_nodes(node):
            yield from walk(child, when)

    return walk(ast.parse(source), "start")


def package_of(module: str) -> tuple[str, str] | None:
    """Return the layer package and its part, as ("forebay.runtime", "allocator")."""
    for package in ORDERS:
        if module.startswith(f"{package}."):
            return package, module.removeprefix(f"{package}.").split(".")[0]
    return None


def is_below(module: str, prefix: str) -> bool:
    """Return True for the module with this name in forebay, and for those inside it."""
    return f"{module}.".startswith(f"forebay.{prefix}.")


class Scope(NamedTuple):
    importer: str
    imported: str

    def covers(self, found: Import) -> bool:
        inside = is_below(found.importer, self.importer) and is_below(found.imported, self.imported)
        return inside and found.when == "typing"


SCOPES = [Scope(importer, imported) for importers, imported, _ in TYPING_EXCEPTIONS for importer in importers.split()]


def is_excepted(found: Import) -> bool:
    return any(scope.covers(found) for scope in SCOPES)


def layer_problem(found: Import) -> str | None:
    place = place_of(found.importer)
    where = f"{found.importer}:{found.line} imports {found.imported}"
    ours = found.imported.split(".")[0] == "forebay"
    if place.name == DEVICE_FREE:
        name = found.imported.removeprefix("forebay.").split(".")[0]
        available = name in sys.stdlib_module_names or (found.when == "typing" and name == "typing_extensions")
        if name not in DEVICE_FREE_IMPORTS and (ours or not available):
            return f"{where}, but snapshot/ imports only {', '.join(sorted(DEVICE_FREE_IMPORTS))}"
    if ours and (other := place_of(found.imported)) != place and other[:2] >= place[:2]:
        return f"{where}, which is in layer {other.layer} and not before {place.name} of layer {place.layer}"
    return None


def order_problem(found: Import) -> str | None:
    importer, imported = package_of(found.importer), package_of(found.imported)
    if importer is None or imported is None or importer[0] != imported[0]:
        return None
    order = ORDERS[importer[0]]
    rank = {name: number for number, name in enumerate(order)}
    if rank.get(imported[1], len(order)) <= rank.get(importer[1], len(order)):
        return None
    return f"{found.importer}:{found.line} imports {found.imported}, which comes later in the order of {importer[0]}"


def pass_problem(found: Import, imports: Iterable[Import]) -> str | None:
    """Return how an import lets a pass reach a later one, itself or through the modules that it imports."""
    formats, (importer, imported) = "forebay.snapshot.formats.", found[:2]
    place = importer.removeprefix(formats)
    if place not in PASSES:
        return None
    seen, reached = {imported}, [imported]
    while reached:
        last = reached.pop()
        if last.removeprefix(formats) in PASSES[PASSES.index(place) + 1 :]:
            return f"{importer}:{found.line} imports {imported}, which reaches the later pass {last}"
        fresh = {
            each.imported for each in imports if each.importer == last and each.imported.startswith(formats)
        } - seen
        seen |= fresh
        reached += fresh
    return None


def problem(found: Import) -> str | None:
    return None if is_excepted(found) else layer_problem(found) or order_problem(found)


def cycle_in(found: Iterable[Import], modules: set[str]) -> list[str]:
    """Return a cycle of modules, or an empty list. Importing a module also runs the packages around it."""
    graph: dict[str, set[str]] = {}
    for importer, imported, _, when in found:
        if imported in modules:
            parts = imported.split(".")
            chain = {".".join(parts[:n]) for n in range(2, len(parts) + 1)} & modules if when == "start" else {imported}
            running = {package for package in chain - {imported} if f"{importer}.".startswith(f"{package}.")}
            graph.setdefault(importer, set()).update(chain - running - {importer})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.fixture(scope="module")
def sources(root):
    """Return each module of forebay: its source, and whether it is a package."""
    found = {}
    for path in sorted((root / "src/forebay").rglob("*.py")):  # without forebay_command, which is above the package
        parts = path.relative_to(root / "src").with_suffix("").parts
        is_package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if is_package else parts)] = path.read_text(), is_package
    for path in sorted((root / "src").rglob("*.pyx")):
        lines = [line for line in path.read_text().splitlines() if re.match(r"(import|from) (?!.* cimport )", line)]
        found[".".join(path.relative_to(root / "src").with_suffix("").parts)] = "\n".join(lines), False
    return found


@pytest.fixture(scope="module")
def imports(root, sources):
    modules = set(sources)
    found = [
        each
        for module, (source, is_package) in sources.items()
        for each in imports_of(module, source, modules, is_package=is_package)
    ]
    for path in sorted((root / "src/forebay").rglob("*.pyi")):
        module = ".".join(path.relative_to(root / "src").with_suffix("").parts)
        found += [each._replace(when="typing") for each in imports_of(module, path.read_text(), modules)]
    return found


def test_every_module_is_in_a_layer(sources):
    assert len(LAYERS) <= 8
    for module in sources:
        place_of(module)


def test_imports_follow_the_order(imports):
    assert [found for found in map(problem, imports) if found] == []


def test_passes_over_a_snapshot_follow_their_order(imports):
    assert {f"forebay.snapshot.formats.{name}" for name in PASSES} <= {found.importer for found in imports}
    assert [error for found in imports if (error := pass_problem(found, imports))] == []


def test_no_cycles_of_executed_imports(imports, sources):
    assert cycle_in((found for found in imports if found.when != "typing"), {*sources}) == []


def test_no_cycles_of_typing_imports_but_those_listed(imports, sources):
    assert len(TYPING_EXCEPTIONS) <= 3
    assert cycle_in((found for found in imports if not is_excepted(found)), {*sources}) == []


@pytest.mark.parametrize("scope", SCOPES, ids="->".join)
def test_every_exception_is_needed(imports, sources, scope):
    others = [each for each in SCOPES if each != scope]
    kept = [found for found in imports if not any(each.covers(found) for each in others)]
    against_the_order = [found for found in kept if scope.covers(found) and order_problem(found)]
    assert against_the_order or cycle_in(kept, {*sources})


def test_the_core_imports_nothing_of_forebay(root):
    sources = [path for pattern in ("*.pyx", "*.px[di]") for path in root.glob(f"src/forebay/{pattern}")]
    assert sources
    found = {line.strip() for path in sources for line in forebay_imports(path.read_text())}
    assert found == {"from forebay._late_errors cimport call_in_destructor, report"}  # C functions, without a module


def forebay_imports(source: str) -> list[str]:
    return re.findall(r"^\s*(?:from|import|cimport)\s+(?:forebay\b|\.).*", source, re.MULTILINE)


MODULES = {"forebay", "forebay.errors", "forebay._base.device_spec", "forebay.runtime", "forebay.runtime.streams"}
MODULES |= {"forebay.runtime.streams.stream", "forebay.runtime.memory.storage", "forebay.backends.host.driver"}
MODULES |= {"forebay.snapshot.formats.native", "forebay.cuda", "forebay.mps", "forebay.runtime.tensors.tensor"}


@pytest.mark.parametrize(
    ("importer", "source", "word"),
    [
        ("forebay.errors", "import forebay.runtime.streams.stream", "layer 3"),
        ("forebay.errors", "from forebay.runtime.streams import stream", "forebay.runtime.streams.stream"),
        ("forebay.errors", "from .runtime.streams import stream", "forebay.runtime.streams.stream"),
        ("forebay.runtime.streams.stream", "from forebay import Device", "layer 6"),
        ("forebay.runtime.streams.stream", "def f():\n    from forebay import cuda", "layer 6"),
        ("forebay.runtime.streams.stream", "if TYPE_CHECKING:\n    import forebay.cuda", "layer 6"),
        ("forebay.runtime.streams.stream", "importlib.import_module('forebay.cuda')", "layer 6"),
        ("forebay.runtime.streams.stream", "import forebay.runtime.memory.storage", "comes later"),
        ("forebay.runtime.streams.stream", "def f():\n    import forebay.runtime.memory.storage", "comes later"),
        ("forebay.runtime.streams.stream", "if TYPE_CHECKING:\n    import forebay.runtime.memory.storage", "later"),
        ("forebay.cuda", "import forebay.mps", "not before"),
        ("forebay.backends.host.driver", "import forebay.vendor", "not before"),
        ("forebay", "import forebay.testing.fake", "layer 7"),
        ("forebay.snapshot.formats.native", "import forebay.runtime.streams.stream", "imports only"),
        ("forebay.snapshot.formats.native", "import cupy.cuda", "imports only"),
    ],
)
def test_planted_import_against_the_order_is_found(importer, source, word):
    (found,) = imports_of(importer, source, MODULES, is_package=importer == "forebay")
    assert word in (problem(found) or "")


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("forebay.runtime.streams.stream", "from forebay.backends.host import driver"),
        ("forebay.runtime.memory.storage", "from forebay.runtime.streams import stream"),
        ("forebay.runtime.base.observers", "if TYPE_CHECKING:\n    from forebay.runtime.streams import stream"),
        ("forebay.runtime.random.fill", "if TYPE_CHECKING:\n    from forebay.runtime.tensors import tensor"),
        ("forebay._base.device_spec", "from forebay import errors"),
        ("forebay.records.model", "from forebay._base import config"),
        ("forebay.snapshot.formats.native", "import json, numpy.typing"),
    ],
)
def test_imports_along_the_order_are_allowed(importer, source):
    assert [problem(found) for found in imports_of(importer, source, MODULES)] in ([None], [None, None])


@pytest.mark.parametrize("between", [None, "torch_checked"])
def test_planted_import_of_a_later_pass_is_found(between):
    formats = "forebay.snapshot.formats"
    modules = {f"{formats}.{name}" for name in (*PASSES, "torch_checked")}
    chain = ["torch_validate", *([between] if between else []), "torch_columns"]
    found = [
        each
        for importer, imported in pairwise(chain)
        for each in imports_of(f"{formats}.{importer}", f"def f():\n    from {formats} import {imported}", modules)
    ]
    assert "later pass" in (pass_problem(found[0], found) or "")
    back = [*imports_of(f"{formats}.torch_columns", f"from {formats} import torch_validate", modules)]
    assert pass_problem(back[0], back) is None


def test_planted_module_without_a_layer_is_found():
    with pytest.raises(LookupError, match=r"forebay\.attic is in no layer"):
        place_of("forebay.attic")


def test_planted_cycles_are_found():
    modules = {"forebay.errors", "forebay._base.device_spec", "forebay.spi"}
    forth = [*imports_of("forebay.errors", "import forebay._base.device_spec", modules)]
    for back in (
        "import forebay.errors",
        "def f():\n    import forebay.errors",
        "if TYPE_CHECKING:\n    import forebay.errors",
    ):
        assert cycle_in([*forth, *imports_of("forebay._base.device_spec", back, modules)], modules)
    assert cycle_in(forth, modules) == []


def test_planted_cycle_through_a_package_is_found():
    modules = {"forebay.simulate", "forebay.snapshot", "forebay.snapshot.formats"}
    down = imports_of("forebay.simulate", "import forebay.snapshot.formats", modules)
    back = imports_of("forebay.snapshot", "import forebay.simulate", modules, is_package=True)
    assert cycle_in([*down, *back], modules)


def test_planted_import_in_the_core_is_found():
    assert forebay_imports("cimport numpy\nfrom forebay.errors import WrongState\n    import forebay\n")
