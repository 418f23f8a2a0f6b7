"""Collection of tests and doctests.

Modules over PyTorch are left out where it is not installed: pytest imports each module to look for doctests, and leaves
an incomplete module behind where the import fails. Tests with a longer limit than the others run first, so that no
process waits at the end for one of them.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent
_IMPORT = re.compile(r"^(?:from|import) +([\w.]+)", re.MULTILINE)


def _over_torch() -> list[str]:
    """Return the files that import PyTorch at their top level, directly or by way of another one."""
    folders = (_ROOT / "src/forebay/interop/torch", _ROOT / "tests/support")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    names = {path: ".".join(path.relative_to(_ROOT).with_suffix("").parts) for path in files}
    names = {path: name.removesuffix(".__init__").removeprefix("src.") for path, name in names.items()}
    imports = {path: {*_IMPORT.findall(path.read_text())} for path in files}
    found: set[str] = {"torch"}

    def needs_torch(path: Path) -> bool:
        return any(each in found or each.startswith("torch.") for each in imports[path])

    while more := {names[path] for path in files if needs_torch(path)} - found:
        found |= more
    return [str(path) for path in files if names[path] in found]


collect_ignore = _over_torch() if find_spec("torch") is None else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_own_limit, reverse=True)


def _own_limit(item: pytest.Item) -> float:
    """Return the limit in seconds that a test has set itself, or 0."""
    marker = item.get_closest_marker("timeout")
    if marker is None:
        return 0.0
    return float(marker.args[0] if marker.args else marker.kwargs.get("timeout") or 0)
