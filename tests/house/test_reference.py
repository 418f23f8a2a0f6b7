"""The reference documentation has every public name of the PyTorch-compatible modules and of those for vendors."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

MODULES = ("forebay.accelerator", "forebay.cuda", "forebay.mps", "forebay.mtia", "forebay.spi", "forebay.vendor")
_NAMED = re.compile(r"^\.\. auto\w+:: ([\w.]+)(?:\n +(:members:)(.*))?|`{1,2}([\w.]+)`{1,2}", re.MULTILINE)
_WRITTEN = re.compile(r"^\.\. written-functions:: (\w+) (\w+)$", re.MULTILINE)  # a directive of docs/


def directives(names: list[str]) -> str:
    """Return the lines in place of which a page has the directive `written-functions`."""
    return "\n".join(f".. autofunction:: {name}" for name in names)


def documented_names(page: str) -> Iterator[str]:
    """Yield the full names on a page: documented directly, as members of a module, or mentioned as code."""
    for documented, has_members, members, mentioned in _NAMED.findall(page):
        yield documented or mentioned
        module = sys.modules.get(documented)
        for member in members.replace(",", " ").split() or (members_of(module) if has_members and module else ()):
            yield f"{documented}.{member}"


def members_of(module: ModuleType) -> list[str]:
    """Return the names that `:members:` documents: not constants, and not modules, which have pages of their own."""
    values = vars(module)  # without names that are imported when they are used: these are functions and classes
    return [name for name in module.__all__ if name not in values or callable(values[name])]


def undocumented(module: ModuleType, pages: str) -> list[str]:
    """Return the public names that are documented neither as the module's nor as those of one of its submodules."""
    known = {*documented_names(pages)}
    known |= {name.rpartition(".")[0] for name in known}  # modules with a documented name
    submodules = [found for name in module.__all__ if isinstance(found := getattr(module, name, None), ModuleType)]

    def is_documented(name: str) -> bool:
        if isinstance(found := getattr(module, name, None), ModuleType) and found.__name__ in known:
            return True
        owners = [module, *(submodule for submodule in submodules if name in submodule.__all__)]
        return any(f"{owner.__name__}.{name}" in known for owner in owners)

    return [name for name in module.__all__ if not is_documented(name)]


@pytest.mark.parametrize("module_name", MODULES)
def test_reference_has_every_public_name(module_name, root, write_names):
    pages = "\n".join(path.read_text() for path in sorted((root / "docs/reference").glob("*.md")))
    pages = _WRITTEN.sub(lambda found: directives(write_names.documented_names(found[1], found[2])), pages)
    assert undocumented(importlib.import_module(module_name), pages) == []  # add a line in docs/reference/<module>*.md


def test_every_function_of_a_table_is_in_the_reference_once(root, write_names):
    pages = "\n".join(path.read_text() for path in sorted((root / "docs/reference").glob("*.md")))
    shown = _WRITTEN.findall(pages)
    assert sorted({*shown}) == sorted(shown)
    names = {name for table, column in shown for name in write_names.documented_names(table, column)}
    assert names.isdisjoint(re.findall(r"^\.\. autofunction:: (\S+)", pages, re.MULTILINE))
    described = [each for each in write_names.described(root) if "package" in each.place]
    assert [f"{each.table} {each.column}" for each in described if (each.table, each.column) not in shown] == []


def test_every_module_of_the_root_is_documented_or_private(root):
    program = "import forebay, types; print(*(n for n, v in vars(forebay).items() if isinstance(v, types.ModuleType)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    page = (root / "docs/reference/forebay.md").read_text()
    documented = {*re.findall(r"`forebay\.(\w+)`", page.partition("## Modules of the package")[2])}
    assert "memory" in done.stdout.split()
    assert {name for name in done.stdout.split() if not name.startswith("_")} <= documented
    files = {path.stem for path in (root / "src/forebay").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {name for name in files if not name.startswith("_")} <= documented
    assert {name for name in documented if not name.startswith("_")} <= files


def test_planted_gap_is_found():
    module, submodule = ModuleType("module"), ModuleType("module.sub")
    module.__all__, submodule.__all__, module.sub = ["f", "g", "h", "i", "j", "sub", "other"], ["i"], submodule
    page = ".. autofunction:: module.f\n.. automodule:: module\n   :members: g\n"
    page += "and ``module.h``, ``module.sub.i``"
    assert undocumented(module, page) == ["j", "other"]


def test_planted_constant_and_module_are_not_members(monkeypatch):
    module, part = ModuleType("planted"), ModuleType("elsewhere.part")
    module.__all__, module.f, module.LIMIT, module.part, part.__all__ = ["f", "LIMIT", "part"], print, 1, part, []
    monkeypatch.setitem(sys.modules, "planted", module)
    page = ".. automodule:: planted\n   :members:\n"
    assert undocumented(module, page) == ["LIMIT", "part"]
    assert undocumented(module, f"{page}.. automodule:: elsewhere.part\n and `planted.LIMIT`") == []
