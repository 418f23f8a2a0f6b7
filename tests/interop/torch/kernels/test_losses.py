"""Losses and activations: values and gradients of the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import forebay  # noqa: E402 -- needs torch
from forebay.interop.torch import patch  # noqa: E402 -- as above

FUNCTIONS = {
    "mse_loss": {}, "smooth_l1_loss": {"reduction": "sum"}, "huber_loss": {}, "binary_cross_entropy": {},
    "binary_cross_entropy_with_logits": {}, "l1_loss": {"reduction": "none"},
}  # fmt: skip


def gradients(function, given, device):
    leaf = given.clone().to(device).requires_grad_()
    result = function(leaf)
    result.sum().backward()
    return [result.detach().cpu(), leaf.grad.cpu()]


def assert_equal_on_device(function, given):
    expected = gradients(function, given, "cpu")
    with forebay.emulate("cuda", profile="h100"), patch():
        found = gradients(function, given, "cuda")
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_losses_are_those_of_the_cpu(name):
    loss = getattr(torch.nn.functional, name)
    assert_equal_on_device(
        lambda given: loss(given, (given.detach() > 0.5).float(), **FUNCTIONS[name]), torch.rand(4, 5)
    )


@pytest.mark.parametrize("name", ["logsigmoid", "softmax", "log_softmax"])
def test_activations_are_those_of_the_cpu(name):
    options = {} if name == "logsigmoid" else {"dim": -1}
    assert_equal_on_device(
        lambda given: getattr(torch.nn.functional, name)(given, **options).square(), torch.randn(4, 5)
    )


def test_gradient_of_an_embedding_is_that_of_the_cpu():
    tokens = torch.tensor([[1, 2, 1], [0, 1, 3]])
    assert_equal_on_device(
        lambda weights: torch.nn.functional.embedding(tokens.to(weights.device), weights).square(), torch.rand(4, 5)
    )


def test_sorted_addition_is_that_of_the_cpu():
    index = torch.tensor([1, 1, 0])
    assert_equal_on_device(lambda given: given[index.to(given.device)].square() + given[[2, 2, 1]], torch.rand(4, 5))


@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_is_that_of_the_cpu(emulated, keepdim):
    x = torch.tensor([[1.0, 2.0, float("inf")], [-float("inf")] * 3, [0.0, -float("inf"), 3.0]])
    for dim in (0, 1, (0, 1)):
        expected = torch.logsumexp(x, dim, keepdim)
        torch.testing.assert_close(torch.logsumexp(x.cuda(), dim, keepdim).cpu(), expected)
        out = torch.logsumexp(x.cuda(), dim, keepdim, out=torch.empty(0, device="cuda"))
        torch.testing.assert_close(out.cpu(), expected)


@pytest.mark.parametrize("mode", ["compute", "shapes"])
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "binary_cross_entropy"])
def test_reduced_loss_keeps_the_memory_of_all_losses(name, mode):
    with forebay.emulate("cuda", profile="h100"), patch(mode):
        given = torch.ones(300, 5, device="cuda", dtype=torch.float16)
        before = torch.cuda.memory_allocated()
        loss = getattr(torch.nn.functional, name)(given, given)
        assert loss.shape == ()
        assert torch.cuda.memory_allocated() - before == 3072  # 1,500 elements of 2 bytes
        assert loss.dtype == torch.float16
