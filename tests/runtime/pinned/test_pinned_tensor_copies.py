"""Copies of pinned tensors on the streams of emulated devices."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import forebay

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def device():
    with forebay.emulate("cuda", count=2):
        yield "cuda:1"


@pytest.fixture
def held(device):
    """Yield the current stream of the device, which executes nothing before it is released, and the release."""
    stream, gate = forebay.current_stream(device), threading.Event()
    forebay.zeros(1, device=device)
    stream.queue.call(lambda: gate.wait(30))
    yield stream, gate.set
    gate.set()
    stream.synchronize()


def transposed(rows, columns):
    return forebay.zeros(columns, rows).pin_memory().transpose(0, 1)


FORMS = {
    "contiguous": lambda: forebay.zeros(6, 4).pin_memory(),
    "slice": lambda: forebay.zeros(12, 4).pin_memory()[::2],
    "transposed": lambda: transposed(6, 4),
}


def copied(there, host, *, to_device):
    """Copy without blocking between a tensor of a device and one of the host, and return the target."""
    target, source = (there, host) if to_device else (host, there)
    source.fill_(3)
    target.copy_(source, non_blocking=True)
    return target


@pytest.mark.parametrize("dtype", [forebay.float32, forebay.int64], ids=["same dtype", "conversion"])
@pytest.mark.parametrize("to_device", [True, False])
def test_non_blocking_copy_of_pinned_tensor_does_not_wait(held, device, to_device, dtype):
    stream, release = held
    target = copied(forebay.zeros(6, 4, dtype=dtype, device=device), FORMS["contiguous"](), to_device=to_device)
    assert not stream.query()
    release()
    stream.synchronize()
    assert (target.cpu().numpy() == 3).all()


@pytest.mark.parametrize("dtype", [forebay.float32, forebay.int64], ids=["same dtype", "conversion"])
@pytest.mark.parametrize("form", ["slice", "transposed"])
@pytest.mark.parametrize("to_device", [True, False])
def test_strided_pinned_tensor_is_copied_by_way_of_pageable_memory(held, device, to_device, form, dtype):
    """PyTorch's temporary on the host is not pinned, so the copy waits: Note [Temporaries of copies]."""
    stream, release = held
    release()  # it waits, as for any pageable memory
    target = copied(forebay.zeros(6, 4, dtype=dtype, device=device), FORMS[form](), to_device=to_device)
    stream.synchronize()
    assert (target.cpu().numpy() == 3).all()


@pytest.mark.parametrize("dtype", [None, forebay.float64, forebay.int8, forebay.bfloat16])
def test_to_does_not_wait_for_copies_of_pinned_memory(held, device, dtype):
    stream, release = held
    there = forebay.ones(1000).pin_memory().to(device, non_blocking=True)
    back = there.to("cpu", dtype, non_blocking=True)
    assert back.is_pinned()
    assert not stream.query()
    release()
    stream.synchronize()
    assert back.tolist() == [1] * 1000


@pytest.mark.parametrize("to_device", [True, False])
def test_blocking_copy_waits(held, device, to_device):
    stream, release = held
    host, there = forebay.ones(1000).pin_memory(), forebay.ones(1000, device=device)
    target, source = (there, host) if to_device else (host, there)
    timer = threading.Timer(0.05, release)
    timer.start()
    target.copy_(source)
    assert stream.query()
    timer.join()


@pytest.mark.parametrize("to_device", [True, False])
def test_pinned_memory_is_not_reused_before_its_copy_is_done(held, device, to_device):
    stream, release = held
    host, there = forebay.ones(1000).pin_memory(), forebay.zeros(1000, device=device)
    address = host.data_ptr()
    target, source = (there, host) if to_device else (host, there)
    target.copy_(source, non_blocking=True)
    del host, target, source
    gc.collect()
    other = forebay.ones(1000).pin_memory()
    assert other.data_ptr() != address
    release()
    stream.synchronize()
    assert forebay.ones(1000).pin_memory().data_ptr() == address


PINNED = {
    "pin_memory": lambda: forebay.ones(3000).pin_memory(),
    "zeros": lambda: forebay.zeros(3000, pin_memory=True),
    "full": lambda: forebay.full((3000,), 2.0, pin_memory=True),
    "randn": lambda: forebay.randn(3000, pin_memory=True),
    "tensor": lambda: forebay.tensor([1.0] * 3000, pin_memory=True),
    "copy_": lambda: forebay.empty(3000, pin_memory=True).copy_(forebay.ones(3000)),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("make", PINNED.values(), ids=PINNED)
def test_pinned_memory_is_reused_at_once_after_work_of_the_host(make):
    """The CPU device's queue may take a while to start, but its work is done when a function returns, as PyTorch's."""
    addresses = set()
    stream = forebay.current_stream("cpu")
    for _ in range(5):
        threading.Timer(0.01, (gate := threading.Event()).set).start()
        stream.queue.call(lambda gate=gate: gate.wait(30))
        addresses.add(make().data_ptr())
    assert len(addresses) == 1


def test_registered_memory_stays_alive_during_its_copy(held, device):
    stream, release = held
    host, there = forebay.ones(1 << 16), forebay.zeros(1 << 16, device=device)
    runtime = forebay.cuda.cudart()
    assert runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 0) == 0
    there.copy_(host, non_blocking=True)
    assert not stream.query()
    assert runtime.cudaHostUnregister(host.data_ptr()) == 0
    address = host.data_ptr()
    del host
    gc.collect()
    others = [forebay.full((1 << 16,), 7, dtype=forebay.float32) for _ in range(4)]
    assert address not in [each.data_ptr() for each in others]
    release()
    assert np.array_equal(there.cpu().numpy(), np.ones(1 << 16, np.float32))
