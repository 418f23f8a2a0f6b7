"""DDP, FSDP and collective operations of several processes, each with emulated devices."""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from support.ranks import free_ports, run_ranks  # noqa: E402 -- of tests that need PyTorch

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above
from forebay.interop.torch.kernels import collectives  # noqa: E402 -- as above
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above


def train(model, x):
    """Return the loss of the last of three steps."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


PROGRAM = (
    inspect.getsource(train)
    + r"""
import json, os, sys, torch, forebay
import torch.distributed as dist
from torch import nn
import torch.distributed.fsdp
from forebay.interop.torch import patch

rank, ports = int(os.environ["RANK"]), iter(sys.argv[1:])

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).cuda()

def wrapped(kind):
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(build(), device_ids=[rank])
    if kind == "fsdp1":
        return torch.distributed.fsdp.FullyShardedDataParallel(build(), device_id=rank)
    model = build()
    for each in (model[0], model[2], model):
        torch.distributed.fsdp.fully_shard(each)
    return model

def run(kind, mode):
    torch.cuda.set_device(rank)
    os.environ["MASTER_PORT"] = next(ports)
    dist.init_process_group("nccl")
    torch.manual_seed(100)
    x = torch.randn(8, 16, device="cuda").chunk(2)[rank]
    loss = train(wrapped(kind), x)
    gathered = [torch.zeros(1, device="cuda") for _ in range(2)]
    total = loss.reshape(1).clone()
    dist.all_gather(gathered, total)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    dist.broadcast(total, 0)
    dist.barrier()
    found = {"peak": torch.cuda.max_memory_allocated(), "now": torch.cuda.memory_allocated()}
    if mode == "compute":
        found["loss"] = total.item() / 2
        assert abs(sum(each.item() for each in gathered) - total.item()) < 1e-6
    dist.destroy_process_group()
    return found

results = {}
for kind in ("ddp", "fsdp1", "fsdp2"):
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", count=2, profile="h100"), patch(mode):
            results[f"{kind} {mode}"] = run(kind, mode)
print(json.dumps(results))
"""
)


@pytest.fixture(scope="module")
def ranks():
    """The peak, the memory and the loss of each rank, by kind and mode."""
    return run_ranks("-c", PROGRAM, *free_ports(6))


def single_process():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).cuda()
    torch.manual_seed(100)
    x = torch.randn(8, 16, device="cuda")
    return train(model, x).item()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("kind", ["ddp", "fsdp1", "fsdp2"])
def test_two_processes_train_as_one(ranks, emulated, kind):
    computed, shapes = ([each[f"{kind} {mode}"] for each in ranks] for mode in ("compute", "shapes"))
    assert [each["loss"] for each in computed] == pytest.approx([single_process()] * 2, rel=1e-4)
    assert [each["peak"] for each in shapes] == [each["peak"] for each in computed]
    assert [each["now"] for each in shapes] == [each["now"] for each in computed]


WORLD = 8


def train_one_rank(wrap):
    """Return the bytes of the model, and of what a rank holds after steps, without workspaces."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
    whole = torch.cuda.memory_allocated()
    model = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(4, 512, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    del x
    torch._C._cuda_clearCublasWorkspaces()
    return whole, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def shard(model):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def replicate(model):
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])


