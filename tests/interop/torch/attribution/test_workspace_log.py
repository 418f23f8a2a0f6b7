"""Workspaces that cuDNN may request: replays with them reserve what a run reserves that requests them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

import forebay  # noqa: E402 -- after the test for PyTorch
from forebay.interop.torch.devices.emulated_memory import allocate_bytes  # noqa: E402 -- as above
from forebay.interop.torch.kernels import convolution_workspaces  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- as above

MIB = 1 << 20
LARGEST = 2 * (8 * (3 + 16) * 64 * 64 + 16 * 3 * 9) * 4  # of the program `train`


@pytest.fixture
def session():
    with forebay.emulate("cuda", profile="t4"):
        found = TorchSession("shapes")
        found.start()
        yield found
        found.stop()


def model(*layers):
    return torch.nn.Sequential(*layers).cuda()


def train(steps=2, between=lambda: None):
    torch.ones(3 * MIB, device="cuda")
    layers = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 1)
    net = model(*layers)
    for _ in range(steps):
        between()
        net(torch.randn(8, 3, 64, 64, device="cuda", requires_grad=True)).sum().backward()


def most(session):
    return session.most_workspaces().get(0, 0)


def test_replay_reserves_what_a_run_with_the_requests_does(session):
    train()
    (use,) = session.results()
    found = use.peak_reserved + most(session)
    session.stop()
    torch.cuda.empty_cache()
    session.start()

    def request(opened, nbytes, is_forward):
        if not is_forward:
            allocate_bytes(opened, nbytes)  # which is freed at once

    convolution_workspaces.set_listener(request)
    train()
    (use,) = session.results()
    assert use.peak_reserved == found


@pytest.mark.parametrize(
    "layer",
    [torch.nn.Conv2d(16, 64, 1), torch.nn.Conv2d(16, 32, 3, groups=16), torch.nn.Linear(64, 64)],
    ids=["one element", "by channels", "no convolution"],
)
def test_other_layers_need_none(session, layer):
    model(layer)(torch.randn(8, 16, 64, 64, device="cuda")).sum().backward()
    assert most(session) == 0


def test_disabled_library_needs_none(session):
    with torch.backends.cudnn.flags(enabled=False):
        train()
    assert most(session) == 0


def test_forward_passes_count_where_nothing_else_does(session):
    net = model(torch.nn.Conv2d(3, 16, 3, padding=1))
    net(torch.randn(64, 3, 64, 64, device="cuda"))
    assert most(session) > 0


def test_evaluation_counts_beside_training(session):
    train()
    before = most(session)
    with torch.no_grad():
        model(torch.nn.Conv2d(3, 16, 3, padding=1))(torch.randn(64, 3, 64, 64, device="cuda"))
    (use,) = session.results()
    assert most(session) > before
    assert most(session) + use.peak_reserved > 8 * LARGEST


@pytest.mark.parametrize(
    "change",
    [torch.cuda.reset_accumulated_memory_stats, lambda: torch.cuda.memory._record_memory_history(max_entries=4)],
    ids=["counts", "history"],
)
def test_bound_is_the_largest_one_if_it_is_not_known_when_they_were_requested(session, change):
    train(between=change)
    assert most(session) == -(-LARGEST // (2 * MIB)) * 2 * MIB


def test_memory_that_is_left_is_the_most(session):
    train()
    free, _ = torch.cuda.mem_get_info()
    left = 6 * MIB
    held = torch.empty(free - left, dtype=torch.uint8, device="cuda")
    train(1)
    assert most(session) <= left
    del held
