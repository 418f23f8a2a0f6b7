"""Collection of tests and doctests.

Modules over PyTorch and Triton are left out where these are not installed: pytest imports each module to look for
doctests, and leaves an incomplete module behind where the import fails. Tests with a longer limit than the others run
first, on all processes, so that none waits at the end for another one that has several of them left.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pytest

_T = TypeVar("_T")
_ALONE = 600  # seconds; a test with this limit or a longer one shares no fixtures with the others of its file
_ROOT = Path(__file__).parent
_IMPORT = re.compile(r"^(?:from +([\w.]+) +import +([\w, ]+)|import +([\w.]+))", re.MULTILINE)


def _imports(source: str) -> set[str]:
    """Return the names that a file may import modules by: `from a import b` may import a.b."""
    found = set[str]()
    for package, names, module in _IMPORT.findall(source):
        found |= {module or package, *(f"{package}.{name.strip()}" for name in names.split(","))}
    return found


def _over(package: str) -> list[str]:
    """Return the files that import a package at their top level, directly or by way of another one."""
    folders = (_ROOT / "src/forebay/interop/torch", _ROOT / "tests/support")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    names = {path: ".".join(path.relative_to(_ROOT).with_suffix("").parts) for path in files}
    names = {path: name.removesuffix(".__init__").removeprefix("src.") for path, name in names.items()}
    imports = {path: _imports(path.read_text()) for path in files}
    found: set[str] = {package}

    def needs_it(path: Path) -> bool:
        return any(each in found or each.startswith(f"{package}.") for each in imports[path])

    while more := {names[path] for path in files if needs_it(path)} - found:
        found |= more
    return [str(path) for path in files if names[path] in found]


# pytest would resolve `collect_ignore` for each file
_IGNORED = {path for package in ("torch", "triton") if find_spec(package) is None for path in _over(package)}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if str(collection_path) in _IGNORED else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    units: dict[object, list[pytest.Item]] = {}  # of the long tests
    for item in sorted(filter(_own_limit, items), key=_own_limit, reverse=True):
        units.setdefault(item if _own_limit(item) >= _ALONE else item.path, []).append(item)
    items[:] = _parts([*units.values()], [item for item in items if not _own_limit(item)], processes)


def _parts(units: list[list[_T]], others: list[_T], processes: int) -> list[_T]:
    """Return all tests in an order that pytest-xdist cuts into equal parts, one for each process.

    Each part begins with its share of the units, whose tests stay together, as do the others.
    """
    made: list[_T] = []
    left, rest = sum(map(len, units)) + len(others), iter(others)
    for number in range(processes):
        size = left // (processes - number)
        first = [test for unit in units[number::processes] for test in unit]
        made += [*first, *islice(rest, max(0, size - len(first)))]
        left -= size
    return [*made, *rest]


def _own_limit(item: pytest.Item) -> float:
    """Return the limit in seconds that a test has set itself, or 0."""
    marker = item.get_closest_marker("timeout")
    if marker is None:
        return 0.0
    return float(marker.args[0] if marker.args else marker.kwargs.get("timeout") or 0)
