"""Scaled dot product attention: the CPU's values and gradients, the choice of the implementation, and errors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402 -- needs torch
from torch.nn.functional import scaled_dot_product_attention as attention  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


@pytest.fixture
def emulated():
    with forebay.emulate("cuda", profile="h100"), patch():
        yield


def both(dtype, *, mask=None, size=16, heads=(4, 4), **options):
    """Return results and gradients on the CPU and on the device."""
    torch.manual_seed(1)
    parts = [torch.randn(2, count, 10, size, dtype=dtype) for count in (heads[0], heads[1], heads[1])]
    outer = torch.randn(2, heads[0], 10, size, dtype=dtype)
    found = []
    for device in ("cpu", "cuda"):
        leaves = [part.detach().clone().to(device).requires_grad_() for part in parts]
        masked = None if mask is None else mask.to(device)
        result = attention(*leaves, attn_mask=masked, **options)
        result.backward(outer.to(device))
        found.append([result.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)])
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", FUSED)
def test_values_and_gradients_are_those_of_the_cpu(emulated, dtype, causal, backend):
    with sdpa_kernel([backend, SDPBackend.MATH]):
        on_cpu, on_device = both(dtype, is_causal=causal)
    close = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for expected, found in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize(
    "mask", [torch.ones(10, 10).tril() > 0, torch.linspace(-1, 1, 100).view(10, 10)], ids=["bool", "float"]
)
def test_masks_give_the_values_of_the_cpu(emulated, mask):
    on_cpu, on_device = both(torch.float32, mask=mask)
    for expected, found in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(found, expected)


def test_gradient_of_a_mask_is_that_of_the_cpu(emulated):
    queries = torch.randn(2, 4, 8, 16)
    found = []
    for device in ("cpu", "cuda"):
        given = queries.to(device)
        mask = torch.zeros(8, 8, device=device, requires_grad=True)
        (attention(given, given, given, attn_mask=mask) * given).sum().backward()
        found.append(mask.grad.cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_grouped_queries_give_the_values_of_the_cpu(emulated):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        on_cpu, on_device = both(torch.bfloat16, heads=(4, 2), enable_gqa=True)
    for expected, found in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


def test_dropout_drops_the_same_weights_in_both_passes(emulated):
    queries = torch.randn(2, 4, 32, 16, device="cuda")
    values = torch.eye(32, device="cuda")[None, None].repeat(2, 4, 1, 1)[..., :16].contiguous().requires_grad_()
    result = attention(queries, queries, values, dropout_p=0.5)
    result.sum().backward()
    torch.testing.assert_close((values.grad * values.detach()).sum().cpu(), result.sum().cpu(), rtol=1e-4, atol=1e-4)
    assert 0.2 < float((result == 0).float().mean()) < 0.9


@pytest.mark.parametrize(
    ("profile", "dtype", "size", "chosen"),
    [
        ("h100", torch.bfloat16, 64, SDPBackend.CUDNN_ATTENTION),
        ("h100", torch.bfloat16, 60, SDPBackend.FLASH_ATTENTION),
        ("a100", torch.bfloat16, 64, SDPBackend.FLASH_ATTENTION),
        ("a100", torch.float32, 64, SDPBackend.EFFICIENT_ATTENTION),
        ("t4", torch.float16, 64, SDPBackend.EFFICIENT_ATTENTION),
        ("t4", torch.bfloat16, 64, SDPBackend.MATH),
        ("a100", torch.float64, 64, SDPBackend.MATH),
        ("a100", torch.float32, 30, SDPBackend.MATH),
    ],
)
def test_implementation_depends_on_the_card(profile, dtype, size, chosen):
    with forebay.emulate("cuda", profile=profile), patch("shapes"):
        given = torch.empty(1, 2, 8, size, dtype=dtype, device="cuda")
        assert torch._fused_sdp_choice(given, given, given) == chosen.value


def test_shapes_are_computed_without_values():
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        given = torch.empty(1, 2, 8, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        result = attention(given, given, given, is_causal=True)
        result.sum().backward()
        assert result.shape == given.grad.shape == (1, 2, 8, 64)


@pytest.mark.filterwarnings("ignore::UserWarning")  # the reasons: test_attention_reasons.py
def test_unusable_choice_is_refused(emulated):
    given = torch.ones(1, 2, 8, 64, device="cuda")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        attention(given, given, given)


def test_two_types_are_refused(emulated):
    given = torch.ones(1, 2, 8, 64, device="cuda")
    with pytest.raises(RuntimeError, match="same dtype"):
        attention(given, given, given.half())


def test_questions_are_answered_for_the_emulated_device(emulated):
    cuda = torch.backends.cuda
    halves, floats = ([torch.ones(1, 2, 8, 16, device="cuda", dtype=kind)] * 3 for kind in (torch.half, torch.float))
    answers = [
        [ask(cuda.SDPAParams(*tensors, None, 0.0, False, False)) for tensors in (halves, floats)]
        for ask in (cuda.can_use_flash_attention, cuda.can_use_efficient_attention, cuda.can_use_cudnn_attention)
    ]
    assert answers == [[True, False], [True, True], [True, False]]
    with sdpa_kernel(SDPBackend.MATH):
        assert not cuda.can_use_flash_attention(cuda.SDPAParams(*halves, None, 0.0, False, False))
    assert cuda.is_flash_attention_available()
