"""patch(): PyTorch's CUDA names answer from emulated devices, and PyTorch is itself again at the end."""

from __future__ import annotations

import threading

import pytest

import forebay
from forebay.errors import WrongState

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import forebay.interop.torch.attribution.ledger  # noqa: E402 -- needs torch
import forebay.interop.torch.compile.dynamo  # noqa: E402 -- needs torch
from forebay.interop.torch import is_patched, patch  # noqa: E402 -- needs torch
from forebay.interop.torch.devices import streams_of_engine  # noqa: E402 -- needs torch
from forebay.interop.torch.session import TorchSession, running  # noqa: E402 -- needs torch


def test_devices_and_memory_are_the_emulated_ones(emulated):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_name(1) == "NVIDIA H100 80GB HBM3 (emulated)"
    assert torch.cuda.get_device_capability() == (9, 0)
    tensor = torch.ones(1000, 1000, device="cuda")
    assert (tensor.device, type(tensor)) == (torch.device("cuda", 0), torch.Tensor)
    assert torch.cuda.memory_allocated() == forebay.cuda.memory_allocated() == 4_000_256
    assert tensor.data_ptr() in {
        block["address"] for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]
    }
    del tensor
    assert torch.cuda.memory_allocated() == 0


def test_accelerator_is_cuda(emulated):
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 2
    torch.accelerator.synchronize()


