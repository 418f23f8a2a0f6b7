"""Answers to questions about PyTorch's CUDA libraries while devices are emulated."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


def test_build_is_described_with_cuda(emulated):
    text = torch.__config__.show()
    assert text.startswith("PyTorch built with:")
    assert text.count("  - CUDA Runtime ") == text.count("  - Build settings:") == 1
    assert "-gencode;arch=compute_90,code=sm_90" in text


def test_plans_of_cufft_have_a_limit(emulated):
    plans = torch.backends.cuda.cufft_plan_cache
    assert (plans.size, plans.max_size, plans[0].max_size) == (0, 4096, 4096)
    plans[0].max_size = 10
    plans.clear()
    assert (plans[0].max_size, plans.max_size) == (10, 10)
    with pytest.raises(RuntimeError, match="must be non-negative, but got -1"):
        plans.max_size = -1


def test_answers_of_pytorch_return_at_the_end():
    import forebay
    from forebay.interop.torch import patch

    functions = torch._C._show_config, torch._cufft_clear_plan_cache
    text = torch.__config__.show() if not torch.cuda.is_available() else ""
    with forebay.emulate("cuda", profile="h100"), patch():
        assert torch.__config__.show() != text
    assert (torch._C._show_config, torch._cufft_clear_plan_cache) == functions
