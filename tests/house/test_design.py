"""DESIGN.md is short, names what exists, and has the layers that are checked; CONTRIBUTING.md names files that exist.

In code spans, `a/b.py` is a file, `a/b/` a folder, `a/b.py::name` what a file defines, and `name` what some file of the
sources defines. Paths are those of the repository, or below src/forebay.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

MAX_LINES, MAX_WIDTH = 120, 100
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#]+)\)")
_FOLDER = re.compile(r"(?<![\w/.])(?:\w[\w-]*/)+(?![\w.])")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]*)+|\w[\w-]*\.(?:py|pyx|md|toml)")
_NAME = re.compile(r"((?:\w+\.)*)([A-Za-z_]\w*)(?:\(.*\))?")  # what is before the last dot may be a variable
EXPLAINED = ("a/b.py", "tests/a/test_b.py")  # stand for any module


@pytest.fixture(scope="module")
def design(root: Path) -> str:
    return (root / "DESIGN.md").read_text("utf-8")


def find(root: Path, name: str) -> Path | None:
    """Return a file, or a folder if the name ends in a slash."""
    for path in (root / name, root / "src/forebay" / name):
        if path.is_dir() if name.endswith("/") else path.is_file():
            return path
    return None


def defined_in(path: Path) -> set[str]:
    """Return the names of functions, classes, methods and variables of a file; of compiled code, all its words."""
    text = path.read_text("utf-8")
    if path.suffix not in {".py", ".pyi"}:
        return {*re.findall(r"\w+", text)}
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                found.add(name)
            case ast.Name(name, ast.Store()):
                found.add(name)
    return found


@cache
def defined_anywhere(root: Path) -> frozenset[str]:
    files = [path for path in (root / "src/forebay").rglob("*.py*") if path.suffix in {".py", ".pyi", ".pyx"}]
    return frozenset[str]().union(*map(defined_in, files))


def problems(text: str, root: Path) -> list[str]:
    """Return the names of a text that do not exist."""
    prose = _BLOCK.sub("", text)
    folders = {name for block in _BLOCK.findall(text) for name in _FOLDER.findall(block)}
    missing = [f"{name} is no folder" for name in sorted(folders) if find(root, name) is None]
    missing += [f"{link} is no file" for link in _LINK.findall(prose) if "://" not in link and not find(root, link)]
    for span in _SPAN.findall(prose):
        name, colons, defined = span.partition("::")
        if span in EXPLAINED or span.startswith("# Note "):
            continue
        if _PATH.fullmatch(name):
            path = find(root, name)
            if path is None:
                missing.append(f"{name} is no {'folder' if name.endswith('/') else 'file'}")
            elif colons and not {*defined.split(".")} <= defined_in(path):
                missing.append(f"{name} does not define {defined}")
        elif (found := _NAME.fullmatch(span)) and found[2] not in defined_anywhere(root):
            missing.append(f"no file defines {found[2]}")
    return missing


def test_page_is_short(design):
    lines = design.splitlines()
    assert len(lines) <= MAX_LINES
    table = [line for line in lines if line.startswith("|")]  # a row cannot be broken
    assert [line for line in lines if len(line) > MAX_WIDTH and line not in table] == []


def test_every_name_exists(design, root):
    assert problems(design, root) == []


def test_each_flow_has_five_steps(design):
    flows = re.findall(r"^## How .*?(?=^## )", design, re.MULTILINE | re.DOTALL)
    assert [re.findall(r"^(\d)\. ", flow, re.MULTILINE) for flow in flows] == [[*"12345"]] * 4


def test_layers_are_those_that_are_checked(design, root):
    spec = importlib.util.spec_from_file_location("test_layers", root / "tests/house/test_layers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = re.findall(r"^(\d)  (.+)$", design, re.MULTILINE)
    assert [(int(number), line) for number, line in reversed(shown)] == [*enumerate(module.LAYERS)]


def test_common_changes_name_existing_files(root):
    """A file with a placeholder, `test_<module>.py`, is in an existing folder."""
    table = (root / "CONTRIBUTING.md").read_text("utf-8").partition("## Common changes")[2].partition("\n## ")[0]
    spans = [span.partition("<")[0].rpartition("/")[0] + "/" if "<" in span else span for span in _SPAN.findall(table)]
    paths = [span for span in spans if _PATH.fullmatch(span)]
    assert len(paths) > 15
    assert [path for path in paths if find(root, path) is None] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`runtime/memory/transfer.py`, `native/pool/pool.cpp`, `tests/`, `CONTRIBUTING.md`", []),
        ("`runtime/memory/storage.py::allocate_block`, `runtime/tensors/tensor.py::Tensor.copy_`", []),
        ("`Driver`, `forebay.empty()`, `# Note [Name]`, `x + y`, `tests/a/test_b.py`", []),
        ("`runtime/nowhere.py`", ["runtime/nowhere.py is no file"]),
        ("`nowhere.py`", ["nowhere.py is no file"]),
        ("`runtime/memory/nowhere/`", ["runtime/memory/nowhere/ is no folder"]),
        ("`runtime/`, `runtime/memory`", ["runtime/memory is no file"]),
        ("`runtime/memory/storage.py::no_such`", ["runtime/memory/storage.py does not define no_such"]),
        ("`native/pool/pool.cpp::no_such`", ["native/pool/pool.cpp does not define no_such"]),
        ("`NoSuchClass`", ["no file defines NoSuchClass"]),
        ("`forebay.no_such(1 << 20)`, `target.copy_(source)`", ["no file defines no_such"]),
        ("[page](docs/design/nowhere.md)", ["docs/design/nowhere.md is no file"]),
        ("[page](docs/design/pool.md), [web](https://example.org/a)", []),
        ("```text\nnames/ nowhere/\n│ spi/: the contract\n```", ["nowhere/ is no folder"]),
    ],
)
def test_planted_name_is_found(root, text, expected):
    assert problems(text, root) == expected
