"""Warnings of attention that no implementation can compute, as recorded of PyTorch 2.15 for CUDA, on an H200."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402 -- needs torch
from torch.nn.functional import scaled_dot_product_attention as attention  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

FLASH, EFFICIENT, CUDNN = (
    SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION,
)  # fmt: skip
HALF = torch.float16
DISABLED = {
    EFFICIENT: "Memory Efficient attention has been runtime disabled.",
    FLASH: "Flash attention has been runtime disabled.",
    CUDNN: "cuDNN attention has been runtime disabled.",
}
HEADINGS = {
    EFFICIENT: "Memory efficient kernel not used because:",
    FLASH: "Flash attention kernel not used because:",
    CUDNN: "cuDNN attention kernel not used because:",
}
EXPAND = "To broadcast dense inputs, try using unsqueeze and expand_to before passing them into the kernel."
TYPES = (
    "Expected query, key and value to all be of dtype: {{{}}}. Got Query dtype: {}, Key dtype: {}, and Value dtype: {} "
    "instead."
)
HEADS = (
    "For dense input, both fused kernels require query, key and value to have the same num_heads. Got Query num_heads: "
    f"4, Key num_heads: 2, Value num_heads: 2 instead. {EXPAND}"
)
STRIDES = (
    "All fused kernels require the last dimension of the input to have stride 1. Got Query.stride(-1): 8, "
    "Key.stride(-1): 8, Value.stride(-1): 8"
)
MASK_STRIDE = (
    ", Attn_mask.stride(-1): 1 (GPU backends require attn_mask's last dimension to have stride 1 while the CPU does "
    "not)."
)
LENGTHS = "All fused kernels do not support zero seq_len_q or seq_len_kv."


def tensors(*, batch=1, heads=2, length=8, size=16, dtype=HALF):
    return torch.empty(batch, heads, length, size, dtype=dtype, device="cuda")


CASES = {
    "float": (FLASH, lambda: [tensors(dtype=torch.float32)] * 3, {}, TYPES.format("Half, BFloat16", *["float"] * 3)),
    "double": (
        EFFICIENT, lambda: [tensors(dtype=torch.float64)] * 3, {},
        TYPES.format("Half, Float, BFloat16", *["double"] * 3),
    ),
    "mask": (
        FLASH, lambda: [tensors()] * 3, {"attn_mask": (8, 8)}, "Flash Attention does not support non-null attn_mask."
    ),
    "alignment": (EFFICIENT, lambda: [tensors(size=17)] * 3, {}, (
        "Mem efficient attention requires last dimension of inputs to be divisible by 8. Got Query.size(-1): 17, "
        "Key.size(-1): 17, Value.size(-1): 17 instead."
    )),
    "cudnn alignment": (CUDNN, lambda: [tensors(size=17)] * 3, {}, "head_dim should be a multiple of 8"),
    "cudnn size": (CUDNN, lambda: [tensors(size=512)] * 3, {}, "head_dim should be no more than 256"),
    "cudnn length": (
        CUDNN, lambda: [tensors(), *[tensors(length=1)] * 2], {},
        "cudnn SDPA does not support key/value sequence length 1."
    ),
    "flash size": (FLASH, lambda: [tensors(size=512)] * 3, {}, (
        "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to 256. Got "
        "Query.size(-1): 512, Key.size(-1): 512, Value.size(-1): 512 instead."
    )),
    "causal": (FLASH, lambda: [tensors(), *[tensors(length=16)] * 2], {"is_causal": True}, (
        "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got seqlen_q: 8 seqlen_k: 16. "
        "If you would like to use causal attention with non-square masks, please see CausalAttnMask."
    )),
    "batch": (FLASH, lambda: [tensors(batch=2), *[tensors()] * 2], {}, (
        "For dense inputs, both fused kernels require query, key and value to have the same batch_size. Got Query "
        f"batch_size: 2, Key batch_size: 1, Value batch_size: 1 instead. {EXPAND}"
    )),
    "heads": (EFFICIENT, lambda: [tensors(heads=4), *[tensors()] * 2], {}, HEADS),
    "empty": (FLASH, lambda: [tensors(length=0)] * 3, {}, LENGTHS),
    "strides": (FLASH, lambda: [tensors(length=16, size=8).transpose(2, 3)] * 3, {}, STRIDES),
    "mask and strides": (
        EFFICIENT, lambda: [tensors(length=16, size=8).transpose(2, 3)] * 3, {"attn_mask": (8, 8)},
        STRIDES + MASK_STRIDE,
    ),
}  # fmt: skip


@pytest.fixture(params=["compute", "shapes"])
def emulated(request):
    with forebay.emulate("cuda", profile="h200"), patch(request.param):
        yield


def warnings_of(call, error="No available kernel. Aborting execution."):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError) as raised:
            call()
    assert str(raised.value) == error
    return caught


@pytest.mark.parametrize("case", CASES)
def test_reasons_are_those_of_pytorch(emulated, case):
    backend, make, options, reason = CASES[case]
    given = {
        name: torch.empty(value, dtype=HALF, device="cuda") if name == "attn_mask" else value
        for name, value in options.items()
    }
    with sdpa_kernel(backend):
        found = warnings_of(lambda: torch._fused_sdp_choice(*make(), **given))
    expected = []
    for each, heading in HEADINGS.items():
        expected += [heading, reason if each is backend else DISABLED[each]]
    assert [str(each.message) for each in found] == expected
    assert {each.category for each in found} == {UserWarning}


def test_warnings_are_those_of_the_line_that_calls_attention(emulated):
    given = tensors(dtype=torch.float32)
    with sdpa_kernel(FLASH):
        found = warnings_of(lambda: attention(given, given, given))
    assert {each.filename for each in found} == {__file__}


def test_nothing_enabled_is_refused_without_reasons(emulated):
    error = (
        "No viable backend for scaled_dot_product_attention was found. This is likely due to turning off both the math "
        "kernel and the fused kernels."
    )
    given = tensors()
    with sdpa_kernel(SDPBackend.MATH):
        torch.backends.cuda.enable_math_sdp(False)
        assert warnings_of(lambda: torch._fused_sdp_choice(given, given, given), error) == []


def test_question_with_debug_warns(emulated):
    given = tensors(dtype=torch.float32)
    params = torch.backends.cuda.SDPAParams(given, given, given, None, 0.0, False, False)
    with pytest.warns(UserWarning, match="Expected query, key and value to all be of dtype"):
        assert not torch.backends.cuda.can_use_flash_attention(params, debug=True)


def test_older_card_is_named():
    with forebay.emulate("cuda", profile="t4"), patch("shapes"), sdpa_kernel(FLASH):
        given = tensors()
        found = warnings_of(lambda: attention(given, given, given))
    texts = [str(each.message) for each in found]
    assert any(
        "gpu architectures in the range [sm80, sm121]. Attempting to run on a sm 7.5 gpu." in each for each in texts
    )
