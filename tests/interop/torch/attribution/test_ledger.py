"""Ledger of a PyTorch program: categories, modules and lines of what held the peak."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

import forebay  # noqa: E402 -- after the test for PyTorch
from forebay.interop.torch.attribution.results import CATEGORIES  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession, running  # noqa: E402 -- as above

MIB = 1 << 20


@pytest.fixture(params=["compute", "shapes"])
def session(request, monkeypatch):
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")  # as in versions before 2.15
    with forebay.emulate("cuda", profile="rtx_4090", memory="128MiB"):
        found = TorchSession(request.param)
        found.start()
        yield found
        found.stop()
    assert running() is None


def sizes(session):
    (use,) = session.results()
    names = [each.name for each in use.categories]
    assert names == sorted(names, key=CATEGORIES.index)
    assert sum(each.nbytes for each in use.categories) == use.peak_allocated
    return use, {each.name: each.nbytes for each in use.categories}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(512, 1024, bias=False, device="cuda")
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(2))
        self.register_buffer("scale", torch.ones(1024, 1024, device="cuda"))

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = torch.relu(layer(x)) * self.scale
        return x


def step(model, optimizer):
    x = torch.ones(1024, 512, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_categories_of_a_training_step(session):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(2):
        step(model, optimizer)
    use, found = sizes(session)
    parameters = 4 * (512 * 1024 + 2 * 1024 * 1024)
    assert found["parameters"] == parameters
    assert found["optimizer state"] == 2 * parameters
    assert found["buffers"] == 4 * MIB
    assert found["inputs"] == 2 * MIB
    assert found["activations"] == 5 * 4 * MIB + 512  # outputs of relu and of the products; the scale of the mean
    assert found["loss"] == 512
    assert use.phase == "backward"
    assert (use.ooms, use.events.ooms, use.events.is_used) == (0, 0, True)
    assert use.spare == 128 * MIB - use.peak_reserved
    modules = {each.name: each.nbytes for each in use.modules}
    assert {"Net.first", "Net.layers.0", "Net.layers.1", "Net"} <= set(modules)
    assert modules["Net.layers.0"] >= 3 * 4 * MIB  # weight and state
    assert any("test_ledger.py" in each.name and each.name.endswith("Net.forward") for each in use.lines)


def test_out_of_memory_in_the_first_step_is_attributed(session):
    model = Net()
    held = torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(torch.OutOfMemoryError):
        step(model, optimizer)
    use, found = sizes(session)
    assert use.events.failed > 0
    assert use.events.idle_since_oom
    assert use.ooms == 1
    assert found["parameters"] == 10 * MIB
    assert found["data"] == held.nbytes
    assert found["activations"] >= 8 * MIB


def test_peak_outside_training_is_inference(session):
    model = Net()
    with torch.no_grad():
        model(torch.ones(1024, 512, device="cuda"))
    use, found = sizes(session)
    assert use.phase == "forward"
    assert "activations" not in found
    assert "gradients" not in found
    assert found["temporaries"] == 12 * MIB


def test_recomputed_activations_are_a_category(session):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(3)))
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    _, found = sizes(session)
    assert found["recomputed activations"] == 2 * 4 * MIB  # the inputs of two layers
    assert found["workspaces"] >= 8 * MIB  # of cuBLAS


def test_program_without_modules_has_parameters_and_activations(session):
    weight = torch.ones(1 << 20, device="cuda", requires_grad=True)
    for _ in range(2):
        weight.exp().sum().backward()
    _, found = sizes(session)
    assert found["parameters"] == 4 * MIB
    assert found["gradients"] == 4 * MIB
    assert found["activations"] == 4 * MIB + 512
    assert found["loss"] == 512


def test_memory_of_a_long_program_is_that_of_its_live_tensors(session):
    for _ in range(200):
        torch.ones(1000, device="cuda")
    (use,) = session._ledger.devices.values()
    assert use.allocations >= 200
    assert len(use.live) == 0
    assert len([*use.at_peak()]) <= 2


class Equal(torch.nn.Linear):
    """A module that cannot be hashed or compared."""

    __hash__ = None

    def __eq__(self, other):
        raise AssertionError("compared")


def test_modules_without_a_hash_are_attributed(session):
    model = Equal(1024, 1024, bias=False, device="cuda")
    optimizer = torch.optim.SGD([model.weight], 0.1)  # parameters() hashes modules
    for _ in range(2):
        model(torch.ones(16, 1024, device="cuda")).sum().backward()
        optimizer.step()
    _, found = sizes(session)
    assert found["parameters"] == 4 * MIB


@pytest.mark.parametrize("flags", ["error", "ignore"])
@pytest.mark.filterwarnings("error")
def test_failing_walk_ends_no_program(session, monkeypatch, flags):
    import warnings

    from forebay.interop.torch.attribution import holders

    def fail(frame):
        raise RuntimeError(f"no walk of {frame}")

    monkeypatch.setattr(holders, "tensors_of_program", fail)
    with warnings.catch_warnings():
        warnings.simplefilter(flags)
        kept = torch.ones(16 * MIB, dtype=torch.uint8, device="cuda")
        _, found = sizes(session)
    assert sum(found.values()) == kept.nbytes
