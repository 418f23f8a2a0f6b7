"""Categories of ordinary kinds of programs: parallelism, averages, checkpoints, caches, data. None of it is "other"."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

import torch.distributed as dist  # noqa: E402 -- after the test for PyTorch
from torch import nn  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- as above

MIB = 1 << 20


@pytest.fixture(params=["compute", "shapes"])
def session(request, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")  # so that small programs are not mostly workspaces
    with forebay.emulate("cuda", profile="rtx_4090", memory="1GiB"):
        found = TorchSession(request.param)
        found.start()
        yield found
        found.stop()


@pytest.fixture
def group():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def categories(session):
    (use,) = session.results()
    assert sum(each.nbytes for each in use.categories) == use.peak_allocated
    found = {each.name: each.nbytes for each in use.categories}
    assert found.get("other", 0) <= 0.05 * use.peak_allocated
    return found


def train(model, size=1024, count=3):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(count):
        model(torch.ones(16, size, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def layers():
    return nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 1024, bias=False)).cuda()


def test_fully_shard(session, group):
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    train(model)
    found = categories(session)
    assert found["parameters"] == 4 * MIB  # half of two layers
    assert found["optimizer state"] >= 2 * 4 * MIB
    assert found["gathered parameters"] >= 4 * MIB


def test_fully_sharded_data_parallel(session, group):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = layers()
    model = FullyShardedDataParallel(model, device_id=0)
    train(model)
    found = categories(session)
    assert found["parameters"] == 4 * MIB
    assert found["optimizer state"] >= 2 * 4 * MIB
    assert found["gathered parameters"] >= 8 * MIB


def test_distributed_data_parallel(session, group):
    train(nn.parallel.DistributedDataParallel(layers()))
    found = categories(session)
    assert found["parameters"] == 8 * MIB
    assert found["optimizer state"] >= 16 * MIB
    assert found["gradient buckets"] == 8 * MIB


def test_tensor_parallel(session, group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = layers()
    parallelize_module(model, init_device_mesh("cuda", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model)
    found = categories(session)
    assert found["parameters"] == 4 * MIB
    assert found["gradients"] == 4 * MIB
    assert found["optimizer state"] >= 2 * 4 * MIB


class Average:
    def __init__(self, model):
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}


def train_with_averages():
    """Hold the averages in a function, whose variables are gone at the end."""
    model = layers()
    kept = [
        Average(model), copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model),
        [each.detach().clone() for each in model.parameters()],
    ]  # fmt: skip
    train(model)
    assert len(kept) == 4


def test_averages_of_parameters(session):
    train_with_averages()
    found = categories(session)
    assert found["parameters"] == 8 * MIB
    assert found["copies of parameters"] == 4 * 8 * MIB


def test_frozen_and_shared_layers_are_parameters(session):
    model = layers()
    model[0].requires_grad_(False)
    train(model)
    found = categories(session)
    assert found["parameters"] == 8 * MIB
    assert "copies of parameters" not in found


def train_from_checkpoint(path):
    model = layers()
    torch.save(model.state_dict(), path)
    state = torch.load(path, map_location="cuda")
    model.load_state_dict(state)
    train(model)


def test_loaded_checkpoint_that_is_kept(session, tmp_path):
    if session.mode == "shapes":
        pytest.skip("values of tensors that are not computed are saved under `forebay run` only")
    train_from_checkpoint(tmp_path / "model.pt")
    found = categories(session)
    assert (found["parameters"], found["loaded checkpoints"]) == (8 * MIB, 8 * MIB)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 768, device="cuda")

    def forward(self, x, past=None):
        query, key, value = self.inner(x).chunk(3, -1)
        if past is not None:
            key, value = torch.cat([past[0], key], 1), torch.cat([past[1], value], 1)
        return nn.functional.scaled_dot_product_attention(query, key, value), (key, value)


@torch.inference_mode()
def decode(model, count):
    past, x = None, torch.ones(64, 64, 256, device="cuda")
    for _ in range(count):
        y, past = model(x, past)
        x = y[:, -1:]


def test_keys_and_values_of_earlier_calls(session):
    decode(Attention(), 8)
    found = categories(session)
    assert found["caches"] >= 2 * 64 * 64 * 256 * 4


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k_cache", torch.zeros(4 * MIB, device="cuda"))
        self.register_buffer("cos_cached", torch.zeros(MIB, device="cuda"))

    def forward(self, x):
        return x + 1


def test_buffers_that_are_caches(session):
    with torch.no_grad():
        Decoder()(torch.ones(1, device="cuda"))
    found = categories(session)
    assert (found["caches"], found["buffers"]) == (16 * MIB, 4 * MIB)


class Replay:
    def __init__(self):
        self.seen = torch.zeros(4 * MIB, device="cuda")


def explore(count):
    model, memory = nn.Linear(1024, 1024).cuda(), Replay()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for at in range(count):
        with torch.no_grad():
            action = model(torch.ones(1, 1024, device="cuda"))
        memory.seen[at] = action[0, 0]
        model(memory.seen[:1024]).sum().backward()
        optimizer.step()


def test_data_that_the_program_keeps(session):
    explore(4)
    found = categories(session)
    assert found.get("data", 0) + found.get("inputs", 0) == pytest.approx(16 * MIB, abs=64 << 10)


def test_keywords_of_a_module_are_inputs(session):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1024, 1024, device="cuda")

        def forward(self, *, x):
            return self.layer(x)

    x = torch.ones(4096, 1024, device="cuda")
    Model()(x=x).sum().backward()
    assert categories(session)["inputs"] == 16 * MIB
