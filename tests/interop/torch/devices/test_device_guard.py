"""The device guard of PyTorch's C++ code, while an exception of Python passes through the backward pass."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.utils.checkpoint import checkpoint  # noqa: E402 -- as above


class Stop(Exception):
    """The error of a hook."""


def stop(*_):
    raise Stop


def of_a_tensor(x):
    y = x * 2
    y.register_hook(stop)
    return y


def of_a_leaf(x):
    x.register_post_accumulate_grad_hook(stop)
    return x * 2


def of_saved_tensors(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each, stop):
        return x * x


def of_a_recomputation(x):
    calls = []

    def step(given):
        calls.append(given)
        if len(calls) == 2:
            raise Stop
        return given.sin().exp()

    return checkpoint(step, x, use_reentrant=False)


@pytest.mark.parametrize("error", [of_a_tensor, of_a_leaf, of_saved_tensors, of_a_recomputation])
def test_an_error_in_the_backward_pass_is_the_programs(emulated, error):
    x = torch.ones(3, device="cuda:1", requires_grad=True)
    stream = torch.cuda.Stream(device=1)
    before = torch.cuda.current_device(), torch.cuda.current_stream(1)
    with torch.cuda.stream(stream):
        y = error(x).sum()
    with pytest.raises(Stop):
        y.backward()
    assert (torch.cuda.current_device(), torch.cuda.current_stream(1)) == before


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_full_device_in_a_recomputation_can_be_caught(emulated, reentrant):
    def step(given):
        for _ in range(6):
            given = given.sin()
        return given

    torch.cuda.set_per_process_memory_fraction(0.001)  # 81 MiB
    x = torch.ones(4 << 20, device="cuda", requires_grad=True)
    y = checkpoint(step, x, use_reentrant=reentrant).sum()
    with pytest.raises(torch.OutOfMemoryError):
        y.backward()
    assert x.grad is None
    torch.cuda.set_per_process_memory_fraction(1.0)
    checkpoint(step, x, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None


def test_hooks_run_on_the_device_of_the_gradient(emulated):
    x = torch.ones(3, device="cuda:1", requires_grad=True)
    seen = []
    y = x * 2
    y.register_hook(lambda _: seen.append(torch.cuda.current_device()))
    y.sum().backward()
    assert (seen, torch.cuda.current_device()) == ([1], 0)
