"""Factories of tensors, which are replaced for their argument pin_memory: PyTorch still knows them."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above


def scripted(x):
    y = torch.zeros(3, device=x.device) + torch.full((3,), 2.0, device=x.device)
    return x + y.sum()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_torchscript_compiles_factories_during_and_after_the_emulation():
    with forebay.emulate("cuda"), patch():
        made = torch.jit.script(scripted)(torch.ones(2, device="cuda"))
        assert (made.device.type, made.tolist()) == ("cuda", [7, 7])
    assert torch.jit.script(scripted)(torch.ones(2)).tolist() == [7, 7]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_forward_derivatives_are_computed(emulated):  # PyTorch compiles them as TorchScript
    x = torch.tensor([1.0, 3.0], device="cuda")
    made, derivative = torch.func.jvp(lambda y: y * y, (x,), (torch.ones_like(x),))
    assert (made.tolist(), derivative.tolist()) == ([1, 9], [2, 6])


def test_factories_are_pickled_by_name(emulated):
    assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros


def test_memory_of_a_device_is_not_pinned(emulated):
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="cuda", pin_memory=True)
