"""PyTorch's module for symbolic sizes under `forebay fit`: executed by programs that need it, and by no others."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from itertools import product
from pathlib import Path
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from torch.fx.experimental import symbolic_shapes  # noqa: E402 -- after the test for PyTorch

from forebay.interop.torch import deferred_symbols, on_import  # noqa: E402 -- as above
from forebay.interop.torch.import_hook import ImportHook  # noqa: E402 -- as above

PLAIN = (True, False, 0, 1, 3, -1, 0.5, [], [1], (1,), [1, 2], (2, 1), [True], [0.5], [[1]], None, "a")
NAMES = (
    "guard_or_false", "guard_or_true", "statically_known_true", "statically_known_false", "expect_true", "guard_bool",
    "guard_int", "has_guarding_hint", "guarding_hint_or_throw", "is_nested_int", "sym_eq", "sym_and", "sym_or",
)  # fmt: skip
PROGRAM = """
    import sys, torch
    def light():
        return "sympy" not in sys.modules
    layers = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Dropout()
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        ids = torch.arange(4, device="cuda")
        x = torch.nn.functional.embedding(ids, torch.ones(4, 8, device="cuda"))
        torch.nn.functional.cross_entropy(model(x), ids).backward()
        optimizer.step()
    print(light())
    from torch.fx.experimental import symbolic_shapes
    from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_eq
    print(guard_or_false(False), sym_eq([1], (1,)), hasattr(symbolic_shapes, "__path__"), light())
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    import types
    print(light(), guard_or_false is symbolic_shapes.guard_or_false, guard_or_false(True), type(symbolic_shapes))
    from torch.fx.experimental.proxy_tensor import make_fx
    made = make_fx(lambda x: x.view(-1) * x.shape[0], tracing_mode="symbolic")(torch.ones(3, 4))
    print("sym_size" in made.code)
"""


def answer(call, arguments):
    try:
        found = call(*arguments)
    except Exception as error:  # noqa: BLE001 -- whatever PyTorch raises
        return type(error), str(error)
    return type(found), found


@pytest.fixture
def late():
    """The module before it is executed, beside the one that PyTorch uses."""
    loader = SourceFileLoader(symbolic_shapes.__name__, symbolic_shapes.__file__)
    found = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))

    class Fails(SourceFileLoader):
        def exec_module(self, module):
            raise LookupError

    deferred_symbols.LateLoader(Fails(loader.name, loader.path), lambda _: None).exec_module(found)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_plain_values_have_the_answers_of_pytorch(late, name):
    """Compare each answer with that of PyTorch; what has none executes the module, which fails here."""
    answered = 0
    for arguments in [*((each,) for each in PLAIN), *product(PLAIN, repeat=2)]:
        found = answer(getattr(late, name), arguments)
        if found[0] is not LookupError:
            answered += found[0] is not TypeError
            assert found == answer(getattr(symbolic_shapes, name), arguments)
    assert answered


def test_failed_import_is_tried_again(late):
    for _ in range(2):
        with pytest.raises(LookupError):
            late.ShapeEnv  # noqa: B018 -- executes the module
    assert late.guard_or_false(True)


def test_hook_of_the_module_is_removed():
    on_import.install(lambda: None)
    on_import.uninstall()
    assert not any(isinstance(each, ImportHook) for each in sys.meta_path)


def test_training_does_not_import_sympy():
    environment = os.environ | {"FOREBAY_EMULATE": "cuda:1@h100", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(on_import.__file__).parents[3]), *filter(None, sys.path)])
    on_import.set_environment("shapes", environment)
    command = [sys.executable, "-c", dedent(PROGRAM)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "True", "False True False True", "False False True <class 'module'>", "True",
    ]  # fmt: skip
