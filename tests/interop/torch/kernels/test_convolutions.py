"""Convolutions: values of the CPU, layouts of cuDNN, in both modes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import forebay  # noqa: E402 -- needs torch
from forebay.interop.torch import patch  # noqa: E402 -- as above

LAST = torch.channels_last
CASES = {  # class, shape of the input, options
    "1d": (torch.nn.Conv1d, (2, 4, 9), {}),
    "2d": (torch.nn.Conv2d, (2, 4, 9, 8), {"padding": 1}),
    "depthwise": (torch.nn.Conv2d, (2, 4, 9, 8), {"groups": 4, "bias": False}),
    "3d": (torch.nn.Conv3d, (2, 4, 5, 6, 7), {"stride": 2}),
    "transposed": (torch.nn.ConvTranspose2d, (2, 4, 5, 6), {"stride": 2, "output_padding": 1}),
    "dilated": (torch.nn.Conv2d, (2, 4, 9, 8), {"dilation": 2}),
}


def step(name, device):
    kind, shape, options = CASES[name]
    torch.manual_seed(0)
    layer, given = kind(4, 8, 3, **options), torch.randn(shape)
    layer, given = layer.to(device), given.to(device).requires_grad_()
    result = layer(given)
    result.square().sum().backward()
    return [result.detach(), given.grad, *(each.grad for each in layer.parameters())]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_cpu(emulated, name):
    for ours, theirs in zip(step(name, "cuda"), step(name, "cpu"), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["compute", "shapes"])
@pytest.mark.parametrize(
    ("of_input", "of_weight", "dtype", "last"),
    [
        (None, None, torch.float32, False),
        (LAST, None, torch.float32, True),
        (None, LAST, torch.bfloat16, True),
        (LAST, LAST, torch.float64, False),
    ],
)
def test_channels_are_last_if_they_are_in_the_input_or_the_weight(mode, of_input, of_weight, dtype, last):
    with forebay.emulate("cuda", profile="h100"), patch(mode):
        given, weight = (
            torch.randn(2, 4, 6, 6, device="cuda", dtype=dtype),
            torch.randn(8, 4, 3, 3, device="cuda", dtype=dtype),
        )
        given = given.to(memory_format=of_input or torch.contiguous_format).requires_grad_()
        weight = weight.to(memory_format=of_weight or torch.contiguous_format).requires_grad_()
        result = torch.conv2d(given, weight)
        gradients = torch.autograd.grad(result.sum(), (given, weight))
        assert [each.is_contiguous(memory_format=LAST) for each in (result, *gradients)] == [last] * 3


def test_inputs_in_another_layout_are_copied(emulated):
    given, weight = (
        torch.randn(2, 64, 32, 32, device="cuda").to(memory_format=LAST),
        torch.randn(64, 64, 3, 3, device="cuda"),
    )
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = torch.conv2d(given, weight, padding=1)
    copied = torch.cuda.max_memory_allocated() - before - result.nbytes
    assert copied == weight.nbytes


def test_errors_are_pytorchs(emulated):
    given, weight = torch.ones(1, 1, 3, 3, device="cuda"), torch.ones(1, 1, 2, 2, device="cuda")
    text = r"Input type \(torch\.cuda\.{}\) and {} type \(torch\.{}\) should be the same"
    for arguments, kinds in (
        ((given, weight.cpu()), ("FloatTensor", "weight", "FloatTensor")),
        ((given.half(), weight), ("HalfTensor", "weight", "cuda.FloatTensor")),
        ((given, weight, torch.ones(1)), ("FloatTensor", "bias", "FloatTensor")),
    ):
        with pytest.raises(RuntimeError, match=text.format(*kinds)):
            torch.conv2d(*arguments)
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu"):
        torch.conv2d(given.cpu(), weight)
