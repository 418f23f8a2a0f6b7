"""The mode without values: the memory is that of the mode with values, and reads of values are refused."""

from __future__ import annotations

import pprint

import pytest

import forebay

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch import nn  # noqa: E402 -- as above

from forebay.interop.torch import patch  # noqa: E402 -- needs torch
from forebay.interop.torch.devices.emulated_memory import explain_host_error  # noqa: E402 -- needs torch
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- needs torch


def train(steps=2):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, 64), layer, nn.Linear(64, 100)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(steps):
        tokens = torch.randint(0, 100, (4, 16), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def history(mode):
    with forebay.emulate("cuda", profile="h100"), patch(mode):
        torch.cuda.memory._record_memory_history(stacks="python")
        train()
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.memory._record_memory_history(enabled=None)
    return peaks, [(entry["size"], entry["stream"]) for entry in trace if entry["action"] == "alloc"]


def test_allocations_are_those_of_the_mode_with_values():
    assert history("shapes") == history("compute")


READS = {
    ".item()": lambda x: x.sum().item(),
    "a copy to the CPU": lambda x: x.cpu(),
    "nonzero()": lambda x: x.nonzero(),
    "index()": lambda x: x[x > 0],
    "torch.equal": lambda x: torch.equal(x, x),
}


def test_read_by_a_package_names_the_line_of_the_program_too(shapes_only, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "reads_a_value.py").write_text(
        "def read(x):\n    return helper(x)\ndef helper(x):\n    return x.item()\n"
    )
    monkeypatch.syspath_prepend(folder)
    import reads_a_value

    with pytest.raises(DataDependent) as caught:
        reads_a_value.read(torch.ones(1, device="cuda") * torch.randn(1, device="cuda"))  # the line
    inner, outer = str(caught.value).split(", called by ")
    assert inner.endswith("reads_a_value.py:4: return x.item()")
    assert "test_values.py:" in outer
    assert ": reads_a_value.read(" in outer
    assert "# the line. Skip this line" in outer


def test_read_by_the_standard_library_names_the_line_of_the_program_too(shapes_only):
    with pytest.raises(DataDependent) as caught:
        pprint.pformat([torch.randn(2, device="cuda")])
    inner, outer = str(caught.value).split(", called by ")
    assert "pprint.py:" in inner
    assert "test_values.py:" in outer


@pytest.mark.parametrize("what", READS)
def test_read_of_a_value_names_the_line(shapes_only, what):
    x = torch.randn(3, device="cuda")
    with pytest.raises(DataDependent) as caught:
        READS[what](x)
    assert str(caught.value).startswith(
        f"{what} needs the values of a tensor, which are not computed with shapes only: "
    )
    assert "test_values.py:" in str(caught.value)
    assert "run with --compute (mode='compute')" in str(caught.value)


def test_values_are_unknown_after_a_storage_was_freed(shapes_only):
    x = torch.zeros(2, device="cuda")
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(8)
    with pytest.raises(DataDependent):
        x.tolist()


def test_a_model_larger_than_the_host_uses_no_memory():
    with forebay.emulate("cuda", profile="h100", memory="4TiB"), patch("shapes"):
        weights = [torch.empty(1 << 38, dtype=torch.uint8, device="cuda").fill_(1) for _ in range(8)]
        product = weights[0] + weights[1]
        assert torch.cuda.memory_allocated() == 9 << 38
        assert product.shape == (1 << 38,)


TOO_LARGE = {  # results of 256 TiB, more than the addresses of a process
    "product": lambda x: x[:, None] * x,
    "matrix": lambda x: x[:, None] @ x[None],
    "sum of lists": lambda x: torch._foreach_add([x.expand(1 << 23, 1 << 23)], 1)[0],
    "softmax": lambda x: x.expand(1 << 23, 1 << 23).softmax(1),
    "factory": lambda x: torch.zeros(1 << 46, device="cuda"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_results_that_fit_neither_host_nor_device_have_the_error_of_the_device(emulated, name):
    x = torch.ones(1 << 23, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 262144\.00 GiB\. GPU 0 has a total capacity"):
        TOO_LARGE[name](x)
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert torch.cuda.memory_allocated() == x.nbytes


def test_results_that_fit_the_device_but_not_the_host_name_the_other_mode(emulated):
    text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1024 bytes. Error code 12"
    with pytest.raises(MemoryError, match=r"the host has no memory for 1\.00 KiB of values: .* \(mode='shapes'\)"):
        explain_host_error(RuntimeError(text), torch.device("cuda:1"))
    explain_host_error(RuntimeError("another error"), torch.device("cuda:1"))
    assert torch.cuda.memory_allocated(1) == 0


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, fused=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.1), fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_optimizers_need_no_values(name):
    peaks = []
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="h100"), patch(mode):
            parameter = nn.Parameter(torch.randn(1000, device="cuda"))
            optimizer = OPTIMIZERS[name]([parameter])
            for _ in range(2):
                parameter.sum().backward()
                optimizer.step()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]


def test_lazy_modules_are_moved(shapes_only):
    assert nn.LazyLinear(4).to("cuda")(torch.ones(2, 3, device="cuda")).shape == (2, 4)
