"""Recurrent networks, which run in cuDNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from gpu.workloads.training import ADAM_FOR_LOOP, ADAMW, Recipe, training
from gpu.workloads.workload import Setting, Step, workload

VOCABULARY, WIDTH = 4096, 512


class Predictor(nn.Module):
    """An embedding, a recurrent network and logits."""

    def __init__(self, network: Any, width: int) -> None:
        super().__init__()
        self.embedding, self.network = nn.Embedding(VOCABULARY, WIDTH), network
        self.logits = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        return self.logits(self.network(self.embedding(tokens))[0])


def recurrent(setting: Setting, model: Any, recipe: Recipe) -> Step:
    model = model.to(setting.device)
    tokens = torch.randint(VOCABULARY, (setting.batch(32), setting.length(128) + 1), device=setting.device)

    def loss() -> Any:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return training(setting, model, loss, recipe)


@workload("lstm_fp32")
def lstm_fp32(setting: Setting) -> Step:
    network = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.1)
    return recurrent(setting, Predictor(network, WIDTH), Recipe(ADAM_FOR_LOOP, most_norm=1.0))


@workload("gru_bf16")
def gru_bf16(setting: Setting) -> Step:
    network = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
    return recurrent(setting, Predictor(network, WIDTH), Recipe(ADAMW, autocast="bf16"))
