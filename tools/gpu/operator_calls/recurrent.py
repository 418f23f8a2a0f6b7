"""Recurrent layers, which cuDNN computes as a whole, and their cells."""

from __future__ import annotations

from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, in_proportion

__all__ = ["FAMILIES"]


def _layers(
    kit: Kit, kind: str, direction: str, steps: int = 100, batch: int = 32, features: int = 256, hidden: int = 512,
    layers: int = 1, both_ways: bool = False, dropout: float = 0.0, dtype: str = "float32", packed: bool = False,
    batch_first: bool = False, projected: int = 0,
) -> Run | tuple[Any, Run]:  # fmt: skip
    torch = kit.torch
    options = {"proj_size": projected} if projected else {}
    made = getattr(torch.nn, kind)(
        features, hidden, layers, bidirectional=both_ways, dropout=dropout, batch_first=batch_first, **options
    )
    module = kit.module(made, dtype, training=direction != "inference")
    shape = [batch, steps, features] if batch_first else [steps, batch, features]
    given = kit.tensor(shape, dtype, grad=direction == "backward")
    lengths = torch.linspace(steps, max(1, steps // 4), batch).long()

    def forward() -> Any:
        if packed:
            used = torch.nn.utils.rnn.pack_padded_sequence(given, lengths, batch_first=batch_first)
            return module(used)[0].data
        return module(given)[0]

    if direction == "backward":
        return kit.backward(forward, [given, *module.parameters()])
    if direction == "training":
        return forward

    def infer() -> Any:
        with torch.no_grad():
            return forward()

    return infer


def _cell(kit: Kit, kind: str, direction: str, batch: int = 64, hidden: int = 512) -> Run | tuple[Any, Run]:
    torch = kit.torch
    module = kit.module(getattr(torch.nn, kind)(256, hidden))
    given = kit.tensor([batch, 256], grad=direction == "backward")

    def forward() -> Any:
        result = module(given)
        return result[0] if isinstance(result, tuple) else result

    return kit.backward(forward, [given, *module.parameters()]) if direction == "backward" else forward


_VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "float16"},
    {"layers": 2, "dropout": 0.2},
    {"both_ways": True},
    {"packed": True},
    {"steps": 1000, "batch": 8},
    {"batch_first": True, "layers": 2},
    {"dtype": "bfloat16"},
    {"hidden": 64, "features": 32, "batch": 1, "steps": 20},
    {"hidden": 1024, "layers": 4, "both_ways": True},
    {"projected": 128},
    {"dtype": "float64"},
)
_LAYERS = [
    {"kind": kind, "direction": direction, **each}
    for each in _VARIANTS
    for kind in ("LSTM", "GRU")
    for direction in ("training", "inference", "backward")
    if not (kind == "GRU" and "projected" in each)
]
_CELLS = [
    {"kind": kind, "direction": direction}
    for kind in ("LSTMCell", "GRUCell", "RNNCell")
    for direction in ("training", "backward")
]
_PLAIN = [{"kind": "RNN", "direction": each} for each in ("training", "inference", "backward")]

FAMILIES = {
    "recurrent layers": [
        *in_proportion(
            [
                calls_of("recurrent layers", "layers", _layers, [*_LAYERS, *_PLAIN]),
                calls_of("recurrent layers", "layers", _layers, _LAYERS[:6], cudnn=False),
                calls_of("recurrent layers", "cell", _cell, _CELLS),
            ]
        )
    ]
}
