"""Normalizations: values and gradients of the CPU, statistics in single precision."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import forebay  # noqa: E402 -- needs torch
from forebay.interop.torch import patch  # noqa: E402 -- as above

LAYERS = {
    "layer": lambda: torch.nn.LayerNorm(8),
    "rms": lambda: torch.nn.RMSNorm(8),
    "group": lambda: torch.nn.GroupNorm(2, 6),
    "batch": lambda: torch.nn.BatchNorm1d(6),
    "batch, evaluated": lambda: torch.nn.BatchNorm1d(6).eval(),
    "instance": lambda: torch.nn.InstanceNorm1d(6),
}


@pytest.fixture
def emulated():
    with forebay.emulate("cuda", profile="h100"), patch():
        yield


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_cpu(emulated, name, dtype):
    torch.manual_seed(1)
    given, outer = torch.randn(4, 6, 8, dtype=dtype), torch.randn(4, 6, 8, dtype=dtype)
    found = []
    for device in ("cpu", "cuda"):
        layer, leaf = LAYERS[name]().to(device, dtype), given.detach().clone().to(device).requires_grad_()
        result = layer(leaf)
        result.backward(outer.to(device))
        gradients = [parameter.grad.cpu() for parameter in layer.parameters()]
        found.append([result.detach().cpu(), leaf.grad.cpu(), *gradients])
    close = 1e-5 if dtype == torch.float32 else 3e-2
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=close, atol=close)


def test_statistics_of_halves_have_single_precision(emulated):
    given = torch.ones(4, 8, device="cuda", dtype=torch.bfloat16)
    assert [each.dtype for each in torch.native_layer_norm(given, (8,), None, None, 1e-5)] == [
        torch.bfloat16, torch.float32, torch.float32,
    ]  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", ["compute", "shapes"])
def test_forgotten_copies_to_the_device_are_refused(name, mode):
    with forebay.emulate("cuda", count=2, profile="h100"), patch(mode):
        if not [*LAYERS[name]().parameters()]:
            pytest.skip("the layer has no weights")
        for place in ("cpu", "cuda:1"):
            with pytest.raises(RuntimeError, match=f"two devices, cuda:0 and {place}"):
                LAYERS[name]().to(place)(torch.randn(4, 6, 8, device="cuda"))
