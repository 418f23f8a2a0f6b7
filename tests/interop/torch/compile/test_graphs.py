"""Programs that `torch.compile` traces on emulated devices, with the ledger, and plain on the CPU: the same graphs."""

from __future__ import annotations

import logging
import re
import warnings
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch import nn  # noqa: E402 -- as above
from torch.nn import functional as F  # noqa: E402, N812 -- as above, PyTorch's name for it
from torch.utils.checkpoint import checkpoint  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- as above

pytestmark = [  # deprecated functions that PyTorch itself calls
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, blocks=2, width=16, words=32):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(blocks))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Stopped(nn.Module):
    """A module with a graph break between two submodules, and one with a call of its own."""

    class Called(nn.Linear):
        def __call__(self, x):
            return super().__call__(x) * 2

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), self.Called(4, 4)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def tokens(device, length=8):
    return torch.arange(2 * length, device=device).view(2, length) % 32


def train(device, run, parameters, step=None, lengths=(8, 8, 8)):
    optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
    step = optimizer.step if step is None else step(optimizer)
    for length in lengths:
        run(tokens(device, length)).float().square().mean().backward()
        step()
        optimizer.zero_grad()


def module(device, backend, **options):
    net = Transformer().to(device)
    train(device, torch.compile(net, backend=backend, fullgraph=True, **options), net.parameters())


def module_itself(device, backend):
    net = Transformer().to(device)
    net.compile(backend=backend, fullgraph=True)
    train(device, net, net.parameters())


def function(device, backend):
    net = Transformer().to(device)
    train(device, torch.compile(lambda x: net(x) * 2, backend=backend, fullgraph=True), net.parameters())


def each_block(device, backend):
    net = Transformer().to(device)
    net.blocks = nn.ModuleList(torch.compile(each, backend=backend, fullgraph=True) for each in net.blocks)
    train(device, net, net.parameters())


def each_block_itself(device, backend):
    net = Transformer().to(device)
    for each in net.blocks:
        each.compile(backend=backend, fullgraph=True)
    train(device, net, net.parameters())


def sizes(device, backend):
    net = Transformer().to(device)
    train(device, torch.compile(net, backend=backend), net.parameters(), lengths=(4, 6, 10))


def dynamic_sizes(device, backend):
    net = Transformer().to(device)
    run = torch.compile(net, backend=backend, dynamic=True, fullgraph=True)
    train(device, run, net.parameters(), lengths=(4, 6, 10))


def checkpoints(device, backend):
    net = Transformer().to(device)

    def run(x):
        x = net.words(x)
        for block in net.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    train(device, torch.compile(run, backend=backend, fullgraph=True), net.parameters())


def optimizer_step(device, backend):
    net = Transformer().to(device)
    train(device, net, net.parameters(), lambda each: torch.compile(each.step, backend=backend))


def whole_step(device, backend):
    net = Transformer().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True)

    @torch.compile(backend=backend)
    def step(x):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step(tokens(device))


def hooks_of_the_program(device, backend):
    net = Transformer().to(device)
    net.blocks[0].register_forward_hook(lambda _, __, result: result * 2)
    net.blocks[1].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    train(device, torch.compile(net, backend=backend, fullgraph=True), net.parameters())


def breaks(device, backend):
    net = Stopped().to(device)
    run = torch.compile(net, backend=backend)
    for _ in range(2):
        run(torch.ones(2, 4, device=device)).sum().backward()


def evaluation(device, backend):
    net = Transformer().to(device).eval()
    run = torch.compile(net, backend=backend, fullgraph=True)
    with torch.no_grad():
        run(tokens(device))
    with torch.inference_mode():
        run(tokens(device))
    run(tokens(device))


def mixed_precision(device, backend):
    net = Transformer().to(device)
    run = torch.compile(net, backend=backend, fullgraph=True)

    def autocast(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            return run(x)

    train(device, autocast, net.parameters())


def convolutions(device, backend):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    ).to(device)
    run = torch.compile(net, backend=backend, fullgraph=True)
    for _ in range(3):
        run(torch.ones(2, 3, 8, 8, device=device)).sum().backward()


def own_function(device, backend):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            return gradient * 3 * x**2

    weight = torch.ones(4, device=device, requires_grad=True)
    run = torch.compile(lambda x: Cube.apply(x * weight).sum(), backend=backend, fullgraph=True)
    for _ in range(2):
        run(torch.ones(4, device=device)).backward()


def transforms(device, backend):
    net = nn.Linear(4, 1).to(device)
    weights = dict(net.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(net, weights, (x,)).sum()

    run = torch.compile(torch.func.vmap(torch.func.grad(loss), (None, 0)), backend=backend, fullgraph=True)
    run({name: each.detach() for name, each in weights.items()}, torch.ones(3, 4, device=device))


def control_flow(device, backend):
    def run(x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    torch.compile(run, backend=backend, fullgraph=True)(torch.ones(4, device=device))


def exported(device, backend):
    net = Transformer().to(device)
    for strict in (False, True):
        backend(torch.export.export(net, (tokens(device),), strict=strict).graph_module, ())


def quantities(device, backend):
    """Numbers of the program that change: recompilations until they are symbols."""
    run = torch.compile(lambda x, n, s: x * n + s, backend=backend)
    for n, s in ((2, 0.5), (3, 0.25), (4, 0.125)):
        run(torch.ones(4, device=device), n, s)


PROGRAMS = {
    each.__name__: each
    for each in (
        module, module_itself, function, each_block, each_block_itself, sizes, dynamic_sizes, checkpoints,
        optimizer_step, whole_step, hooks_of_the_program, breaks, evaluation, mixed_precision, convolutions,
        own_function, transforms, control_flow, exported, quantities,
    )
}  # fmt: skip


class Traced(NamedTuple):
    """Graphs of a program, graph breaks and warnings."""

    graphs: list[str]
    breaks: int
    warnings: list[str]


@contextmanager
def session():
    """Emulate devices as `forebay run` does."""
    with ExitStack() as undo:
        undo.enter_context(forebay.emulate("cuda", 1, profile="h100"))
        running = TorchSession("shapes")
        undo.callback(running.stop)
        running.start()
        yield


def traced(device, program, caplog):
    """Run a program, and return what Dynamo has traced, with the device's name as that of the CPU."""
    graphs = []

    def backend(graph, _):
        graphs.append(re.sub(r"cuda(:0)?", "cpu", graph.code))
        return graph.forward

    torch.manual_seed(0)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    torch._logging._internal.warning_once.cache_clear()
    caplog.clear()
    with warnings.catch_warnings(record=True) as found, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        program(device, backend)
    said = [str(each.message) for each in found if not issubclass(each.category, DeprecationWarning)]
    said += [each.getMessage() for each in caplog.records if "torch" in each.name]
    return Traced(graphs, sum(counters["graph_break"].values()), said)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_traced_as_without_forebay(name, caplog):
    plain = traced("cpu", PROGRAMS[name], caplog)
    with session():
        emulated = traced("cuda", PROGRAMS[name], caplog)
    assert plain.graphs
    assert emulated == plain
