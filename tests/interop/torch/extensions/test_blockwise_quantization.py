"""Quantization in blocks: the nearest levels, and the codes of bitsandbytes' operators for the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="there is no bitsandbytes for this system")

from forebay.interop.torch.extensions.blockwise_quantization import (  # noqa: E402 -- as above
    dequantize,
    quantize,
    unpack,
)

operators = torch.ops.bitsandbytes


def numbers(count, dtype=torch.float32):
    return torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)


def levels_of_8_bits(signed=True):
    return bitsandbytes.functional.create_dynamic_map(signed=signed).float()


@pytest.mark.parametrize("block", [32, 64, 4096])
@pytest.mark.parametrize("count", [1, 64, 1001, 12_288])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_codes_of_4_bits_are_those_of_bitsandbytes(kind, dtype, count, block):
    source = numbers(count, dtype)
    codes, largest = quantize(source, kind, block)
    expected, expected_largest = operators.quantize_4bit(source, block, kind, torch.uint8)
    assert torch.equal(largest, expected_largest)
    # Codes themselves may differ: there are two zeros, and numbers in the middle of two levels.
    ours, theirs = (
        dequantize(unpack(each.flatten(), count), largest, kind, block, torch.float32) for each in (codes, expected)
    )
    torch.testing.assert_close((ours - source).abs(), (theirs - source).abs())
    assert (ours != theirs).float().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_numbers_of_4_bits_are_those_of_bitsandbytes(kind, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    largest = numbers(8).abs()
    found = dequantize(unpack(codes, 512), largest, kind, 64, dtype)
    assert torch.equal(found, operators.dequantize_4bit(codes, largest, 64, kind, [512], dtype).flatten())


@pytest.mark.parametrize("count", [1, 255, 70_001])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_codes_of_8_bits_are_those_of_the_nearest_levels(signed, count):
    source, levels = numbers(count), levels_of_8_bits(signed)
    source = source if signed else source.abs()
    codes, largest = quantize(source, levels, 256)
    scales = largest.repeat_interleave(256)[:count]
    assert torch.equal(largest, torch.stack([part.abs().max() for part in source.split(256)]))
    found = (source / scales - levels[codes.int()]).abs()
    nearest = (source / scales - levels.unsqueeze(1)).abs().amin(dim=0)
    torch.testing.assert_close(found, nearest, rtol=0, atol=1e-7)  # the factor is the rounded reciprocal


def test_numbers_of_8_bits_are_those_of_bitsandbytes():
    codes, largest, levels = torch.arange(256, dtype=torch.uint8).repeat(3), numbers(3).abs(), levels_of_8_bits()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = dequantize(codes, largest, levels, 256, dtype)
        assert torch.equal(found, operators.dequantize_blockwise(codes, largest, levels, 256, dtype))


@pytest.mark.parametrize("kind", ["nf4", "fp4", ""])
def test_zeros_stay_zeros(kind):
    levels = levels_of_8_bits()
    codes, largest = quantize(torch.zeros(100), kind or levels, 64)
    codes = unpack(codes, 100) if kind else codes
    assert largest.tolist() == [0, 0]
    assert dequantize(codes, largest, kind or levels, 64, torch.float32).abs().tolist() == [0] * 100


@pytest.mark.parametrize("kind", ["nf4", "fp4", ""])
def test_element_that_is_no_number_spoils_no_other(kind):
    source, levels = torch.ones(128), levels_of_8_bits()
    source[3] = float("nan")
    codes, largest = quantize(source, kind or levels, 64)
    assert largest.tolist() == [1, 1]
    restored = dequantize(unpack(codes, 128) if kind else codes, largest, kind or levels, 64, torch.float32)
    assert restored[:3].tolist() == restored[64:67].tolist() == [1] * 3


def test_middles_of_levels_go_where_the_kernels_put_them():
    levels = levels_of_8_bits()
    middles = (levels[1:] + levels[:-1]) / 2
    codes, _ = quantize(torch.cat([middles, torch.ones(1)]), levels, 256)
    exact = (middles - levels[:-1]) == (levels[1:] - middles)
    assert exact.sum() > 50
    assert (codes[:255][exact] % 2 == 0).all()
    codes, _ = quantize(torch.tensor([0.583333, 0.5834, -0.583333, 1.0]), "fp4", 64)
    assert unpack(codes, 4).tolist() == [5, 2, 13, 3]


def test_tables_do_not_depend_on_the_default_type():
    before, source = torch.get_default_dtype(), numbers(4096)
    torch.set_default_dtype(torch.bfloat16)
    try:
        codes, _ = quantize(source, "nf4", 64)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(codes, quantize(source, "nf4", 64)[0])
