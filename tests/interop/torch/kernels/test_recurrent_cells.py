"""Recurrent networks: values and gradients of the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import forebay  # noqa: E402 -- needs torch
from forebay.interop.torch import patch  # noqa: E402 -- as above

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}], ids=str)
def test_values_and_gradients_are_those_of_the_cpu(kind, options):
    torch.manual_seed(1)
    layer = getattr(torch.nn, kind)(5, 7, **options)
    given = torch.randn(4, 3, 5)
    found = []
    with forebay.emulate("cuda", profile="h100"), patch():
        for device in ("cpu", "cuda"):
            moved = getattr(torch.nn, kind)(5, 7, **options)
            moved.load_state_dict(layer.state_dict())
            moved.to(device)
            leaf = given.clone().to(device).requires_grad_()
            result, states = moved(leaf)
            (result.sin().sum() + sum(each.cos().sum() for each in (states if kind == "LSTM" else [states]))).backward()
            gradients = [parameter.grad.cpu() for parameter in moved.parameters()]
            found.append([result.detach().cpu(), leaf.grad.cpu(), *gradients])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def test_loss_of_alignments_is_that_of_the_cpu():
    scores = torch.randn(5, 2, 4).log_softmax(2)
    arguments = torch.ones(2, 3, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([2, 2])
    expected = torch.nn.functional.ctc_loss(scores, *arguments)
    with forebay.emulate("cuda", profile="h100"), patch():
        found = torch.nn.functional.ctc_loss(scores.to("cuda"), arguments[0].to("cuda"), *arguments[1:]).cpu()
    torch.testing.assert_close(found, expected)
