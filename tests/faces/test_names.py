"""Every name of PyTorch 2.15's runtime modules is here, with its signature; what differs is listed, with a reason.

The names are tests/data/torch_names.json (make_torch_names.py wrote it), the differences
torch_names_differences.toml beside it: `here` is what this test finds, so one that has changed is found as well.
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
BASES = "torch.storage"  # is in the data for the members that the twelve storages of torch.cuda share


def twin(torch_name: str) -> Any:
    """Our object, or module, for a full name of PyTorch's; AttributeError or ImportError where there is none."""
    if torch_name == BASES:
        storage = importlib.import_module("forebay.cuda").FloatStorage
        return SimpleNamespace(TypedStorage=storage, _LegacyStorage=storage)
    ours = re.sub(r"^torch\b", "forebay", torch_name)
    if torch_name in TORCH or "." not in torch_name:
        return importlib.import_module(ours)
    module, _, name = torch_name.rpartition(".")
    return getattr(twin(module), name)


def signature_here(found: Any, *, bound: bool = False) -> str:
    try:
        return SIGNATURES["signature_text"](inspect.signature(found), bound=bound)
    except (ValueError, TypeError):
        return "no signature"


def in_our_words(signature: str) -> str:
    """A signature of PyTorch's with our objects as its defaults."""
    return re.sub(r"(?<==)torch(?:\.\w+)+", lambda found: SIGNATURES["default_text"](twin(found[0])), signature)


def difference(found: Any, line: dict[str, Any]) -> str | None:
    """What a name is here, if that is not what it is in PyTorch."""
    what = line["is"]
    if (home := line.get("same as")) is not None:
        return None if found is twin(home) else f"not the one of {home}"
    if what == "module":
        return None if isinstance(found, ModuleType) else "no module"
    if what == "value":
        return repr(found) if "value" in line and (type(found), found) != (type(line["value"]), line["value"]) else None
    if what in {"class", "context class", "exception", "tensor type"}:
        if not isinstance(found, type):
            return "no class"
        if what == "context class" and not hasattr(found, "__enter__"):
            return "no context manager"
        if what == "exception":
            ours = {base.__name__ for base in found.__mro__}
            return next((f"no {base}" for base in line.get("bases", ()) if base not in ours), None)
        for base in line.get("bases", ()):
            if not base.startswith(BASES) and not issubclass(found, twin(base)):
                return f"no {base}"
    elif isinstance(found, type) or not callable(found):
        return "no function"
    wanted = line.get("signature")
    if wanted is None or (here := signature_here(found)) == in_our_words(wanted):
        return None
    return here


def attributes(cls: type) -> set[str]:
    """What an instance has that the class has not: annotated, or assigned by a method."""
    declared = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
    methods = [found for base in cls.__mro__ for found in vars(base).values() if inspect.isfunction(found)]
    steps = [step for method in methods for step in dis.get_instructions(method)]
    return declared | {step.argval for step in steps if step.opname == "STORE_ATTR"}


def member_difference(cls: type, name: str, line: dict[str, Any]) -> str | None:
    found = inspect.getattr_static(cls, name, None)
    if found is None and line.get("type") != "NoneType":
        return None if name in attributes(cls) and line["is"] in {"property", "value"} else "missing"
    kind = {staticmethod: "static method", classmethod: "class method"}.get(type(found), "")
    what = line["is"]
    if what in {"property", "class property", "value"}:
        if inspect.isfunction(found):
            return "a method"
        return repr(found) if "value" in line and found != line["value"] else None
    if not callable(getattr(cls, name)):
        return "no method"
    if (kind or "method") != what:
        return kind or "a method"
    wanted = line.get("signature")
    if name.startswith("__") or wanted is None:
        return None  # Python calls these, with what it has
    here = signature_here(found.__func__ if kind else found, bound=what != "static method")
    return None if here == in_our_words(wanted) else here


def lines_of(torch_module: str) -> dict[str, Any]:
    """The names of a module; what it takes from a module that we have not, as if it were written here."""
    lines: dict[str, Any] = {}
    for name, line in TORCH[torch_module]["names"].items():
        home, _, there = line.get("same as", "").rpartition(".")
        if home not in DIFFERENCES["modules"]:
            lines[name] = line
            continue
        theirs = TORCH[home]["names"]
        lines |= {key: theirs[key] for key in theirs if key == there or key.startswith(f"{there}.")}
    return lines


