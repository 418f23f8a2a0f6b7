"""Functions of bitsandbytes' CUDA library, computed by bitsandbytes' operators for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from forebay.interop.torch.extensions.addressed_values import allocate_managed, values_at

__all__ = ["FUNCTIONS", "HOST_FUNCTIONS", "LibraryFunction"]

_Run = Callable[[], object]
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_CODES = ("fp4", "nf4")
_TYPES_OF_GRADIENTS = {**_TYPES, "32": torch.float32, "16": torch.float16}
_TWO_STATES = ("adam", "ademamix")
_OPTIMIZERS = ("adam", "momentum", "rmsprop", "lion", "adagrad", "ademamix")
_BLOCK = 256  # elements of a block of an optimizer's state, and of the absolute maxima of nested quantization
_FLOAT, _BYTE = torch.float32, torch.uint8


class LibraryFunction(NamedTuple):
    """A function of the library.

    Parameters
    ----------
    written : tuple of int
        Positions of the arguments that are addresses of what it writes.
    prepare : callable
        Return, for the arguments, the function that computes the values.
    """

    written: tuple[int, ...]
    prepare: Callable[..., _Run]


def _operator(name: str) -> Any:
    return getattr(torch.ops.bitsandbytes, name)


def _blocks(count: int, size: int) -> int:
    return -(-count // size)


def _quantize(
    dtype: torch.dtype, code: str, table: int, given: int, absmax: int, out: int, block: int, count: int
) -> _Run:
    source, maxima = values_at(given, dtype, count), values_at(absmax, _FLOAT, _blocks(count, block))
    result = values_at(out, _BYTE, _blocks(count, 2) if code else count)
    levels = None if code else values_at(table, _FLOAT, 256)

    def run() -> None:
        if code:
            found, largest = _operator("quantize_4bit")(source, block, code, _BYTE)
        else:
            found, largest = _operator("quantize_blockwise")(source, levels, block)
        result.copy_(found.view(-1))
        maxima.copy_(largest)

    return run


def _dequantize(
    dtype: torch.dtype, code: str, table: int, given: int, absmax: int, out: int, block: int, count: int, _stream: int
) -> _Run:
    source = values_at(given, _BYTE, _blocks(count, 2) if code else count)
    maxima, result = values_at(absmax, _FLOAT, _blocks(count, block)), values_at(out, dtype, count)
    if code:
        return lambda: result.copy_(_operator("dequantize_4bit")(source, maxima, block, code, [count], dtype).view(-1))
    levels = values_at(table, _FLOAT, 256)
    return lambda: result.copy_(_operator("dequantize_blockwise")(source, maxima, levels, block, dtype))


def _multiply_4bit(
    dtype: torch.dtype, given: int, packed: int, absmax: int, absmax_8bit: int, absmax_code: int, absmax_offset: int,
    out: int, bias: int, rows: int, columns: int, inner: int, block: int, code: int, _stream: int,
) -> _Run:  # fmt: skip
    factor, weights = values_at(given, dtype, rows, inner), values_at(packed, _BYTE, _blocks(columns * inner, 2), 1)
    blocks = _blocks(columns * inner, block)
    nested = None, None, None
    if absmax_8bit:
        nested = (
            values_at(absmax_8bit, _BYTE, blocks),
            values_at(absmax_code, _FLOAT, 256),
            values_at(absmax_offset, _FLOAT),
        )
        blocks = _blocks(blocks, _BLOCK)
    maxima = values_at(absmax, _FLOAT, blocks)
    added = values_at(bias, dtype, columns) if bias else None
    result = values_at(out, dtype, rows, columns)
    name = _CODES[code - 1]
    return lambda: result.copy_(
        _operator("gemm_4bit")(factor, weights, [columns, inner], maxima, block, name, added, *nested)
    )


def _multiply_vector_4bit(
    dtype: torch.dtype, columns: int, _rows: int, inner: int, given: int, packed: int, absmax: int, table: int,
    out: int, _lda: int, _ldb: int, _ldc: int, block: int, _stream: int,
) -> _Run:  # fmt: skip
    count = columns * inner
    factor, weights = values_at(given, dtype, 1, inner), values_at(packed, _BYTE, _blocks(count, 2))
    maxima, levels = values_at(absmax, _FLOAT, _blocks(count, block)), values_at(table, _FLOAT, 16)
    result = values_at(out, dtype, 1, columns)

    def run() -> None:  # bitsandbytes' operator for the CPU reads another layout where the processor has AVX-512
        codes = torch.stack((weights >> 4, weights & 15), dim=-1).flatten()[:count]
        scales = maxima.repeat_interleave(block)[:count]
        dequantized = (levels[codes.long()] * scales).to(dtype).view(columns, inner)
        result.copy_(torch.nn.functional.linear(factor, dequantized))

    return run


def _multiply_int8(
    _context: object, inner: int, rows: int, columns: int, weights: int, given: int, out: int, _scale: int, *_rest: int
) -> _Run:
    left, right = values_at(given, torch.int8, rows, inner), values_at(weights, torch.int8, columns, inner)
    result = values_at(out, torch.int32, rows, columns)
    return lambda: result.copy_(_operator("int8_linear_matmul")(left, right))


def _dequantize_product(
    given: int, row_stats: int, column_stats: int, out: int, bias: int, rows: int, columns: int, _stream: int
) -> _Run:
    source, result = values_at(given, torch.int32, rows, columns), values_at(out, torch.float16, rows, columns)
    of_rows, of_columns = values_at(row_stats, _FLOAT, rows), values_at(column_stats, _FLOAT, columns)
    added = values_at(bias, torch.float16, columns) if bias else None
    return lambda: result.copy_(_operator("int8_mm_dequant")(source, of_rows, of_columns, torch.float16, added))


def _quantize_rows(
    given: int, out: int, row_stats: int, threshold: float, rows: int, columns: int, _stream: int
) -> _Run:
    source, result = values_at(given, torch.float16, rows, columns), values_at(out, torch.int8, rows, columns)
    of_rows = values_at(row_stats, _FLOAT, rows)

    def run() -> None:
        found, largest, _ = _operator("int8_vectorwise_quant")(source, threshold)
        result.copy_(found)
        of_rows.copy_(largest)

    return run


def _update_32bit(
    name: str, dtype: torch.dtype, gradient: int, parameter: int, state1: int, state2: int, norm: int,
    most_norm: float, *numbers: Any,
) -> _Run:  # fmt: skip
    *rest, count = numbers
    tensors = (
        values_at(gradient, dtype, count), values_at(parameter, dtype, count),
        values_at(state1, _FLOAT, *_shape_of_state(name, count)), values_at(state2, _FLOAT, count) if state2 else None,
        values_at(norm, _FLOAT, 1) if norm else None,
    )  # fmt: skip
    return lambda: _operator("optimizer_update_32bit")(name, *tensors, most_norm, *rest)


def _update_8bit(
    name: str, dtype: torch.dtype, parameter: int, gradient: int, state1: int, state2: int, beta1: float, beta2: float,
    beta3: float, alpha: float, eps: float, step: int, rate: float, levels1: int, levels2: int, absmax1: int,
    absmax2: int, decay: float, scale: float, skip_zeros: bool, count: int,
) -> _Run:  # fmt: skip
    has_second, blocks = name in _TWO_STATES, _blocks(count, _BLOCK)
    tensors = (
        values_at(gradient, dtype, count), values_at(parameter, dtype, count),
        values_at(state1, _BYTE, *_shape_of_state(name, count)),
        values_at(state2, _BYTE, count) if has_second else None,
    )  # fmt: skip
    quantization = (
        values_at(levels1, _FLOAT, 256), values_at(levels2, _FLOAT, 256) if has_second else None,
        values_at(absmax1, _FLOAT, *_shape_of_state(name, blocks)),
        values_at(absmax2, _FLOAT, blocks) if has_second else None,
    )  # fmt: skip
    return lambda: _operator("optimizer_update_8bit_blockwise")(
        name, *tensors, beta1, beta2, beta3, alpha, eps, step, rate, *quantization, decay, scale, skip_zeros
    )


def _shape_of_state(name: str, count: int) -> tuple[int, ...]:
    return (2, count) if name == "ademamix" else (count,)


def _fill(dtype: torch.dtype, out: int, _other: int, value: float, count: int) -> _Run:
    return partial(values_at(out, dtype, count).fill_, value)


def _functions() -> dict[str, LibraryFunction]:
    made = {
        "cigemmlt_32": LibraryFunction((6,), _multiply_int8),
        "cdequant_mm_int32_fp16": LibraryFunction((3,), _dequantize_product),
        "cint8_vector_quant": LibraryFunction((1, 2), _quantize_rows),
        "cfill_fp32": LibraryFunction((0,), partial(_fill, _FLOAT)),
        "cfill_uint8": LibraryFunction((0,), partial(_fill, _BYTE)),
    }
    for short, dtype in _TYPES.items():
        for code in ("", *_CODES):
            name = f"blockwise_{short}" + (f"_{code}" if code else "")
            made[f"cquantize_{name}"] = LibraryFunction((2, 3), partial(_quantize, dtype, code))
            made[f"cdequantize_{name}"] = LibraryFunction((3,), partial(_dequantize, dtype, code))
        made[f"cgemm_4bit_{short}"] = LibraryFunction((6,), partial(_multiply_4bit, dtype))
        made[f"cgemm_4bit_inference_naive_{short}"] = LibraryFunction((7,), partial(_multiply_vector_4bit, dtype))
    for name in _OPTIMIZERS:
        for short, dtype in _TYPES_OF_GRADIENTS.items():
            made[f"c{name}32bit_grad_{short}"] = LibraryFunction((1, 2, 3, 4), partial(_update_32bit, name, dtype))
            update = partial(_update_8bit, name, dtype)
            made[f"c{name}_8bit_blockwise_grad_{short}"] = LibraryFunction((0, 2, 3, 13, 14), update)
    return made


FUNCTIONS = _functions()

# Functions that compute no values of tensors.
HOST_FUNCTIONS: dict[str, Callable[..., int]] = {
    "get_context": lambda: 0,
    "cget_managed_ptr": allocate_managed,
    "cprefetch": lambda *_: 0,
}
