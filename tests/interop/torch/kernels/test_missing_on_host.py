"""Operators that CUDA has and the CPU lacks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


def test_complex_sums_skip_nan(emulated):
    x = torch.tensor([[1 + 2j, complex("nan+1j")], [3j, 4]], device="cuda", dtype=torch.complex64)
    assert torch.nansum(x).item() == 5 + 5j
    assert torch.nansum(x, 0).tolist() == [1 + 5j, 4]
    assert torch.nansum(x, (0, 1), keepdim=True, dtype=torch.complex128).tolist() == [[5 + 5j]]
    out = torch.empty(0, device="cuda", dtype=torch.complex64)
    assert torch.nansum(x, 1, out=out).tolist() == out.tolist() == [1 + 2j, 4 + 3j]
    assert torch.nansum(torch.tensor([1.0, float("nan")], device="cuda")).item() == 1


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (2, 5, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_matrices_are_factored_without_pivoting(emulated, shape, dtype):
    x = torch.randn(shape, dtype=dtype) + 4 * torch.eye(*shape[-2:], dtype=dtype)
    packed, pivots, info = torch.linalg.lu_factor_ex(x.cuda(), pivot=False)
    least = min(shape[-2:])
    assert packed.device.type == "cuda"
    assert pivots.tolist() == torch.arange(1, least + 1).expand(*shape[:-2], least).tolist()
    assert not info.any()
    order, lower, upper = torch.linalg.lu(x.cuda(), pivot=False)
    assert order.numel() == 0
    assert torch.allclose((lower @ upper).cpu(), x, atol=1e-5)
    assert torch.equal(packed.triu()[..., :least, :], upper)


def test_a_zero_pivot_is_reported(emulated):
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0]], device="cuda")
    assert torch.linalg.lu_factor_ex(x, pivot=False).info.item() == 1
    with pytest.raises(RuntimeError, match=r"U\[1,1\] is zero"):
        torch.linalg.lu_factor(x, pivot=False)


def test_shapes_are_known_without_values(shapes_only):
    x = torch.ones(3, 3, device="cuda")
    assert torch.linalg.lu_factor_ex(x, pivot=False)[0].shape == (3, 3)
    assert torch.nansum(x.to(torch.complex64), 0).shape == (3,)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_libraries_refuse_what_they_cannot_compute(request, mode):
    request.getfixturevalue(mode)
    x = torch.ones(6, 6, device="cuda")
    assert torch.fft.rfft(x[:4, :4].half()).dtype == torch.complex32
    with pytest.raises(RuntimeError, match=r"powers of two .* signal size of\[6\]"):
        torch.fft.fft(x.half())
    for driver in ("gesvd", "gesvda", "gesvdj", None):
        assert torch.linalg.svd(x, driver=driver)[1].shape == (6,)
    with pytest.raises(RuntimeError, match="unknown svd driver nonsense"):
        torch.linalg.svd(x, driver="nonsense")