def test_out_of_memory_error_has_pytorchs_type_and_text(emulated):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(200 << 30, dtype=torch.uint8, device="cuda:1")
    text = str(caught.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 200.00 GiB. GPU 1 has a total capacity of 79.19 GiB")
    assert "by PyTorch, and 0 bytes is reserved by PyTorch but unallocated" in text
    assert "forebay" not in text


def test_full_device_keeps_what_it_has(emulated):
    kept = torch.ones(4, device="cuda")
    before = torch.cuda.memory_stats()
    with pytest.raises(torch.OutOfMemoryError):
        kept.expand(1 << 36, 4).contiguous()
    after = torch.cuda.memory_stats()
    assert after["num_ooms"] == before["num_ooms"] + 1
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"] == 512


def test_tensors_of_two_devices_do_not_mix(emulated):
    here, there, host = (torch.ones(4, device=device) for device in ("cuda:0", "cuda:1", "cpu"))
    text = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and {}!"
    with pytest.raises(RuntimeError) as caught:
        here + there
    assert str(caught.value) == text.format("cuda:1")
    with pytest.raises(RuntimeError) as caught:
        here + host
    assert str(caught.value) == text.format("cpu")
    assert (here + torch.tensor(1.0)).tolist() == [2.0] * 4  # numbers may be on the CPU
    assert there.to("cuda:0").add(here).device.index == 0


def test_current_device_is_of_each_thread(emulated):
    seen = []

    def other():
        torch.cuda.set_device(1)
        seen.append(torch.empty(1, device="cuda").device.index)

    with torch.cuda.device(0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
        seen.append(torch.empty(1, device="cuda").device.index)
    assert seen == [1, 0]


def test_streams_order_memory_as_on_a_gpu(emulated):
    stream = torch.cuda.Stream()
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("cuda:0")
    with torch.cuda.stream(stream):
        side = torch.ones(1 << 20, device=stream.device)
    address = side.data_ptr()
    del side
    assert torch.empty(1 << 20, device="cuda").data_ptr() != address  # memory is cached for its stream
    with torch.cuda.stream(stream):
        assert torch.empty(1 << 20, device="cuda").data_ptr() == address
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    second.record()
    torch.cuda.synchronize()
    assert first.elapsed_time(second) >= 0


def test_backward_allocates_on_the_stream_of_the_forward_pass(emulated):
    stream = torch.cuda.Stream()
    weight = torch.ones(1 << 19, device="cuda", requires_grad=True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss = (weight * 2).sum()
    loss.backward()
    blocks = [(segment["stream"], block) for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    (owner,) = {queue for queue, block in blocks if block["address"] == weight.grad.data_ptr()}
    assert owner == stream.cuda_stream
    assert weight.grad.sum().item() == 1 << 20


def test_interrupt_of_a_callback_is_raised_when_the_program_continues(emulated, monkeypatch):
    """PyTorch's C++ code cannot be left by an exception of Python."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    loss = (weight * 2).sum()

    current, interrupts = streams_of_engine._current, [KeyboardInterrupt]

    def interrupted(index: int) -> int:
        if interrupts:
            raise interrupts.pop()
        return current(index)

    monkeypatch.setattr(streams_of_engine, "_current", interrupted)
    streams_of_engine.connect_streams()
    try:
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
    finally:
        monkeypatch.undo()
        streams_of_engine.connect_streams()
    weight.grad = None
    (weight * 3).sum().backward()
    assert weight.grad.tolist() == [3, 3, 3, 3]


def test_batch_normalization_and_recurrent_networks_need_no_cudnn():
    """The CUDA build of PyTorch would ask cuDNN, and with it the driver."""
    before = torch.backends.cudnn.enabled
    x = torch.randn(5, 2, 4)
    models = torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 4)
    expected = models[0](x.flatten(0, 1)), models[1](x)[0]
    with forebay.emulate("cuda"), patch():
        torch.backends.cudnn.enabled = True
        models[0].reset_running_stats()
        made = models[0].cuda()(x.cuda().flatten(0, 1)), models[1].cuda()(x.cuda())[0]
        found = [each.cpu() for each in made]
    torch.testing.assert_close(found, [*expected])
    assert torch.backends.cudnn.enabled == before


def test_pytorch_is_restored():
    before = torch.cuda.is_available, torch.cuda.memory_allocated, torch.Generator, torch.Tensor.pin_memory, torch.empty
    with forebay.emulate("cuda"), patch():
        assert is_patched()
        assert torch.cuda.is_available()
        kept = torch.ones(4, device="cuda")
    assert not is_patched()
    assert not torch.cuda.is_available()
    after = torch.cuda.is_available, torch.cuda.memory_allocated, torch.Generator, torch.Tensor.pin_memory, torch.empty
    assert after == before
    with pytest.raises(WrongState, match=r"or patch\(\), has ended"):
        kept + 1
    assert (torch.ones(2) + 1).tolist() == [2, 2]
    del kept  # after the emulation's end: nothing is raised


def test_patch_is_refused_twice_and_without_devices(emulated):
    with pytest.raises(WrongState, match="active already"), patch():
        pass
    assert is_patched()


def test_patch_needs_emulated_devices():
    with pytest.raises(WrongState, match=r"call forebay\.emulate\('cuda'\) before patch"), patch():
        pass
    assert not is_patched()


def test_patch_starts_again_after_its_end():
    for _ in range(3):
        with forebay.emulate("cuda", profile="t4"), patch():
            assert torch.ones(3, device="cuda").sum().item() == 3
            assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize(
    "function",
    [
        "kernels.registration.Kernels.register",
        "devices.patching.connect_streams",
        "compile.dynamo.forget_functions",
        "attribution.ledger.Ledger.start",
    ],
)
def test_interrupted_start_restores_pytorch(monkeypatch, function):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = torch.cuda.is_available, torch.empty, torch.Tensor.pin_memory
    with forebay.emulate("cuda"):
        monkeypatch.setattr(f"forebay.interop.torch.{function}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            TorchSession("compute").start()
        assert not is_patched()
        assert running() is None
        assert (torch.cuda.is_available, torch.empty, torch.Tensor.pin_memory) == before
        monkeypatch.undo()
        with patch():
            assert torch.ones(2, device="cuda").tolist() == [1, 1]


def test_mode_is_checked():
    with (
        forebay.emulate("cuda"),
        pytest.raises(ValueError, match="'compute', 'shapes' or 'strict', not 'fast'"),
        patch("fast"),
    ):
        pass
    assert not is_patched()


def test_streams_name_their_device_as_pytorchs_do(emulated):
    stream = torch.cuda.Stream("cuda:1")
    assert (stream.device, stream.device_index) == (torch.device("cuda:1"), 1)
    assert stream.device_type == int(torch._C._autograd.DeviceType.CUDA)


def test_random_state_of_a_device_object(emulated):
    device = torch.device("cuda", 1)
    state = torch.cuda.get_rng_state(device)
    with torch.random.fork_rng([device]):
        drawn = torch.rand(4, device=device)
    torch.cuda.set_rng_state(state, device)
    assert torch.equal(torch.rand(4, device=device), drawn)


def test_builds_for_the_cpu_name_a_version_of_cuda_until_the_end():
    before = torch.version.cuda
    with forebay.emulate("cuda", profile="h100"), patch():
        assert tuple(map(int, torch.version.cuda.split("."))) >= (12, 0)
    assert torch.version.cuda == before


def test_errors_of_the_device_have_one_class(emulated):
    assert torch.AcceleratorError is torch.cuda.AcceleratorError
    with pytest.raises(torch.AcceleratorError):
        torch.cuda.set_device(5)
