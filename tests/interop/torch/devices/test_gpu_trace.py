"""PyTorch's callbacks of `torch.cuda._gpu_trace`, and the sanitizer that uses them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import torch.cuda._gpu_trace as gpu_trace  # noqa: E402 -- after PyTorch, without which the file is skipped
import torch.cuda._sanitizer as sanitizer  # noqa: E402 -- as above


@pytest.fixture
def seen(emulated, monkeypatch):
    """Record of what PyTorch's registries have received."""
    found = []
    for name, registry in vars(gpu_trace).items():
        if isinstance(registry, gpu_trace.CallbackRegistry):
            short = name.removesuffix("Callbacks")
            monkeypatch.setattr(registry, "callback_list", [lambda *args, of=short: found.append((of, *args))])
    torch._C._activate_gpu_trace()
    return found


def test_callbacks_receive_what_happens(seen):
    event = torch.cuda.Event()
    event.record()
    stream = torch.cuda.Stream()
    stream.wait_event(event)
    event.synchronize()
    stream.synchronize()
    torch.cuda.synchronize()
    x = torch.empty(10, device="cuda")
    address = x.data_ptr()
    del x
    number = event.cuda_event
    assert seen == [
        ("EventCreation", number), ("EventRecord", number, 0), ("StreamCreation", stream.cuda_stream),
        ("EventWait", number, stream.cuda_stream), ("EventSynchronization", number),
        ("StreamSynchronization", stream.cuda_stream), ("DeviceSynchronization",), ("MemoryAllocation", address),
        ("MemoryDeallocation", address),
    ]  # fmt: skip


def test_an_exception_in_a_callback_is_logged_and_changes_nothing(seen, monkeypatch, caplog):
    def fail(address):
        raise ValueError("a defect of the callback")

    monkeypatch.setattr(gpu_trace.MemoryDeallocationCallbacks, "callback_list", [fail])
    torch.empty(10, device="cuda")
    assert "a defect of the callback" in caplog.text
    assert torch.cuda.memory_allocated() == 0


def test_the_sanitizer_knows_ordered_work_from_races(emulated, monkeypatch, capsys):
    for registry in vars(gpu_trace).values():
        if isinstance(registry, gpu_trace.CallbackRegistry):
            monkeypatch.setattr(registry, "callback_list", [])
    found = sanitizer.CUDASanitizer()
    found.enable()
    try:
        x, stream = torch.ones(4, device="cuda"), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.mul_(2)
        y = torch.ones(4, device="cuda")
        with pytest.raises(sanitizer.CUDASanitizerErrors), torch.cuda.stream(torch.cuda.Stream()):
            y.mul_(2)
    finally:
        found.disable()
    assert "possible data race" in capsys.readouterr().err
