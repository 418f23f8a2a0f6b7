"""Matrix products, by which the workspaces of cuBLAS and cuBLASLt are seen; handles of other streams and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu.operator_calls.call import Call, Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]


def _mm(
    kit: Kit, rows: int, inner: int, columns: int, dtype: str = "float32", layouts: Sequence[str] = ("", ""),
    result: str = "", given: bool = False,
) -> Run:  # fmt: skip
    torch = kit.torch
    one = kit.tensor([rows, inner], dtype, layout=layouts[0])
    other = kit.tensor([inner, columns], dtype, layout=layouts[1])
    if result:
        return lambda: torch.mm(one, other, out_dtype=kit.dtype(result))
    if given:
        out = torch.empty(rows, columns, dtype=one.dtype, device=kit.device)
        return lambda: torch.mm(one, other, out=out)
    return lambda: torch.mm(one, other)


def _bmm(
    kit: Kit, matrices: int, rows: int, inner: int, columns: int, dtype: str = "float32",
    layouts: Sequence[str] = ("", ""), added: bool = False,
) -> Run:  # fmt: skip
    torch = kit.torch
    one = kit.tensor([matrices, rows, inner], dtype, layout=layouts[0])
    other = kit.tensor([matrices, inner, columns], dtype, layout=layouts[1])
    if added:
        bias = kit.tensor([matrices, rows, columns], dtype)
        return lambda: torch.baddbmm(bias, one, other)
    return lambda: torch.bmm(one, other)


def _addmm(
    kit: Kit, rows: int, inner: int, columns: int, dtype: str = "float32", bias: str = "vector", beta: float = 1.0,
    activation: str = "",
) -> Run:  # fmt: skip
    torch = kit.torch
    shape = {"vector": [columns], "matrix": [rows, columns], "column": [rows, 1], "number": []}[bias]
    added = kit.tensor(shape, dtype)
    one, other = kit.tensor([rows, inner], dtype), kit.tensor([inner, columns], dtype, layout="transposed")
    if activation:
        return lambda: torch.ops.aten._addmm_activation(added, one, other, use_gelu=activation == "gelu")
    return lambda: torch.addmm(added, one, other, beta=beta)


def _linear(
    kit: Kit, direction: str, shape: Sequence[int], columns: int, dtype: str = "float32", bias: bool = True,
    layout: str = "",
) -> Run | tuple[Any, Run]:  # fmt: skip
    functional = kit.torch.nn.functional
    backward = direction == "backward"
    given = kit.tensor(shape, dtype, layout=layout, grad=backward)
    weight = kit.tensor([columns, shape[-1]], dtype, grad=backward)
    added = kit.tensor([columns], dtype, grad=backward) if bias else None

    def forward() -> Any:
        return functional.linear(given, weight, added)

    return kit.backward(forward, [given, weight, *([] if added is None else [added])]) if backward else forward


def _vectors(kit: Kit, operator: str, rows: int, inner: int, dtype: str = "float32", layout: str = "") -> Run:
    torch = kit.torch
    vector = kit.tensor([inner], dtype)
    if operator in ("dot", "vdot"):
        other = kit.tensor([inner], dtype)
        return lambda: getattr(torch, operator)(vector, other)
    matrix = kit.tensor([rows, inner], dtype, layout=layout)
    if operator == "addmv":
        added = kit.tensor([rows], dtype)
        return lambda: torch.addmv(added, matrix, vector)
    return lambda: torch.mv(matrix, vector)


def _integers(kit: Kit, rows: int, inner: int, columns: int) -> Run:
    torch = kit.torch
    one, other = kit.tensor([rows, inner], "int8"), kit.tensor([inner, columns], "int8", layout="transposed")
    return lambda: torch._int_mm(one, other)


def _scaled(kit: Kit, rows: int, inner: int, columns: int, by_row: bool, bias: bool = False) -> Run:
    torch = kit.torch
    one = kit.tensor([rows, inner], "float8_e4m3fn")
    other = kit.tensor([inner, columns], "float8_e4m3fn", layout="transposed")
    scales = [kit.tensor(shape) for shape in (([rows, 1], [1, columns]) if by_row else ([], []))]
    added = kit.tensor([columns], "bfloat16") if bias else None
    return lambda: torch._scaled_mm(one, other, *scales, bias=added, out_dtype=torch.bfloat16)


def _grouped(kit: Kit, matrices: int, rows: int, inner: int, columns: int, dtype: str, flat: bool) -> Run:
    torch = kit.torch
    other = kit.tensor([matrices, columns, inner], dtype).transpose(-1, -2)
    if not flat:
        batch = kit.tensor([matrices, rows, inner], dtype)
        return lambda: torch._grouped_mm(batch, other)
    one = kit.tensor([matrices * rows, inner], dtype)
    offsets = torch.arange(rows, matrices * rows + 1, rows, dtype=torch.int32, device=kit.device)
    return lambda: torch._grouped_mm(one, other, offs=offsets)


def _composite(kit: Kit, operator: str, batch: int, rows: int, dtype: str = "float32") -> Run:
    torch = kit.torch
    one, other = kit.tensor([batch, rows, 64], dtype), kit.tensor([batch, rows, 64], dtype)
    if operator == "einsum":
        return lambda: torch.einsum("bik,bjk->bij", one, other)
    if operator == "matmul broadcast":
        matrix = kit.tensor([batch, 1, 64, 32], dtype)
        return lambda: torch.matmul(one, matrix)
    if operator == "tensordot":
        return lambda: torch.tensordot(one, other, dims=([0, 1], [0, 1]))
    if operator == "addbmm":
        added = kit.tensor([rows, rows], dtype)
        return lambda: torch.addbmm(added, one, other.transpose(1, 2))
    if operator == "bilinear":
        weight = kit.tensor([16, 64, 64], dtype)
        return lambda: torch.nn.functional.bilinear(one, other, weight)
    if operator == "kron":
        small = kit.tensor([8, 8], dtype)
        return lambda: torch.kron(one[0], small)
    if operator == "chain":
        return lambda: torch.linalg.multi_dot([one[0], other[0].t(), one[0]])
    return lambda: torch.matmul(one, other.transpose(1, 2))


def _first_uses(kit: Kit, what: str) -> Run | tuple[Any, Run]:
    torch = kit.torch
    one = kit.tensor([64, 64], grad="backward" in what)
    if what == "nothing":
        return lambda: None
    if what == "empty":
        return lambda: torch.empty(1, device=kit.device)
    if what == "cuBLAS":
        return lambda: torch.mm(one, one)
    if what == "cuBLASLt":
        bias = kit.tensor([64])
        return lambda: torch.addmm(bias, one, one)
    if what == "cuBLAS, then cuBLASLt":
        bias = kit.tensor([64])
        return lambda: (torch.mm(one, one), torch.addmm(bias, one, one))
    if what == "cuBLASLt, then cuBLAS":
        bias = kit.tensor([64])
        return lambda: (torch.addmm(bias, one, one), torch.mm(one, one))
    if what == "cuBLAS on two other streams":
        first, second = (torch.cuda.Stream() for _ in range(2))

        def on_both() -> Any:
            found = []
            for stream in (first, second, first):
                with torch.cuda.stream(stream):
                    found.append(torch.mm(one, one))
            return found

        return on_both
    return kit.backward(lambda: torch.mm(one, one), [one])


_SHAPES: list[dict[str, Any]] = [
    {"rows": rows, "inner": inner, "columns": columns}
    for rows, inner, columns in (
        (1024, 1024, 1024), (8192, 768, 3072), (64, 65536, 64), (1, 4096, 4096), (4096, 4096, 11008), (128, 128, 128),
        (16, 4096, 14336), (7, 13, 5), (2048, 50257, 768), (1, 1, 1), (8, 1_000_000, 8),
    )
]  # fmt: skip
_MM: list[dict[str, Any]] = [
    *({**shape, "dtype": dtype} for shape in _SHAPES[:8] for dtype in ("float32", "bfloat16", "float16")),
    *_SHAPES[8:],
    *({**_SHAPES[0], "dtype": dtype} for dtype in ("float64", "complex64")),
    *(
        {**_SHAPES[0], "layouts": layouts}
        for layouts in (["transposed", ""], ["", "transposed"], ["sliced", ""], ["", "sliced"], ["sliced", "sliced"])
    ),
    {**_SHAPES[0], "dtype": "bfloat16", "result": "float32"},
    {**_SHAPES[0], "given": True},
]
_BMM: list[dict[str, Any]] = [
    {"matrices": 96, "rows": 256, "inner": 64, "columns": 256, **each}
    for each in (
        {}, {"dtype": "float16"}, {"layouts": ["", "transposed"]}, {"layouts": ["sliced", ""]}, {"added": True},
        {"matrices": 1}, {"dtype": "bfloat16", "rows": 1}, {"dtype": "float64"}, {"inner": 4096},
    )
]  # fmt: skip
_ADDMM: list[dict[str, Any]] = [
    {"rows": 4096, "inner": 768, "columns": 3072, **each}
    for each in (
        {}, {"dtype": "bfloat16"}, {"dtype": "float16"}, {"bias": "matrix"}, {"bias": "column"}, {"bias": "number"},
        {"beta": 0.5}, {"activation": "relu"}, {"activation": "gelu", "dtype": "bfloat16"}, {"activation": "gelu"},
        {"dtype": "float64"}, {"rows": 1}, {"columns": 1}, {"inner": 1}, {"rows": 64, "inner": 65536, "columns": 64},
        {"rows": 16, "inner": 4096, "columns": 4096, "dtype": "float16"},
    )
]  # fmt: skip
_LINEAR: list[dict[str, Any]] = [
    {"direction": direction, "shape": [8, 512, 768], "columns": 3072, **each}
    for each in (
        {}, {"dtype": "bfloat16"}, {"bias": False}, {"dtype": "float16", "shape": [64, 1024], "columns": 1000},
        {"shape": [768], "columns": 10}, {"layout": "transposed"}, {"shape": [2, 1, 4096], "dtype": "bfloat16"},
        {"shape": [32, 2048], "columns": 1}, {"dtype": "bfloat16", "bias": False, "columns": 50257},
    )
    for direction in ("forward", "backward")
]  # fmt: skip
_SQUARE = {"rows": 1024, "inner": 1024, "columns": 1024}
_FAMILY = "matrix products"

FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "mm", _mm, _MM),
                [
                    *calls_of(_FAMILY, "mm", _mm, [_SHAPES[0], _SHAPES[2]], tf32=True),
                    *calls_of(_FAMILY, "addmm", _addmm, _ADDMM[:2], tf32=True),
                    *calls_of(_FAMILY, "mm", _mm, [_SHAPES[0]], deterministic=True),
                    *calls_of(_FAMILY, "addmm", _addmm, _ADDMM[:2], blas="cublaslt"),
                    *calls_of(_FAMILY, "mm", _mm, [_SHAPES[0], {**_SHAPES[0], "dtype": "bfloat16"}], blas="cublaslt"),
                ],
                calls_of(_FAMILY, "bmm", _bmm, _BMM),
                calls_of(_FAMILY, "addmm", _addmm, _ADDMM),
                calls_of(_FAMILY, "linear", _linear, _LINEAR),
                [
                    *calls_of(_FAMILY, "scaled_mm", _scaled, crossed(**{k: [v] for k, v in _SQUARE.items()},
                                                                     by_row=[False, True])),
                    *calls_of(_FAMILY, "int_mm", _integers, [_SQUARE, {"rows": 32, "inner": 4096, "columns": 4096}]),
                    *calls_of(
                        _FAMILY, "grouped_mm", _grouped,
                        crossed(matrices=[8], rows=[256], inner=[512], columns=[1024], dtype=["bfloat16", "float16"],
                                flat=[True, False]),
                    ),
                    *calls_of(_FAMILY, "scaled_mm", _scaled, [{**_SQUARE, "by_row": False, "bias": True}]),
                ],
                [
                    *calls_of(_FAMILY, "vectors", _vectors,
                              crossed(operator=["mv", "addmv", "dot", "vdot"], rows=[1000], inner=[4096])),
                    *calls_of(_FAMILY, "vectors", _vectors, [
                        {"operator": "mv", "rows": 1000, "inner": 4096, "layout": "sliced"},
                        {"operator": "mv", "rows": 1000, "inner": 4096, "dtype": "bfloat16"},
                    ]),
                ],
                calls_of(_FAMILY, "composites", _composite, crossed(
                    operator=["matmul", "einsum", "matmul broadcast", "tensordot", "addbmm", "bilinear", "kron",
                              "chain"], batch=[16], rows=[128])),
            ]
        )
    ]
}  # fmt: skip
FIRST: list[Call] = calls_of("first uses", "first use of", _first_uses, crossed(what=[
    "nothing", "empty", "cuBLAS", "cuBLASLt", "cuBLAS, then cuBLASLt", "cuBLASLt, then cuBLAS",
    "cuBLAS on two other streams", "cuBLAS in the backward pass",
]))  # fmt: skip
