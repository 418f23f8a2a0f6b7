"""Names and signatures of PyTorch 2.15's runtime modules exist here; differences are listed with a reason.

tests/data/torch_names.json has the names (make_torch_names.py writes it), torch_names_differences.toml the reasons.
`here` is the value that this test finds, so a changed difference fails too.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import json
import re
import runpy
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data"
TORCH = json.loads((DATA / "torch_names.json").read_text())["modules"]
DIFFERENCES = tomllib.loads((DATA / "torch_names_differences.toml").read_text())
SIGNATURES = runpy.run_path(str(DATA / "signatures.py"))
BASES = "torch.storage"  # in the data for the members that the twelve storages of torch.cuda share


def counterpart(torch_name: str) -> Any:
    """Return forebay's object or module for a PyTorch name. Raises AttributeError or ImportError if it is missing."""
    if torch_name == BASES:
        storage = importlib.import_module("forebay.cuda").FloatStorage
        return SimpleNamespace(TypedStorage=storage, _LegacyStorage=storage)
    ours = re.sub(r"^torch\b", "forebay", torch_name)
    if torch_name in TORCH or "." not in torch_name:
        return importlib.import_module(ours)
    module, _, name = torch_name.rpartition(".")
    return getattr(counterpart(module), name)


def forebay_signature(found: Any, *, bound: bool = False) -> str:
    try:
        return SIGNATURES["signature_text"](inspect.signature(found), bound=bound)
    except (ValueError, TypeError):
        return "no signature"


def with_forebay_defaults(signature: str) -> str:
    """Return a PyTorch signature with forebay's objects as its defaults."""
    return re.sub(r"(?<==)torch(?:\.\w+)+", lambda found: SIGNATURES["default_text"](counterpart(found[0])), signature)


def difference(found: Any, line: dict[str, Any]) -> str | None:
    """Return a description of forebay's object if it differs from PyTorch's, else None."""
    expected = line["is"]
    if (home := line.get("same as")) is not None:
        return None if found is counterpart(home) else f"not that of {home}"
    if expected == "module":
        return None if isinstance(found, ModuleType) else "not a module"
    if expected == "value":
        return repr(found) if "value" in line and (type(found), found) != (type(line["value"]), line["value"]) else None
    if expected in {"class", "context class", "exception", "tensor type"}:
        if not isinstance(found, type):
            return "not a class"
        if expected == "context class" and not hasattr(found, "__enter__"):
            return "not a context manager"
        if expected == "exception":
            ours = {base.__name__ for base in found.__mro__}
            return next((f"not a {base}" for base in line.get("bases", ()) if base not in ours), None)
        for base in line.get("bases", ()):
            if not base.startswith(BASES) and not issubclass(found, counterpart(base)):
                return f"not a {base}"
    elif isinstance(found, type) or not callable(found):
        return "not a function"
    signature = line.get("signature")
    if signature is None or (here := forebay_signature(found)) == with_forebay_defaults(signature):
        return None
    return here


def attributes(cls: type) -> set[str]:
    """Return the attributes of instances only: annotated in the class or assigned by a method."""
    declared = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
    methods = [found for base in cls.__mro__ for found in vars(base).values() if inspect.isfunction(found)]
    instructions = [each for method in methods for each in dis.get_instructions(method)]
    return declared | {each.argval for each in instructions if each.opname == "STORE_ATTR"}


def member_difference(cls: type, name: str, line: dict[str, Any]) -> str | None:
    found = inspect.getattr_static(cls, name, None)
    if found is None and line.get("type") != "NoneType":
        return None if name in attributes(cls) and line["is"] in {"property", "value"} else "missing"
    kind = {staticmethod: "static method", classmethod: "class method"}.get(type(found), "")
    expected = line["is"]
    if expected in {"property", "class property", "value"}:
        if inspect.isfunction(found):
            return "a method"
        return repr(found) if "value" in line and found != line["value"] else None
    if not callable(getattr(cls, name)):
        return "not a method"
    if (kind or "method") != expected:
        return kind or "a method"
    signature = line.get("signature")
    if name.startswith("__") or signature is None:
        return None  # special methods are called by Python, by position
    here = forebay_signature(found.__func__ if kind else found, bound=expected != "static method")
    return None if here == with_forebay_defaults(signature) else here


def entries_of(torch_module: str) -> dict[str, Any]:
    """Return the entries of a module; names imported from a module that is absent here count as its own."""
    lines: dict[str, Any] = {}
    for name, line in TORCH[torch_module]["names"].items():
        home, _, original = line.get("same as", "").rpartition(".")
        if home not in DIFFERENCES["modules"]:
            lines[name] = line
            continue
        names = TORCH[home]["names"]
        lines |= {key: names[key] for key in names if key == original or key.startswith(f"{original}.")}
    return lines


def differences(module: Any, lines: dict[str, Any]) -> dict[str, str]:
    """Return the differences by name: "missing", or a description of forebay's object."""
    found: dict[str, str] = {}
    for name, line in lines.items():
        owner, _, member = name.rpartition(".")
        if not owner:
            here = difference(getattr(module, name), line) if hasattr(module, name) else "missing"
        else:
            cls = getattr(module, owner, None)
            here = member_difference(cls, member, line) if isinstance(cls, type) else None  # reported for the class
        if here is not None:
            found[name] = here
    return found


def listed_differences(torch_module: str) -> dict[str, str]:
    return {name: entry["here"] for name, entry in DIFFERENCES.get(torch_module, {}).items()}


def all_differences(torch_module: str) -> dict[str, str]:
    try:
        module = counterpart(torch_module)
    except (ImportError, AttributeError) as error:
        return {"the module": str(error)}
    found = differences(module, entries_of(torch_module))
    public = {name for name in TORCH[torch_module]["__all__"] or () if hasattr(module, name)}
    if unlisted := public - {*getattr(module, "__all__", ())}:
        found["__all__"] = f"lacks {', '.join(sorted(unlisted))}"
    return found


