"""Products of matrices whose result has another type than the factors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_products_in_single_precision(emulated, dtype):
    one, other = torch.randn(4, 8).to(dtype), torch.randn(8, 3).to(dtype)
    bias, wide = torch.randn(3), torch.float32
    expected = one.float() @ other.float()
    one, other = one.cuda(), other.cuda()
    torch.testing.assert_close(torch.mm(one, other, wide).cpu(), expected)
    torch.testing.assert_close(torch.bmm(one[None], other[None], wide)[0].cpu(), expected)
    torch.testing.assert_close(torch.addmm(bias.cuda(), one, other, wide, beta=2).cpu(), 2 * bias + expected)
    torch.testing.assert_close(
        torch.baddbmm(bias.cuda().expand(1, 4, 3), one[None], other[None], wide, alpha=3)[0].cpu(), bias + 3 * expected
    )


def test_the_product_is_written_where_the_program_says(emulated):
    one = torch.eye(3, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(3, 3, device="cuda")
    assert torch.mm(one, one, torch.float32, out=out) is out
    assert out.sum().item() == 3


def test_errors_are_pytorchs(emulated):
    half = torch.ones(2, 2, device="cuda", dtype=torch.float16)
    for one, kind in ((half, torch.bfloat16), (half.float(), torch.float64), (half.int(), torch.float32)):
        with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32 for fp16/bf16"):
            torch.mm(one, one, kind)
    with pytest.raises(RuntimeError, match="input dtypes must be the same"):
        torch.mm(half, half.float(), torch.float32)
    with pytest.raises(RuntimeError, match="out_dtype must be the same as the dtype of the provided out tensor"):
        torch.mm(half, half, torch.float32, out=torch.empty_like(half))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(half, half[:1], torch.float32)


def test_shapes_are_known_without_values(shapes_only):
    half = torch.ones(2, 4, device="cuda", dtype=torch.float16)
    found = torch.mm(half, half.T, torch.float32)
    assert (found.shape, found.dtype) == ((2, 2), torch.float32)
