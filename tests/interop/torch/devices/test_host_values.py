"""Large tensors of the host without values: parameters, copies of them, and copies from the device."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import forebay  # noqa: E402 -- after the check
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices import host_values  # noqa: E402 -- needs torch
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above
from forebay.interop.torch.kernels.known_values import known_values  # noqa: E402 -- as above
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel"), reason="this PyTorch returns no kernels of the CPU"
)
ROWS, COLUMNS = 641, 513  # 1.3 MB of float32, and no multiple of 16
init = torch.nn.init


def empty(dtype=torch.float32):
    return torch.nn.Parameter(torch.empty(ROWS, COLUMNS, dtype=dtype))


@torch.no_grad()
def built(fill, dtype=torch.float32):
    parameter = empty(dtype)
    fill(parameter)
    return parameter


def of_a_linear_layer():
    layer = torch.nn.Linear(COLUMNS, ROWS)
    layer.weight.data.mul_(0.5)
    return layer.weight


def of_a_padded_embedding():
    return torch.nn.Embedding(ROWS, COLUMNS, padding_idx=3).weight


@torch.no_grad()
def of_another_state():
    one = of_a_linear_layer()
    other = copy.deepcopy(one)
    one.zero_()  # after the copy
    one[:600].add_(1)
    return torch.cat([one, other])


@torch.no_grad()
def of_averages():
    average, new = of_a_linear_layer(), of_a_linear_layer()
    for _ in range(70):
        average.mul_(0.9).add_(new, alpha=0.1)
    return average


@torch.no_grad()
def of_parts():
    made = built(init.normal_)
    made[:, 5] = 7.0
    made[2].copy_(torch.arange(COLUMNS))
    made[3:].clamp_(-0.5, 0.5)
    made[9:10] = made[8:9]
    made[20][made[20] > 0] = 3.0
    return made


BUILT = {
    "normal": lambda: built(lambda x: x.normal_(1, 2)),
    "normal float64": lambda: built(lambda x: x.normal_(1, 2), torch.float64),
    "normal bfloat16": lambda: built(lambda x: x.normal_(1, 2), torch.bfloat16),
    "uniform": lambda: built(lambda x: x.uniform_(-1, 3)),
    "uniform float64": lambda: built(lambda x: x.data.uniform_(-1, 3), torch.float64),
    "kaiming": lambda: built(init.kaiming_normal_),
    "xavier": lambda: built(init.xavier_uniform_),
    "truncated": lambda: built(lambda x: init.trunc_normal_(x, std=0.02)),
    "orthogonal": lambda: built(init.orthogonal_),
    "constant": lambda: built(lambda x: init.constant_(x, 3)),
    "zeros": lambda: built(lambda x: x.fill_(3).zero_()),
    "twice": lambda: built(lambda x: x.normal_().uniform_()),
    "of another generator": lambda: built(lambda x: x.normal_(generator=torch.Generator().manual_seed(3))),
    "linear": of_a_linear_layer,
    "half": lambda: of_a_linear_layer().half(),
    "transposed": lambda: of_a_linear_layer().t().contiguous(),
    "padded": of_a_padded_embedding,
    "changed after a copy": of_another_state,
    "averages": of_averages,
    "parts": of_parts,
}


@pytest.fixture
def shapes():
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        yield


@pytest.mark.parametrize("name", BUILT)
def test_values_are_those_of_a_run_with_values_when_they_are_read(name):
    torch.manual_seed(5)
    expected, drawn = BUILT[name](), torch.rand(3)
    torch.manual_seed(5)
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        made, then = BUILT[name](), torch.rand(3)
        assert made.detach().numpy().tolist() if made.dtype != torch.bfloat16 else made.tolist()
    assert torch.equal(made, expected)
    assert torch.equal(then, drawn)


def test_a_large_layer_needs_no_memory_of_the_host(shapes):
    if sys.platform != "linux":
        pytest.skip("pages are counted in /proc")

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    torch.nn.Linear(16, 16).cuda()  # what the first one needs
    before = resident()
    layer = torch.nn.Linear(8192, 8192)  # 256 MiB
    twice = copy.deepcopy(layer).half()
    layer.cuda()
    state = {name: each.cpu() for name, each in layer.state_dict().items()}
    layer.load_state_dict(state)
    twice.load_state_dict(state)
    assert resident() - before < 64 << 20
    assert torch.cuda.memory_allocated() >= 256 << 20


def test_weights_of_the_host_are_unknown_on_the_device(shapes):
    moved = of_a_linear_layer().cuda()
    assert known_values(moved) is None
    assert known_values(built(init.zeros_).cuda()) is not None


def test_copies_from_the_device_stay_unknown(shapes):
    assumed_values.clear()
    copied = torch.randn(ROWS, COLUMNS, device="cuda").cpu()
    average = torch.zeros(ROWS, COLUMNS)
    average.mul_(0.9).add_(copied.float(), alpha=0.1)
    assert known_values(copied.cuda()) is None
    assert known_values(average.cuda()) is None
    assert assumed_values.found() == ()  # nothing was read


def test_a_read_of_a_copy_is_an_assumption(shapes):
    assumed_values.clear()
    probabilities = torch.randn(ROWS, 512, device="cuda").softmax(-1).cpu()
    assert probabilities.clone()[2, 3].item() == 1 / 512
    assert "softmax" in assumed_values.found()[0].text


def test_a_copy_to_the_host_is_refused_in_the_strict_mode(shapes_only):
    with pytest.raises(DataDependent):
        torch.randn(ROWS, COLUMNS, device="cuda").cpu()


def test_pinned_copies_have_no_values(shapes):
    pinned = of_a_linear_layer().detach().pin_memory()
    assert known_values(pinned.cuda()) is None
    offloaded = torch.empty(ROWS, COLUMNS, pin_memory=True)
    offloaded.copy_(torch.randn(ROWS, COLUMNS, device="cuda"), non_blocking=True)
    assert known_values(offloaded.to("cuda", non_blocking=True)) is None


def test_data_of_the_host_has_values(shapes):
    torch.manual_seed(1)
    data = torch.randn(ROWS, COLUMNS)
    assert data.std() > 0.9
    assert not host_values.any_deferred()


def test_models_that_run_on_the_host_have_values(shapes):
    layer = torch.nn.Linear(COLUMNS, ROWS)
    assert layer(torch.ones(2, COLUMNS)).std() > 0
    optimizer = torch.optim.AdamW(layer.parameters())
    before = layer.weight[0, 0].item()
    layer(torch.ones(2, COLUMNS)).sum().backward()
    optimizer.step()
    assert layer.weight[0, 0].item() != before


def test_records_end_with_the_memory(shapes):
    of_a_linear_layer()
    assert not host_values.any_deferred()