def differences(module: Any, lines: dict[str, Any]) -> dict[str, str]:
    """By name: "missing", or what it is here."""
    found: dict[str, str] = {}
    for name, line in lines.items():
        owner, _, member = name.rpartition(".")
        if not owner:
            there = hasattr(module, name)
            here = difference(getattr(module, name), line) if there else "missing"
        else:
            cls = getattr(module, owner, None)
            here = member_difference(cls, member, line) if isinstance(cls, type) else None  # said of the class
        if here is not None:
            found[name] = here
    return found


def listed_differences(torch_module: str) -> dict[str, str]:
    return {name: entry["here"] for name, entry in DIFFERENCES.get(torch_module, {}).items()}


def all_differences(torch_module: str) -> dict[str, str]:
    try:
        module = twin(torch_module)
    except (ImportError, AttributeError) as error:
        return {"the module": str(error)}
    found = differences(module, lines_of(torch_module))
    public = {name for name in TORCH[torch_module]["__all__"] or () if hasattr(module, name)}
    if unlisted := public - {*getattr(module, "__all__", ())}:
        found["__all__"] = f"lacks {', '.join(sorted(unlisted))}"
    return found


@pytest.mark.parametrize("torch_module", [name for name in TORCH if name not in DIFFERENCES["modules"]])
def test_every_name_is_there(torch_module):
    assert all_differences(torch_module) == listed_differences(torch_module)


@pytest.mark.parametrize("torch_module", DIFFERENCES["modules"])
def test_a_module_that_is_listed_as_absent_is_absent(torch_module):
    assert torch_module in TORCH
    assert torch_module not in DIFFERENCES
    with pytest.raises(ImportError):
        twin(torch_module)


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
WANTED: dict[str, Any] = {
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


def planted(old: str = "", new: str = "") -> dict[str, str]:
    assert old in SCENE
    module = ModuleType("planted")
    exec(SCENE.replace(old, new, 1), module.__dict__)
    return differences(module, WANTED)


def test_a_scene_that_is_as_wanted_has_no_difference():
    assert planted() == {}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("LIMIT = 3", "LIMIT = 4", {"LIMIT": "4"}),
        ("LIMIT = 3", "LIMIT = 3.0", {"LIMIT": "3.0"}),
        ("def move(", "def moved(", {"move": "missing"}),
        ("device=None", "device=0", {"move": "(tensor, device=0, *, dtype=dtype('float16'))"}),
        ("*, dtype=float16", "*, dtype=None", {"move": "(tensor, device=None, *, dtype=None)"}),
        ("*, dtype", "dtype", {"move": "(tensor, device=None, dtype=dtype('float16'))"}),
        ("class Error(RuntimeError)", "class Error(ValueError)", {"Error": "no RuntimeError"}),
        ("class Scene(Base)", "def Scene(): ...\nclass Other(Base)", {"Scene": "no class"}),
        ("def __enter__", "def enter", {"Scene": "no context manager"}),
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
def test_a_planted_difference_is_found(old, new, found):
    assert planted(old, new) == found


def test_a_base_and_an_identity_are_held():
    """`Stream` of forebay.cuda must be that of forebay.cuda.streams, not its double."""
    tunable = importlib.import_module("forebay.cuda.tunable")
    line = {"is": "function", "same as": "torch.cuda.tunable.enable"}
    double = {"enable": "not the one of torch.cuda.tunable.enable"}
    for found, here in ((tunable.enable, {}), (lambda val=True: None, double)):
        module = ModuleType("planted")
        module.__dict__["enable"] = found
        assert differences(module, {"enable": line}) == here


def test_a_difference_that_is_none_any_more_is_found(monkeypatch):
    monkeypatch.setitem(DIFFERENCES, "torch.cuda.tunable", {"enable": {"here": "missing", "why": "it is not"}})
    with pytest.raises(AssertionError):
        test_every_name_is_there("torch.cuda.tunable")


def test_a_module_that_is_missing_is_found(monkeypatch):
    monkeypatch.setitem(TORCH, "torch.nowhere", {"__all__": [], "names": {}})
    assert all_differences("torch.nowhere") == {"the module": "No module named 'forebay.nowhere'"}
