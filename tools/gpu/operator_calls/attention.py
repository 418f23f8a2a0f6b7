"""Scaled dot product attention by backend, direction, type, mask and shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]

_BACKENDS = {
    "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH",
}  # fmt: skip


def _attend(
    kit: Kit, backend: str, direction: str, batch: int = 4, heads: int = 12, length: int = 1024, head: int = 64,
    dtype: str = "bfloat16", causal: bool = False, mask: str = "", dropout: float = 0.0, keys: int = 0, groups: int = 1,
    value_head: int = 0, by_time: bool = False,
) -> Run | tuple[Any, Run]:  # fmt: skip
    torch = kit.torch
    training = direction != "inference"
    keys = keys or length

    def made(number: int, count: int, width: int) -> Any:
        if by_time:  # as of a projection: the heads follow the time
            return kit.tensor([batch, count, number, width], dtype, grad=training).transpose(1, 2)
        return kit.tensor([batch, number, count, width], dtype, grad=training)

    query = made(heads, length, head)
    key, value = made(heads // groups, keys, head), made(heads // groups, keys, value_head or head)
    options: dict[str, Any] = {"is_causal": causal, "dropout_p": dropout}
    inputs = [query, key, value]
    if mask:
        shape = [1, 1, length, keys] if mask.startswith("one") else [batch, heads, length, keys]
        kind = "bool" if mask.endswith("bool") else dtype
        options["attn_mask"] = kit.tensor(shape, kind, grad=mask.endswith("learned"))
        if mask.endswith("learned"):
            inputs.append(options["attn_mask"])
    if groups > 1:
        options["enable_gqa"] = True
    functional = torch.nn.functional
    names = torch.nn.attention.SDPBackend

    def forward() -> Any:
        if backend == "default":
            return functional.scaled_dot_product_attention(query, key, value, **options)
        with torch.nn.attention.sdpa_kernel([getattr(names, _BACKENDS[backend])]):
            return functional.scaled_dot_product_attention(query, key, value, **options)

    return kit.backward(forward, inputs) if direction == "backward" else forward


def _module(kit: Kit, kind: str, direction: str, batch: int = 8, length: int = 128, dtype: str = "float32") -> Any:
    torch = kit.torch
    training = direction == "training"
    given = kit.tensor([batch, length, 256], dtype)
    if kind == "MultiheadAttention":
        module = kit.module(torch.nn.MultiheadAttention(256, 8, batch_first=True), dtype, training=training)
        run: Callable[[], Any] = lambda: module(given, given, given, need_weights=False)  # noqa: E731 -- one of two
    else:
        module = kit.module(torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), dtype, training=training)
        run = lambda: module(given)  # noqa: E731 -- one of two

    def infer() -> Any:
        with torch.no_grad():
            return run()

    return run if training else infer


def _packed(kit: Kit, backend: str, direction: str, lengths: Sequence[int], heads: int = 8, head: int = 64) -> Any:
    """Attention of sequences of different lengths, one after the other in memory."""
    torch = kit.torch
    total, longest = sum(lengths), max(lengths)
    query, key, value = (kit.tensor([total, heads, head], "bfloat16", grad=True) for _ in range(3))
    ends = torch.tensor([sum(lengths[:at]) for at in range(len(lengths) + 1)], dtype=torch.int32, device=kit.device)
    aten = torch.ops.aten

    def forward() -> Any:
        if backend == "flash":
            return aten._flash_attention_forward(
                query, key, value, ends, ends, longest, longest, 0.0, is_causal=True, return_debug_mask=False
            )[0]
        return aten._efficient_attention_forward(
            query[None], key[None], value[None], None, ends, ends, longest, longest, 0.0, 1, True
        )[0]

    return kit.backward(forward, [query, key, value]) if direction == "backward" else forward


_DIRECTIONS = ("inference", "training", "backward")
_EVERY = ("default", "flash", "efficient", "cudnn", "math")
_FIRST = [
    {"backend": backend, "direction": direction, **each}
    for each in ({"causal": True}, {"causal": True, "dtype": "float16", "head": 128, "heads": 16})
    for backend in _EVERY
    for direction in _DIRECTIONS
]
_SHAPES = [
    {"backend": backend, "direction": direction, **each}
    for each in (
        {"head": 80}, {"head": 40, "length": 4096, "batch": 2, "heads": 8}, {"head": 96}, {"head": 256, "heads": 4},
        {"head": 192, "heads": 4}, {"length": 77}, {"length": 1000, "by_time": True}, {"keys": 77, "length": 4096},
        {"head": 72}, {"head": 36}, {"length": 1, "keys": 4096, "batch": 1}, {"length": 7, "keys": 1000, "batch": 1},
        {"length": 128, "batch": 1, "keys": 128, "heads": 4},
        {"length": 8192, "batch": 1, "heads": 4, "causal": True},
        {"groups": 4, "heads": 32, "batch": 1, "causal": True, "head": 128},
        {"groups": 4, "heads": 32, "length": 1, "keys": 2048, "batch": 1, "head": 128},
        {"dropout": 0.1}, {"dropout": 0.1, "causal": True, "head": 128},
        {"value_head": 128, "head": 192, "heads": 4},
    )
    for backend in ("flash", "efficient", "cudnn")
    for direction in ("training", "backward")
    if not (each.get("length") == 1 and direction == "backward")
]  # fmt: skip
_FEW_QUERIES = [  # Flash Attention divides the keys if there are too few rows for all multiprocessors
    {"backend": backend, "direction": "inference", **each}
    for each in (
        {"length": 1, "keys": 1024, "batch": 8}, {"length": 64, "keys": 8192, "batch": 1, "heads": 8},
        {"length": 16, "keys": 2048, "batch": 1, "heads": 16, "head": 128}, {"length": 512, "batch": 1, "heads": 8},
        {"length": 1024, "batch": 1, "heads": 8, "head": 256}, {"length": 2048, "batch": 1, "heads": 2, "causal": True},
        {"length": 1, "keys": 300, "batch": 64, "heads": 32}, {"length": 1, "keys": 32_768, "batch": 1, "heads": 32},
        {"length": 1, "keys": 8192, "batch": 1, "heads": 32, "groups": 8, "head": 128},
    )
    for backend in ("flash", "default")
]  # fmt: skip
_MASKED = [
    {"backend": backend, "direction": direction, "mask": mask, **each}
    for each in ({}, {"dtype": "float32", "batch": 2}, {"length": 77})
    for mask in ("bool", "float", "one bool", "learned")
    for backend in ("efficient", "cudnn", "math")
    for direction in ("training", "backward")
    if not (backend == "cudnn" and (each.get("dtype") == "float32" or mask == "learned"))  # it refuses them
]
_SINGLE = [
    {"backend": backend, "direction": direction, "dtype": "float32", **each}
    for each in ({"causal": True}, {"head": 128, "batch": 2}, {"head": 32}, {"dropout": 0.1}, {"head": 160, "batch": 2})
    for backend in ("default", "math")
    for direction in _DIRECTIONS
]
_FAMILY = "attention"
_PACKED = {"lengths": [[100, 700, 33, 512]]}

FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "sdpa", _attend, _FIRST),
                calls_of(_FAMILY, "sdpa", _attend, _SHAPES),
                calls_of(_FAMILY, "sdpa", _attend, _FEW_QUERIES),
                calls_of(_FAMILY, "sdpa", _attend, _MASKED),
                calls_of(_FAMILY, "sdpa", _attend, _SINGLE),
                calls_of(_FAMILY, "sdpa", _attend, crossed(
                    backend=["flash", "efficient", "cudnn"], direction=["backward"], causal=[True]),
                    deterministic=True),
                calls_of(_FAMILY, "packed", _packed, crossed(
                    backend=["flash", "efficient"], direction=["training", "backward"], **_PACKED)),
                calls_of(_FAMILY, "module", _module, crossed(
                    kind=["MultiheadAttention", "TransformerEncoderLayer"], direction=["inference", "training"],
                    dtype=["float32", "float16"])),
            ]
        )
    ]
}  # fmt: skip
