"""Networks on graphs: of torch_geometric, and with plain sums by index."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from gpu.workloads.training import ADAMW, Recipe, training
from gpu.workloads.workload import Setting, Step, workload

FEATURES, WIDTH, CLASSES = 128, 256, 32


def random_graph(setting: Setting) -> tuple[Any, Any, Any]:
    """Return the features and the classes of nodes, and edges."""
    nodes = setting.batch(16384)
    edges = torch.randint(nodes, (2, 16 * nodes), device=setting.device)
    features = torch.randn(nodes, FEATURES, device=setting.device)
    return features, torch.randint(CLASSES, (nodes,), device=setting.device), edges


class SumOfNeighbors(nn.Module):
    """A layer that adds what its neighbors send."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__()
        self.own, self.sent = nn.Linear(one, other), nn.Linear(one, other, bias=False)

    def forward(self, x: Any, edges: Any) -> Any:
        sent = self.sent(x)
        return self.own(x) + torch.zeros_like(sent).index_add(0, edges[1], sent[edges[0]]) / 16


class Network(nn.Module):
    """Layers of one kind."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        widths = (FEATURES, WIDTH, WIDTH, CLASSES)
        self.layers = nn.ModuleList(layer(one, other) for one, other in pairwise(widths))

    def forward(self, x: Any, edges: Any) -> Any:
        for layer in self.layers[:-1]:
            x = F.dropout(F.relu(layer(x, edges)), 0.1, self.training)
        return self.layers[-1](x, edges)


def node_classification(setting: Setting, layer: Any) -> Step:
    model = Network(layer).to(setting.device)
    features, classes, edges = random_graph(setting)
    return training(setting, model, lambda: F.cross_entropy(model(features, edges), classes), Recipe(ADAMW))


@workload("graph_index_add")
def graph_index_add(setting: Setting) -> Step:
    return node_classification(setting, SumOfNeighbors)


@workload("graph_sage", packages=("torch_geometric",))
def graph_sage(setting: Setting) -> Step:
    from torch_geometric.nn import SAGEConv

    return node_classification(setting, SAGEConv)