@contextmanager
def fake_group():
    """Create a group of eight ranks, of which one exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=3, world_size=WORLD, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def in_a_fake_group(wrap):
    """Return what `train_one_rank` does for a rank of a fake group."""
    found = []
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="a100"), patch(mode), fake_group():
            found.append(train_one_rank(wrap))
    assert found[0] == found[1]
    return found[0]


def test_fsdp_rank_holds_its_share_in_a_fake_group():
    whole, held, peak = in_a_fake_group(shard)
    assert 3 * whole // WORLD <= held < 3.1 * whole // WORLD  # parameters and two states of the optimizer
    assert peak < 1.5 * whole + (32 << 20)  # some layers at a time, and workspaces


def test_ddp_rank_holds_the_whole_model_in_a_fake_group():
    whole, held, _ = in_a_fake_group(replicate)
    assert 4 * whole <= held < 4.1 * whole  # parameters, two states of the optimizer, and the buckets of gradients


class Branches(torch.nn.Module):
    """A module that does not use all of its parameters."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_ddp_finds_unused_parameters(request, mode, option):
    request.getfixturevalue(mode)
    with fake_group():
        model = torch.nn.parallel.DistributedDataParallel(Branches().cuda(), device_ids=[0], **{option: True})
        for _ in range(3):
            model(torch.ones(2, 8, device="cuda")).sum().backward()
        assert model.module.used.weight.grad.is_cuda
        assert model.module.unused.weight.grad is None


def test_received_values_are_unknown_without_values(shapes_only):
    with fake_group():
        x = torch.tensor([1.0]).cuda()
        torch.distributed.send(x, 1)
        assert x.item() == 1
        torch.distributed.all_reduce(x)
        with pytest.raises(DataDependent):
            x.item()


@pytest.fixture
def one_rank(emulated, tmp_path, monkeypatch):
    """A group of one process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0"))
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_groups_have_the_backend_that_the_program_names(one_rank):
    assert torch.distributed.get_backend() == "nccl"
    assert torch.distributed.get_backend(torch.distributed.new_group([0], None, "gloo")) == "gloo"
    assert torch.distributed.get_backend(torch.distributed.new_group([0])) == "nccl"
    assert torch.cuda.nccl.version() >= (2, 10)
    total = torch.ones(2, device="cuda")
    torch.distributed.all_reduce(total)
    assert total.tolist() == [1, 1]


def test_results_of_work_are_tensors_of_the_device(one_rank):
    x = torch.ones(2, device="cuda")
    work = torch.distributed.all_reduce(x, async_op=True)
    assert work.get_future().value()[0] is x
    dropped = torch.distributed.all_reduce(torch.ones(2, device="cuda"), async_op=True).get_future().value()[0]
    assert (dropped.is_cuda, dropped.tolist()) == (True, [1, 1])


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # it has another name in PyTorch 2.13
def test_gathered_results_have_any_shape(one_rank):
    result = torch.empty(1, 1, 6, device="cuda")
    torch.distributed.all_gather_into_tensor(result, torch.arange(6.0, device="cuda").view(2, 3))
    assert result.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_futures_of_the_cpu_are_not_awaited(one_rank):
    work = torch.distributed.all_reduce(torch.ones(2), async_op=True)
    assert work not in collectives._of_device
    assert not work.get_future().wait()[0].is_cuda


@pytest.mark.parametrize("form", ["group", "mesh"])
def test_process_without_a_launcher_is_a_group_of_one_that_is_noted(emulated, form):
    for name in ("RANK", "WORLD_SIZE"):
        assert name not in os.environ
    if form == "group":
        torch.distributed.init_process_group("nccl", timeout=timedelta(seconds=20))
    else:
        torch.cuda.set_device(0)
        torch.distributed.init_device_mesh("cuda", (1,))
    try:
        assert (torch.distributed.get_rank(), torch.distributed.get_world_size()) == (0, 1)
        tensor = torch.ones(3, device="cuda")
        torch.distributed.all_reduce(tensor)
        assert tensor.tolist() == [1.0] * 3
        (noted,) = assumed_values.found()
        assert "test_collectives.py" in noted.line
        assert noted.text.startswith("a process group of one process, as RANK and WORLD_SIZE are not set")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("variables", "options"), [({"RANK": "0"}, {}), ({}, {"rank": 0}), ({}, {"world_size": 2})])
def test_group_that_is_partly_described_fails_as_without_emulation(emulated, monkeypatch, variables, options):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR) expected, but not set"):
        torch.distributed.init_process_group("nccl", **options)
