"""PyTorch's compiler under `forebay fit`: imported by programs that use it, and by no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay.interop.torch import on_import

TRAIN = """
    import sys
    import torch

    def train(**options):
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8, device="cuda")).sum()
            loss.backward()
            return loss
        return model, optimizer, closure
"""


def run(source, mode="compute"):
    environment = os.environ | {"FOREBAY_EMULATE": "cuda:1@h100", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(on_import.__file__).parents[3]), *filter(None, sys.path)])
    on_import.set_environment(mode, environment)
    done = subprocess.run(
        [sys.executable, "-c", dedent(TRAIN) + dedent(source)], env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("mode", ["compute", "shapes"])
def test_optimizer_does_not_import_the_compiler(mode):
    source = """
        model, optimizer, closure = train()
        optimizer.step(closure)
        optimizer.zero_grad()
        print("torch._dynamo" in sys.modules, torch.is_grad_enabled(), len(optimizer.state))
        try:
            optimizer.step(lambda: 1 / 0)
        except ZeroDivisionError:
            print(torch.is_grad_enabled())
    """
    assert run(source, mode) == ["False", "True", "2", "True"]


def test_optimizer_is_used_before_and_after_the_import_of_the_compiler():
    source = """
        model, optimizer, closure = train()
        optimizer.step(closure)
        before = model.weight.detach().cpu().clone()
        import torch._dynamo
        optimizer.step(closure)
        optimizer.add_param_group({"params": torch.ones(1, device="cuda", requires_grad=True)})
        print(bool((before != model.weight.detach().cpu()).all()), len(optimizer.param_groups))
    """
    assert run(source) == ["True", "2"]


def test_differentiable_step_records_gradients():
    source = """
        model, optimizer, closure = train(differentiable=True, foreach=False)
        weights = [each.clone() for each in model.parameters()]
        for each in weights:
            each.grad = torch.ones_like(each)
        optimizer.param_groups[0]["params"] = weights
        optimizer.step()
        print(weights[0].grad_fn is not None, "torch._dynamo" in sys.modules)
    """
    assert run(source) == ["True", "False"]


def test_compiled_function_with_an_optimizer_runs():
    source = """
        model, optimizer, closure = train()
        optimizer.step(closure)
        @torch.compile
        def compiled(x):
            return torch.nn.functional.gelu(x * 2)
        print(tuple(compiled(torch.ones(4, 4, device="cuda")).shape), sep="")
        torch.compile(lambda: optimizer.step())()
        optimizer.step(closure)
        print("end")
    """
    assert run(source) == ["(4,", "4)", "end"]
