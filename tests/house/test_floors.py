"""Imports only point down: the floors of DESIGN.md, held against the sources, late and typing imports included."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import pytest

# One line a room. A room may import every lower floor, and its own modules where that makes no cycle.
ROOMS: list[tuple[float, str]] = [
    (0, "_core"),
    (
        1,
        "addresses errors device config dtypes sizes spi profiles watermarks whole_files snapshot.model snapshot.sites",
    ),
    (2, "backends"),
    (2.5, "vendor"),
    (3, "runtime"),
    (4, "simulate"),
    (4, "observe"),
    (4.5, "snapshot"),  # the wing
    (5, "faces"),
    (5, "interop"),
    (5, "memory random"),
    (5, "_advising"),
    (6, "cuda"),
    (6, "mps"),
    (6, "mtia"),
    (6, "accelerator"),
    (6.2, ""),  # forebay/__init__.py, the public list
    (6.5, "testing"),
    (7, "cli commands __main__"),
]
# The wing opens no device and runs where only these are installed.
WING = "snapshot"
WING_MAY_IMPORT = {
    *("snapshot", "simulate", "errors", "sizes", "config", "spi", "watermarks", "whole_files"),
    *("numpy", "rich"),
}


class Import(NamedTuple):
    importer: str
    imported: str  # a module: forebay's, or the top one of another package
    line: int
    at_start: bool  # runs when the importer is imported


def room_of(module: str) -> tuple[float, str]:
    """The room whose line names the longest beginning of `module`."""
    inner = module.removeprefix("forebay").removeprefix(".")
    while True:
        for floor, names in ROOMS:
            if inner in names.split() or (not inner and not names and module == "forebay"):
                return floor, names
        if not inner:
            raise LookupError(f"{module} is in no room: give it one in ROOMS, and in DESIGN.md's drawing")
        inner = inner.rpartition(".")[0]


def imports_of(module: str, source: str, modules: set[str], *, is_package: bool = False) -> Iterator[Import]:
    """Every import statement of a source, and every importlib.import_module("…")."""

    def named(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(base, names, level):
                if level:
                    home = module.split(".") if is_package else module.split(".")[:-1]
                    base = ".".join([*home[: len(home) - level + 1], *([base] if base else [])])
                for alias in names:
                    yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else str(base)
            case ast.Call(function, [ast.Constant(str(name)), *_]) if ast.unparse(function).endswith("import_module"):
                yield name

    def walk(node: ast.AST, *, at_start: bool) -> Iterator[Import]:
        for name in named(node):
            top = name.split(".")[0]
            yield Import(module, name if top == "forebay" else top, node.lineno, at_start)
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_start=at_start and not late and not typing_only)

    return walk(ast.parse(source), at_start=True)


def complaint(found: Import) -> str | None:
    floor, room = room_of(found.importer)
    where = f"{found.importer}:{found.line} imports {found.imported}"
    ours = found.imported.split(".")[0] == "forebay"
    if room == WING:
        name = found.imported.removeprefix("forebay.").split(".")[0]
        if name not in WING_MAY_IMPORT and (ours or name not in sys.stdlib_module_names):
            return f"{where}, but the wing imports nothing but {', '.join(sorted(WING_MAY_IMPORT))}"
    if ours and (other := room_of(found.imported)) != (floor, room) and other[0] >= floor:
        return f"{where}, which is on floor {other[0]:g} and not below {floor:g}"
    return None


def cycle_in(found: list[Import], modules: set[str]) -> list[str]:
    """A cycle among imports that run at the start. Importing a module also runs the packages around it."""
    graph: dict[str, set[str]] = {}
    for importer, imported, _, at_start in found:
        if at_start and imported in modules:
            parts = imported.split(".")
            chain = {".".join(parts[:n]) for n in range(2, len(parts) + 1)} & modules
            running = {package for package in chain - {imported} if f"{importer}.".startswith(f"{package}.")}
            graph.setdefault(importer, set()).update(chain - running)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.fixture(scope="module")
def sources(root):
    """Every module of forebay: its source, and whether it is a package."""
    found = {}
    for path in sorted((root / "src").rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        is_package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if is_package else parts)] = path.read_text(), is_package
    for path in sorted((root / "src").rglob("*.pyx")):
        lines = [line for line in path.read_text().splitlines() if re.match(r"(import|from) (?!.* cimport )", line)]
        found[".".join(path.relative_to(root / "src").with_suffix("").parts)] = "\n".join(lines), False
    return found


@pytest.fixture(scope="module")
def imports(sources):
    modules = set(sources)
    return [
        found
        for module, (source, is_package) in sources.items()
        for found in imports_of(module, source, modules, is_package=is_package)
    ]


def test_every_module_has_a_room(sources):
    for module in sources:
        room_of(module)


def test_imports_only_point_down(imports):
    assert [found for found in map(complaint, imports) if found] == []


def test_no_cycles(imports, sources):
    assert cycle_in(imports, {*sources}) == []


def test_the_core_imports_nothing_of_ours(root):
    sources = [path for pattern in ("*.pyx", "*.px[di]") for path in root.glob(f"src/forebay/{pattern}")]
    assert sources
    assert {path.name: found for path in sources if (found := ours_in_cython(path.read_text()))} == {}


def ours_in_cython(source: str) -> list[str]:
    return re.findall(r"^\s*(?:from|import|cimport)\s+(?:forebay\b|\.).*", source, re.MULTILINE)


MODULES = {"forebay", "forebay.errors", "forebay.device_spec", "forebay.runtime", "forebay.runtime.streams.stream"}
MODULES |= {"forebay.backends.host.driver", "forebay.snapshot.formats.native", "forebay.cuda", "forebay.mps"}


@pytest.mark.parametrize(
    ("importer", "source", "word"),
    [
        ("forebay.errors", "import forebay.runtime.streams.stream", "floor 3"),
        ("forebay.errors", "from forebay.runtime.streams import stream", "forebay.runtime.streams.stream"),
        ("forebay.errors", "from .runtime import stream", "forebay.runtime.streams.stream"),
        ("forebay.runtime.streams.stream", "from forebay import Device", "floor 6.2"),
        ("forebay.runtime.streams.stream", "def f():\n    from forebay import cuda", "floor 6"),
        ("forebay.runtime.streams.stream", "if TYPE_CHECKING:\n    import forebay.cuda", "floor 6"),
        ("forebay.runtime.streams.stream", "importlib.import_module('forebay.cuda')", "floor 6"),
        ("forebay.cuda", "import forebay.mps", "not below"),
        ("forebay", "import forebay.testing.fake", "floor 6.5"),
        ("forebay.snapshot.formats.native", "import forebay.runtime.streams.stream", "the wing"),
        ("forebay.snapshot.formats.native", "import cupy.cuda", "the wing"),
    ],
)
def test_a_planted_import_upwards_is_found(importer, source, word):
    (found,) = imports_of(importer, source, MODULES, is_package=importer == "forebay")
    assert word in (complaint(found) or "")


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("forebay.runtime.streams.stream", "from forebay.backends.host import driver as host"),
        ("forebay.errors", "from forebay.device_spec import Device"),
        ("forebay.snapshot.formats.native", "import json, numpy.typing"),
    ],
)
def test_what_points_down_is_allowed(importer, source):
    assert [complaint(found) for found in imports_of(importer, source, MODULES)] in ([None], [None, None])


def test_a_planted_stranger_is_found():
    with pytest.raises(LookupError, match=r"forebay\.attic is in no room"):
        room_of("forebay.attic")


def test_a_planted_cycle_is_found():
    modules = {"forebay.errors", "forebay.device_spec", "forebay.spi"}
    late = "def f():\n    import forebay.errors"
    forth = [*imports_of("forebay.errors", "import forebay.device_spec", modules)]
    assert cycle_in([*forth, *imports_of("forebay.device_spec", "import forebay.errors", modules)], modules)
    assert cycle_in([*forth, *imports_of("forebay.device_spec", late, modules)], modules) == []


def test_a_planted_cycle_through_a_package_is_found():
    modules = {"forebay.simulate", "forebay.snapshot", "forebay.snapshot.model"}
    down = imports_of("forebay.simulate", "import forebay.snapshot.model", modules)
    back = imports_of("forebay.snapshot", "import forebay.simulate", modules, is_package=True)
    assert cycle_in([*down, *back], modules)


def test_a_planted_import_in_the_core_is_found():
    assert ours_in_cython("cimport numpy\nfrom forebay.errors import WrongState\n    import forebay\n")
