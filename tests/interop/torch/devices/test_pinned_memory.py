"""Pinned memory of the host, and factories of tensors, which stay PyTorch's own function objects."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above

OWN = {name: each for name, each in vars(torch).items() if isinstance(each, type(torch.zeros))}  # functions of C++


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


class SeenFunctions(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def test_function_objects_stay_those_of_pytorch(emulated):
    replaced = {name for name, each in OWN.items() if getattr(torch, name) is not each}
    assert all(name.startswith("_cufft_") or name == "to_dlpack" for name in replaced), (
        replaced
    )  # no functions of tensors
    for device in ("cpu", "cuda"):
        x = torch.ones(2, device=device)
        with SeenFunctions() as mode:
            torch.zeros_like(x)
            torch.arange(2, device=device)
            torch.full((2,), 1.0, device=device, pin_memory=device == "cpu")
        assert mode.seen == [torch.zeros_like, torch.arange, torch.full]


def test_functions_are_overridden_by_subclasses(emulated):
    class Handled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function in (torch.zeros_like, torch.Tensor.pin_memory):
                return "handled"
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.ones(2).as_subclass(Handled)
    assert (torch.zeros_like(x), x.pin_memory()) == ("handled", "handled")


def test_all_ways_to_pin_memory_use_the_cache(emulated):
    before = torch.cuda.host_memory_stats().get("active_requests.current", 0)
    x = torch.ones(100, device="cuda")
    pinned = [
        torch.zeros(100, pin_memory=True), torch.ones(100).pin_memory(), torch.tensor([1.0] * 100, pin_memory=True),
        torch.ones(100).untyped_storage().pin_memory(), x.to("cpu", non_blocking=True),
        torch.empty_like(x, device="cpu", pin_memory=True), torch.ones(100)[:0].new_empty(3, pin_memory=True),
    ]  # fmt: skip
    assert all(each.is_pinned() for each in pinned)
    assert torch.cuda.host_memory_stats().get("active_requests.current", 0) == before + len(pinned)
    assert pinned[0][50:].is_pinned()
    assert pinned[4].tolist() == [1.0] * 100
    others = [torch.ones(100), x, x.cpu(), torch.empty(0, pin_memory=True)]
    assert [each.is_pinned() for each in others] == [False] * 4
    del pinned
    torch.cuda.synchronize()
    torch.ones(1).pin_memory()  # completes the free that waited for the copy
    assert torch.cuda.host_memory_stats().get("active_requests.current", 0) == before


def test_registered_memory_is_pinned(emulated):
    x = torch.ones(20)
    assert torch.cuda.cudart().cudaHostRegister(x.data_ptr(), 80, 0) == 0
    assert (x.is_pinned(), x[10:].is_pinned(), torch.ones(20).is_pinned()) == (True, True, False)
    torch.cuda.cudart().cudaHostUnregister(x.data_ptr())
    assert not x.is_pinned()


def test_pinned_memory_is_not_reused_while_a_copy_is_pending(emulated):
    source = torch.ones(1).pin_memory()
    address, target = source.data_ptr(), torch.zeros(1, device="cuda")
    torch.cuda._sleep(10**9)
    target.copy_(source, non_blocking=True)
    del source
    assert torch.ones(1).pin_memory().data_ptr() != address


def test_pinned_memory_outlives_the_emulation():
    with forebay.emulate("cuda"), patch():
        kept = torch.full((1000,), 2.0).pin_memory()
    assert kept.sum().item() == 2000
    assert not kept.is_pinned()
    del kept
    assert not torch.ones(1).is_pinned()
