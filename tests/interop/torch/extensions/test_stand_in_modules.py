"""Packages that install with CUDA only, which programs import on emulated devices."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay.errors import Unsupported  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above

KIB = 1 << 10
CAUSAL = {"is_causal": True, "enable_gqa": True}


@pytest.fixture
def installed():
    """Skip the test if one of the packages is installed."""
    for name in ("flash_attn", "apex", "xformers", "deepspeed"):
        if name in sys.modules:
            pytest.skip(f"{name} is installed")


def reference(query, key, value, **options):
    first, second, third = (each.transpose(1, 2) for each in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(first, second, third, **options).transpose(1, 2)


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def test_program_gets_a_module_and_a_library_finds_none(emulated, installed, tmp_path, monkeypatch):
    library = tmp_path / "site-packages/asking.py"
    library.parent.mkdir()
    library.write_text(
        "import importlib.util\n"
        "def asks(name): return importlib.util.find_spec(name) is not None\n"
        "try: from apex.normalization import FusedLayerNorm\n"
        "except ImportError: FusedLayerNorm = None\n"
    )
    monkeypatch.syspath_prepend(library.parent)
    import asking

    assert (asking.FusedLayerNorm, asking.asks("flash_attn"), asking.asks("xformers")) == (None, False, False)
    assert assumed_values.found() == ()
    import flash_attn
    from apex.normalization import FusedLayerNorm

    assert flash_attn.__version__ >= "2.3.3"
    assert FusedLayerNorm(8).normalized_shape == (8,)
    assert asking.asks("flash_attn")
    texts = [each.text for each in assumed_values.found()]
    assert texts == [
        "flash_attn is not installed: computed by PyTorch's flash attention",
        "apex is not installed: computed by PyTorch",
    ]
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'apex\.amp'"):
        import apex.amp  # noqa: F401 -- there is none
    monkeypatch.delitem(sys.modules, "asking")


def test_modules_end_with_the_patch(installed):
    import forebay
    from forebay.interop.torch import patch

    with forebay.emulate("cuda"), patch():
        import flash_attn

        assert flash_attn.flash_attn_func
    with pytest.raises(ModuleNotFoundError, match="flash_attn"):
        import flash_attn


def test_flash_attention_has_the_values_and_the_memory_of_its_kernel(emulated, installed):
    from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func

    query, key, value = random(2, 128, 8, 64), random(2, 128, 2, 64), random(2, 128, 2, 64)
    before = torch.cuda.memory_allocated()
    result = flash_attn_func(query, key, value, causal=True)
    # The result, the log-sum-exp of each query, and the two numbers that restore the random state.
    assert torch.cuda.memory_allocated() - before == 256 * KIB + 8 * KIB + 2 * 512
    assert torch.equal(result, reference(query, key, value, **CAUSAL))
    result.sum().backward()
    assert [each.grad.shape for each in (query, key)] == [query.shape, key.shape]

    odd = random(1, 16, 3, 4, 20)  # a size to which the package pads
    assert flash_attn_qkvpacked_func(odd).shape == (1, 16, 4, 20)
    torch.testing.assert_close(flash_attn_qkvpacked_func(odd), reference(*odd.unbind(2)), rtol=0.02, atol=0.02)

    starts = torch.tensor([0, 50, 256], device="cuda", dtype=torch.int32)
    packed = [each.reshape(256, -1, 64) for each in (query, key, value)]
    result = flash_attn_varlen_func(*packed, starts, starts, 206, 206, causal=True)
    first = reference(*(each[None, :50] for each in packed), **CAUSAL)
    torch.testing.assert_close(result[None, :50], first, rtol=0.02, atol=0.02)
    with pytest.raises(Unsupported, match="softcap"):
        flash_attn_func(query, key, value, softcap=30.0)


def test_padding_is_removed_and_added(emulated, installed):
    from flash_attn.bert_padding import pad_input, unpad_input

    states, mask = torch.randn(2, 5, 3, device="cuda"), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], device="cuda")
    flat, indices, starts, longest, lengths = unpad_input(states, mask)
    assert (flat.shape, starts.tolist(), longest, lengths.tolist()) == ((7, 3), [0, 3, 7], 4, [3, 4])
    assert torch.equal(pad_input(flat, indices, 2, 5), states * mask[..., None])


@pytest.mark.parametrize("mode", ["emulated", "with_assumptions"])
def test_model_of_transformers_that_asks_for_flash_attention_runs(request, installed, mode):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    request.getfixturevalue(mode)
    for function in vars(transformers.utils.import_utils).values():  # another test may have asked without a device
        getattr(function, "cache_clear", lambda: None)()
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100,
    )  # fmt: skip
    kind = transformers.LlamaForCausalLM
    model = kind._from_config(config, attn_implementation="flash_attention_2", dtype=torch.bfloat16).cuda()
    tokens = torch.randint(0, 100, (2, 16), device="cuda")
    model(tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss.backward()
    assert model.config._attn_implementation == "flash_attention_2"
    assert any(each.text.startswith("flash_attn is not installed") for each in assumed_values.found())


def test_modules_and_optimizers_are_those_of_pytorch(emulated, installed):
    from apex.normalization import FusedLayerNorm, FusedRMSNorm
    from apex.optimizers import FusedAdam, FusedSGD
    from deepspeed.ops.adam import FusedAdam as OfDeepSpeed
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    states = torch.randn(4, 64, device="cuda", requires_grad=True)
    norm = FusedLayerNorm(64).cuda()
    assert torch.equal(norm(states), torch.nn.functional.layer_norm(states, (64,)))
    assert FusedRMSNorm(64).cuda()(states).shape == states.shape
    for kind, options in ((FusedAdam, {}), (OfDeepSpeed, {"adam_w_mode": False}), (FusedSGD, {"lr": 0.1})):
        norm(states).square().sum().backward()
        optimizer = kind(norm.parameters(), **options)
        optimizer.step()
        optimizer.zero_grad()
        assert norm.weight.grad is None
    query = random(2, 16, 4, 32)
    result = memory_efficient_attention(query, query, query, attn_bias=LowerTriangularMask())
    assert torch.equal(result, reference(query, query, query, is_causal=True))
    with pytest.raises(Unsupported, match="xformers is not installed"):
        memory_efficient_attention(query, query, query, attn_bias=object())
