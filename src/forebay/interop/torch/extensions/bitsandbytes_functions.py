"""Functions of bitsandbytes' CUDA library, on the values at the addresses that they receive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from forebay.interop.torch.extensions.addressed_values import allocate_managed, values_at
from forebay.interop.torch.extensions.blockwise_quantization import (
    BLOCK_OF_STATES,
    absmax_of_rows,
    dequantize,
    quantize,
    unpack,
)
from forebay.interop.torch.extensions.optimizer_updates import (
    OPTIMIZERS,
    TWO_STATES,
    Hyperparameters,
    QuantizedState,
    update,
    update_quantized,
)

__all__ = ["FUNCTIONS", "HOST_FUNCTIONS", "LibraryFunction"]

_Run = Callable[[], object]
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TYPES_OF_GRADIENTS = {**_TYPES, "32": torch.float32, "16": torch.float16}
_KINDS = ("fp4", "nf4")
_FLOAT, _BYTE = torch.float32, torch.uint8
_INT8_SCALE = 1 / 127**2  # of a product of two numbers of 8 bits


class LibraryFunction(NamedTuple):
    """A function of the library."""

    written: tuple[int, ...]  # positions of the arguments that are addresses of what it writes
    # Return, for the arguments, the function that computes the values. Raises DeviceError for wrong addresses.
    prepare: Callable[..., _Run]
    # Whether it receives a stream; True by default. Others use CUDA's default stream, which no graph captures.
    has_stream: bool = True


def _blocks(count: int, size: int) -> int:
    return -(-count // size)


def _quantize(
    dtype: torch.dtype, kind: str, table: int, given: int, absmax: int, out: int, block: int, count: int
) -> _Run:
    source, scales = values_at(given, dtype, count), values_at(absmax, _FLOAT, _blocks(count, block))
    codes = values_at(out, _BYTE, _blocks(count, 2) if kind else count)
    levels = kind or values_at(table, _FLOAT, 256)

    def run() -> None:
        found, maxima = quantize(source, levels, block)
        codes.copy_(found)
        scales.copy_(maxima)

    return run


def _dequantize(
    dtype: torch.dtype, kind: str, table: int, given: int, absmax: int, out: int, block: int, count: int, _stream: int
) -> _Run:
    codes = values_at(given, _BYTE, _blocks(count, 2) if kind else count)
    scales, result = values_at(absmax, _FLOAT, _blocks(count, block)), values_at(out, dtype, count)
    if kind:
        return lambda: result.copy_(dequantize(unpack(codes, count), scales, kind, block, dtype))
    levels = values_at(table, _FLOAT, 256)
    return lambda: result.copy_(dequantize(codes, scales, levels, block, dtype))


def _multiply_4bit(
    dtype: torch.dtype, given: int, packed: int, absmax: int, absmax_8bit: int, absmax_code: int, absmax_offset: int,
    out: int, bias: int, rows: int, columns: int, inner: int, block: int, kind: int, _stream: int,
) -> _Run:  # fmt: skip
    count = columns * inner
    factor, codes = values_at(given, dtype, rows, inner), values_at(packed, _BYTE, _blocks(count, 2))
    added = values_at(bias, dtype, columns) if bias else None
    result, blocks = values_at(out, dtype, rows, columns), _blocks(count, block)
    if absmax_8bit:
        nested, levels = values_at(absmax_8bit, _BYTE, blocks), values_at(absmax_code, _FLOAT, 256)
        offset, maxima = values_at(absmax_offset, _FLOAT), values_at(absmax, _FLOAT, _blocks(blocks, BLOCK_OF_STATES))
    else:
        maxima = values_at(absmax, _FLOAT, blocks)

    def run() -> None:
        scales = dequantize(nested, maxima, levels, BLOCK_OF_STATES, _FLOAT) + offset if absmax_8bit else maxima
        weights = dequantize(unpack(codes, count), scales, _KINDS[kind - 1], block, dtype).view(columns, inner)
        result.copy_(torch.nn.functional.linear(factor, weights, added))

    return run


def _multiply_vector_4bit(
    dtype: torch.dtype, columns: int, _rows: int, inner: int, given: int, packed: int, absmax: int, table: int,
    out: int, _lda: int, _ldb: int, _ldc: int, block: int, _stream: int,
) -> _Run:  # fmt: skip
    count = columns * inner
    factor, codes = values_at(given, dtype, 1, inner), values_at(packed, _BYTE, _blocks(count, 2))
    scales, levels = values_at(absmax, _FLOAT, _blocks(count, block)), values_at(table, _FLOAT, 16)
    result = values_at(out, dtype, 1, columns)

    def run() -> None:
        # The kernel rounds levels, scales, weights and products to the type, and adds in single precision.
        of_elements = scales.to(dtype).repeat_interleave(block)[:count]
        weights = (levels.to(dtype)[unpack(codes, count).int()] * of_elements).view(columns, inner)
        result.copy_((factor * weights).float().sum(dim=1))

    return run


def _multiply_int8(
    _context: object, inner: int, rows: int, columns: int, weights: int, given: int, out: int, _scale: int, *_rest: int
) -> _Run:
    left, right = values_at(given, torch.int8, rows, inner), values_at(weights, torch.int8, columns, inner)
    result = values_at(out, torch.int32, rows, columns)
    return lambda: result.copy_(left.double() @ right.double().t())


def _dequantize_product(
    given: int, row_stats: int, column_stats: int, out: int, bias: int, rows: int, columns: int, _stream: int
) -> _Run:
    source, result = values_at(given, torch.int32, rows, columns), values_at(out, torch.float16, rows, columns)
    of_rows, of_columns = values_at(row_stats, _FLOAT, rows, 1), values_at(column_stats, _FLOAT, columns)
    added = values_at(bias, torch.float16, columns) if bias else torch.zeros(())
    return lambda: result.copy_(source * of_rows * of_columns * _INT8_SCALE + added)


def _quantize_rows(
    given: int, out: int, row_stats: int, threshold: float, rows: int, columns: int, _stream: int
) -> _Run:
    source, result = values_at(given, torch.float16, rows, columns), values_at(out, torch.int8, rows, columns)
    of_rows = values_at(row_stats, _FLOAT, rows)

    def run() -> None:
        numbers = counted = source.float()
        if threshold > 0:  # outliers are multiplied elsewhere; the absmax is compared in half precision
            counted = torch.where(source.abs() < torch.tensor(threshold, dtype=torch.float16), numbers, 0.0)
            numbers = torch.where(numbers.abs() < threshold, numbers, 0.0)
        scales = absmax_of_rows(counted)
        of_rows.copy_(scales)
        result.copy_((numbers * (127 / scales).unsqueeze(1)).nan_to_num(0.0).round())

    return run


def _update_32bit(
    name: str, dtype: torch.dtype, gradient: int, parameter: int, state1: int, state2: int, norm: int,
    max_norm: float, parameter_norm: float, beta1: float, beta2: float, beta3: float, alpha: float, eps: float,
    decay: float, step: int, rate: float, scale: float, skip_zeros: bool, count: int,
) -> _Run:  # fmt: skip
    states = [*values_at(state1, _FLOAT, 2 if name == "ademamix" else 1, count)]
    if name in TWO_STATES:
        states.insert(1, values_at(state2, _FLOAT, count))
    hyper = Hyperparameters(beta1, beta2, beta3, alpha, eps, decay, step, rate, scale, skip_zeros)
    return partial(
        update, name, values_at(parameter, dtype, count), values_at(gradient, dtype, count), states, hyper,
        values_at(norm, _FLOAT, 1) if norm else None, max_norm, parameter_norm,
    )  # fmt: skip


def _update_8bit(
    name: str, dtype: torch.dtype, parameter: int, gradient: int, state1: int, state2: int, beta1: float, beta2: float,
    beta3: float, alpha: float, eps: float, step: int, rate: float, levels1: int, levels2: int, absmax1: int,
    absmax2: int, decay: float, scale: float, skip_zeros: bool, count: int,
) -> _Run:  # fmt: skip
    # AdEMAMix's slow state has a row of its own, as bitsandbytes allocates it. The kernel itself takes the row from the
    # element n / 256 on, which is one less unless n is a multiple of 256, and then shares an element with the first.
    many, blocks, levels = (
        2 if name == "ademamix" else 1,
        _blocks(count, BLOCK_OF_STATES),
        values_at(levels1, _FLOAT, 256),
    )
    codes, maxima = values_at(state1, _BYTE, many, count), values_at(absmax1, _FLOAT, many, blocks)
    states = [QuantizedState(each, levels, scales) for each, scales in zip(codes, maxima, strict=True)]
    if name in TWO_STATES:
        second = values_at(state2, _BYTE, count), values_at(levels2, _FLOAT, 256), values_at(absmax2, _FLOAT, blocks)
        states.insert(1, QuantizedState(*second))
    hyper = Hyperparameters(beta1, beta2, beta3, alpha, eps, decay, step, rate, scale, skip_zeros)
    return partial(
        update_quantized, name, values_at(parameter, dtype, count), values_at(gradient, dtype, count), states, hyper
    )


def _fill(dtype: torch.dtype, out: int, _other: int, value: float, count: int) -> _Run:
    return partial(values_at(out, dtype, count).fill_, value)


def _functions() -> dict[str, LibraryFunction]:
    made = {
        "cigemmlt_32": LibraryFunction((6,), _multiply_int8),
        "cdequant_mm_int32_fp16": LibraryFunction((3,), _dequantize_product),
        "cint8_vector_quant": LibraryFunction((1, 2), _quantize_rows),
        "cfill_fp32": LibraryFunction((0,), partial(_fill, _FLOAT), has_stream=False),
        "cfill_uint8": LibraryFunction((0,), partial(_fill, _BYTE), has_stream=False),
    }
    for short, dtype in _TYPES.items():
        for kind in ("", *_KINDS):
            name = f"blockwise_{short}" + (f"_{kind}" if kind else "")
            made[f"cquantize_{name}"] = LibraryFunction((2, 3), partial(_quantize, dtype, kind), has_stream=False)
            made[f"cdequantize_{name}"] = LibraryFunction((3,), partial(_dequantize, dtype, kind))
        made[f"cgemm_4bit_{short}"] = LibraryFunction((6,), partial(_multiply_4bit, dtype))
        made[f"cgemm_4bit_inference_naive_{short}"] = LibraryFunction((7,), partial(_multiply_vector_4bit, dtype))
    for name in OPTIMIZERS:
        for short, dtype in _TYPES_OF_GRADIENTS.items():
            with_32, with_8 = partial(_update_32bit, name, dtype), partial(_update_8bit, name, dtype)
            made[f"c{name}32bit_grad_{short}"] = LibraryFunction((1, 2, 3, 4), with_32, has_stream=False)
            made[f"c{name}_8bit_blockwise_grad_{short}"] = LibraryFunction((0, 2, 3, 13, 14), with_8, has_stream=False)
    return made


FUNCTIONS = _functions()

# Functions that compute no values of tensors.
HOST_FUNCTIONS: dict[str, Callable[..., int]] = {
    "get_context": lambda: 0,
    "cget_managed_ptr": allocate_managed,
    "cprefetch": lambda *_: 0,
}
