"""Attention of packed sequences: that of each sequence alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402 -- as above

from forebay.errors import Unsupported  # noqa: E402 -- as above

LENGTHS = [3, 5, 1]
STARTS = torch.tensor([0, 3, 8, 9], dtype=torch.int32)


def tensors(dtype, heads=(4, 4, 4)):
    torch.manual_seed(0)
    return [torch.randn(sum(LENGTHS), each, 16).to(dtype).requires_grad_() for each in heads]


def by_heads(tensor):
    return tensor.transpose(0, 1)[None].float()


def expected(query, key, value, **options):
    """Return the results of the sequences, one by one."""
    parts = zip(*(each.split(LENGTHS) for each in (query, key, value)), strict=True)
    found = [scaled_dot_product_attention(*map(by_heads, given), **options) for given in parts]
    return torch.cat([each[0].transpose(0, 1) for each in found])


def compare(ours, theirs, close):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float().cpu(), other.float(), rtol=close, atol=close)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_jagged_tensors(emulated, dtype, is_causal):
    given = tensors(dtype)
    result = expected(*given, is_causal=is_causal)
    theirs = [result, *torch.autograd.grad(result.square().sum(), given)]
    leaves = [each.detach().cuda().requires_grad_() for each in given]
    offsets = STARTS.long().cuda()
    nested = [torch.nested.nested_tensor_from_jagged(each, offsets).transpose(1, 2) for each in leaves]
    found = scaled_dot_product_attention(*nested, is_causal=is_causal).transpose(1, 2).values()
    gradients = torch.autograd.grad(found.square().sum(), leaves)
    compare([found, *gradients], theirs, 1e-4 if dtype == torch.float32 else 0.1)


@pytest.mark.parametrize(("heads", "causal"), [((4, 4, 4), False), ((4, 2, 2), True)])
def test_flash_attention(emulated, heads, causal):
    given = tensors(torch.bfloat16, heads)
    result = expected(*given, is_causal=causal, enable_gqa=True)
    theirs = torch.autograd.grad(result.square().sum(), given)
    query, key, value = (each.detach().cuda() for each in given)
    starts = STARTS.cuda()
    options = (starts, starts, 5, 5, 0.0, causal)
    found = torch.ops.aten._flash_attention_forward(query, key, value, *options, False)
    outer = 2 * found[0]
    gradients = torch.ops.aten._flash_attention_backward(outer, query, key, value, *found[:2], *options, *found[2:4])
    compare([found[0], *gradients], [result, *theirs], 0.1)
    assert found[1].shape == (4, 9)


def test_windows_limit_the_keys(emulated):
    query = torch.randn(1, 6, 2, 8, device="cuda")
    found = torch.ops.aten._flash_attention_forward(
        query, query, query, None, None, 6, 6, 0.0, True, False, window_size_left=1, window_size_right=0
    )[0]
    host = query.cpu().transpose(1, 2)
    distance = torch.arange(6) - torch.arange(6)[:, None]
    theirs = scaled_dot_product_attention(host, host, host, (distance <= 0) & (distance >= -1))
    torch.testing.assert_close(found.cpu(), theirs.transpose(1, 2), rtol=1e-4, atol=1e-4)


def test_causal_masks_end_at_the_last_key(emulated):
    query, key = torch.randn(1, 2, 1, 8, device="cuda"), torch.randn(1, 5, 1, 8, device="cuda")
    found = torch.ops.aten._efficient_attention_forward(query, key, key, None, None, None, 2, 5, 0.0, 2)[0]
    mask = torch.ones(2, 5, dtype=torch.bool).tril(3)
    host, keys = query.cpu().transpose(1, 2), key.cpu().transpose(1, 2)
    theirs = scaled_dot_product_attention(host, keys, keys, mask)
    torch.testing.assert_close(found.cpu(), theirs.transpose(1, 2), rtol=1e-4, atol=1e-4)


def test_only_shapes_are_computed_without_values(shapes_only):
    query = torch.randn(9, 4, 16, device="cuda", dtype=torch.bfloat16)
    starts = torch.tensor([0, 3, 9], dtype=torch.int32, device="cuda")
    found = torch.ops.aten._flash_attention_forward(query, query, query, starts, starts, 6, 6, 0.1, True, False)
    assert [each.shape for each in found[:2]] == [(9, 4, 16), (4, 9)]
    flat = query.view(1, 9, 4, 16)
    found = torch.ops.aten._efficient_attention_forward(flat, flat, flat, None, starts, starts, 6, 6, 0.0, 1, True)
    assert [each.shape for each in found[:2]] == [(1, 9, 4, 16), (2, 4, 32)]


def test_other_arguments_are_refused(emulated):
    query = torch.ones(1, 2, 1, 8, device="cuda")
    with pytest.raises(Unsupported, match="does not support the argument 'bias'"):
        torch.ops.aten._efficient_attention_forward(query, query, query, query, None, None, 2, 2, 0.0, 0)


@pytest.mark.parametrize("ends", [(0, 4, 4, 8), (0, 8, 8, 8)])
def test_empty_sequences_have_no_result(emulated, ends):
    query = torch.randn(8, 2, 8, device="cuda", requires_grad=True)
    starts, keys = (torch.tensor(each, dtype=torch.int32, device="cuda") for each in ((0, 4, 6, 8), ends))
    options = (starts, keys, 8, 8, 0.0, False)
    found = torch.ops.aten._flash_attention_forward(query, query, query, *options, False)
    gradients = torch.ops.aten._flash_attention_backward(
        found[0], query, query, query, *found[:2], *options, *found[2:4]
    )
    assert all(each.isfinite().all() for each in (found[0], *gradients))
    without = [number for number in range(3) if ends[number] == ends[number + 1]]
    assert all(not found[0][slice(*starts.tolist()[number : number + 2])].any() for number in without)


def test_all_tensors_are_on_the_device(emulated):
    query = torch.randn(4, 2, 8, device="cuda")
    starts = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu"):
        torch.ops.aten._flash_attention_forward(query, query, query, starts, starts, 4, 4, 0.0, False, False)
