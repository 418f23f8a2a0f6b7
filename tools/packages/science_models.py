"""Packages for reinforcement learning, Gaussian processes, differential equations, metrics and explanations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from packages.program import program, train


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def learn(algorithm: str, place: str, environment: str, **options: Any) -> torch.Tensor:
    import stable_baselines3

    model = getattr(stable_baselines3, algorithm)("MlpPolicy", environment, device=place, seed=0, **options)
    model.learn(100)
    return sum(each.detach().square().sum() for each in model.policy.parameters())


READS = "each action is read"


@program("stable_baselines3 PPO", needs=("stable_baselines3",), reads_values=READS, on_gpu_only=True)
def ppo(place: str) -> torch.Tensor:
    return learn("PPO", place, "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2)


@program("stable_baselines3 DQN", needs=("stable_baselines3",), reads_values=READS, on_gpu_only=True)
def dqn(place: str) -> torch.Tensor:
    return learn("DQN", place, "CartPole-v1", learning_starts=20, buffer_size=200, exploration_initial_eps=0.05)


@program("stable_baselines3 SAC", needs=("stable_baselines3",), reads_values=READS, on_gpu_only=True)
def sac(place: str) -> torch.Tensor:
    return learn("SAC", place, "Pendulum-v1", learning_starts=90, buffer_size=200)


@program("gpytorch exact regression", needs=("gpytorch",))
def gaussian_process(place: str) -> torch.Tensor:
    import gpytorch

    class Regression(gpytorch.models.ExactGP):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, inputs: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.covariance(inputs))

    inputs = torch.linspace(0, 1, 20).to(place)
    targets = torch.sin(inputs * 6)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(place)
    model = Regression(inputs, targets, likelihood).to(place).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(2):
        optimizer.zero_grad()
        loss = -objective(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return loss.detach()


@program("torchdiffeq odeint_adjoint", needs=("torchdiffeq",))
def differential_equation(place: str) -> torch.Tensor:
    import torchdiffeq

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = small_network()

        def forward(self, _time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return self.network(state)

    field, times = Field().to(place), torch.linspace(0, 1, 5).to(place)
    states = torchdiffeq.odeint_adjoint(field, torch.ones(4, 8, device=place), times, method="rk4")
    loss = states.square().mean()
    loss.backward()
    return loss.detach()


@program("torchdiffeq odeint, adaptive steps", needs=("torchdiffeq",), reads_values="it chooses steps by errors")
def adaptive_equation(place: str) -> torch.Tensor:
    import torchdiffeq

    network = small_network().to(place)
    times = torch.linspace(0, 1, 2).to(place)
    states = torchdiffeq.odeint(lambda _time, state: network(state), torch.ones(4, 8, device=place), times)
    loss = states.square().mean()
    loss.backward()
    return loss.detach()


@program("captum IntegratedGradients", needs=("captum",))
def attributions(place: str) -> torch.Tensor:
    from captum.attr import IntegratedGradients

    model, given = small_network().to(place), torch.ones(4, 8, device=place)
    return IntegratedGradients(model).attribute(given, target=1, n_steps=4).square().mean()


@program("pytorch_metric_learning MultiSimilarityLoss", needs=("pytorch_metric_learning",))
def metric_learning(place: str) -> torch.Tensor:
    from pytorch_metric_learning import losses

    model, loss = small_network().to(place), losses.MultiSimilarityLoss()
    labels = (torch.arange(16) % 4).to(place)
    found = model(torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).to(place))
    value = loss(found, labels)
    value.backward()
    return value.detach()


@program("schedulefree AdamWScheduleFree", needs=("schedulefree",))
def without_schedule(place: str) -> torch.Tensor:
    import schedulefree

    model = small_network().to(place)
    optimizer, given = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-2), torch.ones(4, 8, device=place)
    optimizer.train()
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
    optimizer.eval()
    return loss.detach()


@program("torch_geometric SAGEConv, TopKPooling", reads_values="it keeps nodes by their scores")
def pooled_graph(place: str) -> torch.Tensor:
    from torch_geometric.nn import SAGEConv, TopKPooling, global_mean_pool

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.pool = SAGEConv(8, 16), TopKPooling(16, 0.5)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            kept = self.pool(self.layer(nodes, edges).relu(), edges, None, batch)
            return global_mean_pool(kept[0], kept[3])

    torch.manual_seed(0)
    nodes = torch.randn(8, 8)
    edges = torch.stack([torch.arange(8), (torch.arange(8) + 1) % 8])
    return train(Network(), [nodes, edges, torch.arange(8) // 4], place)


@program("torch_geometric RGCNConv, TransformerConv")
def relations(place: str) -> torch.Tensor:
    from torch_geometric.nn import RGCNConv, TransformerConv

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = RGCNConv(8, 16, 2), TransformerConv(16, 4, heads=2)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(nodes, edges, kinds).relu(), edges)

    torch.manual_seed(0)
    edges = torch.stack([torch.arange(8), (torch.arange(8) + 1) % 8])
    return train(Network(), [torch.randn(8, 8), edges, torch.arange(8) % 2], place)