@pytest.mark.parametrize("torch_module", [name for name in TORCH if name not in DIFFERENCES["modules"]])
def test_every_name_exists_or_is_listed(torch_module):
    assert all_differences(torch_module) == listed_differences(torch_module)


@pytest.mark.parametrize("torch_module", DIFFERENCES["modules"])
def test_module_listed_as_absent_is_absent(torch_module):
    assert torch_module in TORCH
    assert torch_module not in DIFFERENCES
    with pytest.raises(ImportError):
        counterpart(torch_module)


def test_every_difference_has_a_reason():
    for module, entries in DIFFERENCES.items():
        reasons = entries.values() if module == "modules" else [entry["why"] for entry in entries.values()]
        assert all(len(why.split()) > 3 for why in reasons), module
        assert module == "modules" or {*entries} <= {*TORCH[module]["names"], "__all__"}, module


SCENE = """
import contextlib
from forebay import float16
LIMIT = 3
def move(tensor, device=None, *, dtype=float16): ...
@contextlib.contextmanager
def moving(): yield
class Error(RuntimeError): ...
class Base: ...
class Scene(Base):
    size: int
    ready = True
    def __init__(self, name='a'): self.depth = 2
    def __enter__(self): ...
    def __eq__(self, whatever): ...
    @staticmethod
    def make(x=1): ...
    @classmethod
    def find(cls, *names): ...
    def play(self, speed=1.0, **rest): ...
    @property
    def name(self): ...
"""
EXPECTED: dict[str, Any] = {
    "LIMIT": {"is": "value", "type": "int", "value": 3},
    "move": {"is": "function", "signature": "(tensor, device=None, *, dtype=torch.float16)"},
    "moving": {"is": "context function", "signature": "()"},
    "Error": {"is": "exception", "bases": ["RuntimeError"]},
    "Scene": {"is": "context class", "signature": "(name='a')"},
    "Scene.size": {"is": "property"},
    "Scene.depth": {"is": "property"},
    "Scene.ready": {"is": "value", "type": "bool", "value": True},
    "Scene.__eq__": {"is": "method", "signature": "(o)"},
    "Scene.make": {"is": "static method", "signature": "(x=1)"},
    "Scene.find": {"is": "class method", "signature": "(*names)"},
    "Scene.play": {"is": "method", "signature": "(speed=1.0, **rest)"},
    "Scene.name": {"is": "property"},
}


def differences_after(old: str = "", new: str = "") -> dict[str, str]:
    assert old in SCENE
    module = ModuleType("planted")
    exec(SCENE.replace(old, new, 1), module.__dict__)
    return differences(module, EXPECTED)


def test_matching_source_has_no_difference():
    assert differences_after() == {}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("LIMIT = 3", "LIMIT = 4", {"LIMIT": "4"}),
        ("LIMIT = 3", "LIMIT = 3.0", {"LIMIT": "3.0"}),
        ("def move(", "def moved(", {"move": "missing"}),
        ("device=None", "device=0", {"move": "(tensor, device=0, *, dtype=forebay.float16)"}),
        ("*, dtype=float16", "*, dtype=None", {"move": "(tensor, device=None, *, dtype=None)"}),
        ("*, dtype", "dtype", {"move": "(tensor, device=None, dtype=forebay.float16)"}),
        ("class Error(RuntimeError)", "class Error(ValueError)", {"Error": "not a RuntimeError"}),
        ("class Scene(Base)", "def Scene(): ...\nclass Other(Base)", {"Scene": "not a class"}),
        ("def __enter__", "def enter", {"Scene": "not a context manager"}),
        ("name='a'", "name='b'", {"Scene": "(name='b')"}),
        ("size: int", "other: int", {"Scene.size": "missing"}),
        ("self.depth = 2", "self.height = 2", {"Scene.depth": "missing"}),
        ("ready = True", "ready = False", {"Scene.ready": "False"}),
        ("def play", "def plays", {"Scene.play": "missing"}),
        ("speed=1.0", "speed=2.0", {"Scene.play": "(speed=2.0, **rest)"}),
        ("@staticmethod\n", "\n", {"Scene.make": "a method"}),
        ("cls, *names", "cls, names", {"Scene.find": "(names)"}),
        ("@property\n", "\n", {"Scene.name": "a method"}),
    ],
)
def test_changed_source_is_reported(old, new, found):
    assert differences_after(old, new) == found


def test_reexport_must_be_the_same_object():
    """`Stream` of forebay.cuda must be that of forebay.cuda.streams, not a copy."""
    tunable = importlib.import_module("forebay.cuda.tunable")
    line = {"is": "function", "same as": "torch.cuda.tunable.enable"}
    copied = {"enable": "not that of torch.cuda.tunable.enable"}
    for found, here in ((tunable.enable, {}), (lambda val=True: None, copied)):
        module = ModuleType("planted")
        module.__dict__["enable"] = found
        assert differences(module, {"enable": line}) == here


def test_obsolete_difference_is_reported(monkeypatch):
    monkeypatch.setitem(DIFFERENCES, "torch.cuda.tunable", {"enable": {"here": "missing", "why": "it exists"}})
    with pytest.raises(AssertionError):
        test_every_name_exists_or_is_listed("torch.cuda.tunable")


def test_missing_module_is_reported(monkeypatch):
    monkeypatch.setitem(TORCH, "torch.nowhere", {"__all__": [], "names": {}})
    assert all_differences("torch.nowhere") == {"the module": "No module named 'forebay.nowhere'"}
