"""Products of groups of matrices, and histograms of integers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_group_is_multiplied(emulated, dtype):
    torch.manual_seed(0)
    rows, weights = torch.randn(8, 16).to(dtype), torch.randn(2, 16, 20).to(dtype)
    ends = torch.tensor([3, 8], dtype=torch.int32)
    found = torch._grouped_mm(rows.cuda(), weights.transpose(1, 2).contiguous().cuda().transpose(1, 2), ends.cuda())
    expected = torch.cat([rows[:3] @ weights[0], rows[3:] @ weights[1]])
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)
    assert found.stride() == ((20, 1) if dtype == torch.float32 else (24, 1))


def test_shapes_are_known_without_values(shapes_only):
    rows, ends = torch.randn(8, 16, device="cuda"), torch.tensor([3, 8], dtype=torch.int32, device="cuda")
    assert torch._grouped_mm(rows, torch.randn(2, 16, 20, device="cuda"), ends).shape == (8, 20)
    assert torch._grouped_mm(rows.T, rows[:, :8], ends).shape == (2, 16, 8)
    assert torch._grouped_mm(rows.view(2, 4, 16), torch.randn(2, 16, 20, device="cuda")).shape == (2, 4, 20)


def test_the_result_has_the_type_of_the_factors(emulated):
    rows = torch.ones(2, 16, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="output dtype must match `mat_a` dtype"):
        torch._grouped_mm(rows[None], rows.T[None], out_dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("bounds", [(0, 7), (1, 3), (0, 0)])
def test_histogram_of_integers_is_that_of_numbers(emulated, dtype, bounds):
    numbers = torch.tensor([0, 1, 1, 2, 3, 5, 7, 7])
    found = torch.histc(numbers.to("cuda", dtype), 4, *bounds)
    assert found.dtype == dtype
    assert found.tolist() == torch.histc(numbers.double(), 4, *bounds).tolist()


def test_histogram_of_equal_integers(emulated):
    assert torch.histc(torch.full((3,), 5, device="cuda"), 3).tolist() == [0, 3, 0]


def test_errors_of_histograms_are_pytorchs(emulated):
    numbers = torch.ones(3, device="cuda")
    with pytest.raises(NotImplementedError, match="\"histc\" not implemented for 'Bool'"):
        torch.histc(numbers.bool(), 4)
    with pytest.raises(RuntimeError, match="HalfTensor is not supported"):
        torch.histc(numbers.half(), 4)
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histc(numbers.int(), 0)
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(numbers.int(), 4, 3, 1)


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_arguments_of_products_are_checked(request, mode):
    request.getfixturevalue(mode)
    rows, ends = torch.ones(16, 16, device="cuda"), torch.tensor([16], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="Have to provide offsets if there is a 2d matrix"):
        torch._grouped_mm(rows, rows)
    with pytest.raises(RuntimeError, match="contraction dimension"):
        torch._grouped_mm(rows, rows[:8], ends.cuda())
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu"):
        torch._grouped_mm(rows, rows, ends)
