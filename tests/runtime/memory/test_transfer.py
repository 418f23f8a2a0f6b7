"""Copies and fills of all layouts, dtypes and devices."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forebay
from forebay import DeviceError, Stream, Unsupported, current_stream
from forebay.runtime.memory import strided_copy

pytestmark = pytest.mark.usefixtures("clean")
MIB = 1 << 20

LAYOUTS = {
    "contiguous": lambda t: t,
    "rows": lambda t: t[::2],
    "columns": lambda t: t[:, ::2],
    "reversed": lambda t: t[::-1, ::-1],
    "transposed": lambda t: t.transpose(0, 1),
    "broadcast": lambda t: t[:1].expand(6, 6),
    "element": lambda t: t[2, 3],
    "nothing": lambda t: t[:0],
}


def numbers(dtype=np.float32):
    return np.arange(36).reshape(6, 6).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, ml_dtypes.bfloat16, np.complex64])
@pytest.mark.parametrize("target", ["contiguous", "columns", "reversed", "transposed", "nothing"])
@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("source_type", ["tensor", "array", "shared"])
def test_copy_between_any_layouts_agrees_with_numpy(source_type, source, target, dtype):
    """A copy has the result of NumPy's assignment."""
    from_, to = LAYOUTS[source], LAYOUTS[target]
    values = numbers()
    theirs = from_(forebay.from_numpy(values))
    ours = forebay.zeros(6, 6, dtype=dtype)
    expected = np.zeros((6, 6), dtype)
    view = to(forebay.from_numpy(expected)).numpy()
    if source_type == "tensor":
        theirs = from_(forebay.tensor(values))
    elif source_type == "array":
        theirs = theirs.numpy()
    try:
        view[...] = from_(forebay.from_numpy(values)).numpy()
    except ValueError:
        with pytest.raises((ValueError, RuntimeError), match=r"broadcast|must match the size of tensor b"):
            to(ours).copy_(theirs)
        return
    assert to(ours).copy_(theirs) is not None
    np.testing.assert_array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("kind", ["tensor", "array"])
@pytest.mark.parametrize(
    ("target", "source"),
    [
        (np.s_[:-1], np.s_[1:]),
        (np.s_[1:], np.s_[:-1]),
        (np.s_[:], np.s_[::-1]),
        (np.s_[::2], np.s_[1::2]),
        (np.s_[:3], np.s_[3:]),
        (np.s_[:], np.s_[:]),
    ],
)
def test_copy_of_overlapping_memory_agrees_with_numpy(target, source, kind):
    expected = np.arange(6.0)
    made = forebay.tensor(expected)
    expected[target] = expected[source].copy()
    theirs = made[source]
    made[target].copy_(theirs if kind == "tensor" else theirs.numpy())
    np.testing.assert_array_equal(made.numpy(), expected)


def test_copy_to_itself_changes_nothing():
    made = forebay.tensor([1, 2])
    assert made.copy_(made) is made
    assert made.tolist() == [1, 2]


@pytest.mark.parametrize("data", [5, 2.5, [1, 2, 3], [[1], [2]], np.int8(7), range(3), b"abc" and [True, False, True]])
def test_copy_accepts_any_array_like(data):
    made = forebay.zeros(2, 3)
    expected = np.zeros((2, 3), np.float32)
    expected[...] = data
    assert made.copy_(data).tolist() == expected.tolist()


@pytest.mark.parametrize("data", [["a", "b", "c"], [object()] * 3, {}, "text", [[1, 2], [3]]])
def test_copy_of_invalid_data_raises_at_once(data):
    made = forebay.zeros(3)
    with pytest.raises((TypeError, ValueError)):
        made.copy_(data)
    forebay.synchronize()
    assert made.tolist() == [0, 0, 0]


def test_copy_rejects_inconvertible_dtypes_and_shapes():
    records = np.zeros(3, [("x", "f4"), ("y", "f4")])
    with pytest.raises(TypeError, match="cannot be converted to"):
        forebay.zeros(3).copy_(records)
    with pytest.raises(TypeError, match="cannot be converted to"):
        forebay.zeros(3).copy_(forebay.from_numpy(records))
    with pytest.raises(ValueError, match="broadcast"):
        forebay.zeros(3).copy_(np.zeros(4))


def test_copy_is_ordered_with_waiting_stream(fake):
    here, there = Stream("cpu"), Stream("cpu")
    gate = threading.Event()
    with here:
        source = forebay.zeros(4)
        here.queue.call(lambda: gate.wait(30))
        source.fill_(7)
    with there:
        there.wait_stream(here)
        target = source.clone()
    gate.set()
    with there:
        assert target.tolist() == [7] * 4


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["copy", "fill", "to"]), st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_work_runs_in_program_order(steps):
    """Four tensors on two streams; each step waits for the previous stream."""
    streams = [Stream(), Stream()]
    ours = [forebay.full((50,), i, dtype=np.int32) for i in range(4)]
    theirs = [np.full(50, i, np.int32) for i in range(4)]
    previous = current_stream()
    for at, (operation, a, b) in enumerate(steps):
        stream = streams[at % 2]
        stream.wait_stream(previous)
        with stream:
            if operation == "copy":
                ours[a][::3].copy_(ours[b][1::3].expand(1, -1)[0][: len(ours[a][::3]) - 1].expand(17, 16)[0, :1])
                theirs[a][::3] = theirs[b][1]
            elif operation == "fill":
                ours[a][b:].fill_(at * 1000)
                theirs[a][b:] = at * 1000
            else:
                ours[a] = ours[b].to(np.float64).to(np.int32)
                theirs[a] = theirs[b].copy()
        previous = stream
    current_stream().wait_stream(previous)
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.tolist() == expected.tolist()
    forebay.synchronize()


# Fills


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "broadcast"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.float32, 0),
        (np.float32, -0.0),
        (np.float32, 1.5),
        (np.float32, float("nan")),
        (np.int32, -1),
        (np.int32, 0x01010101),
        (np.int32, 7),
        (np.uint8, 255),
        (np.bool_, True),
        (np.complex128, 1 - 2j),
        (ml_dtypes.bfloat16, 3.0),
        (np.dtype(">u2"), 258),
        (np.dtype("S3"), b"ab"),
        (np.dtype([("x", "i2"), ("y", "f8")]), (3, 4.5)),
    ],
)
def test_fill_of_any_dtype_and_layout(dtype, value, layout):
    view = LAYOUTS[layout]
    made = forebay.zeros(6, 6, dtype=dtype)
    expected = np.zeros((6, 6), dtype)
    view(forebay.from_numpy(expected)).numpy()[...] = np.array(value, dtype)
    assert view(made).fill_(value) is not None
    assert made.numpy().tobytes() == expected.tobytes()
    assert not view(made).zero_().numpy().tobytes().strip(b"\0")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.uint8, 300), (np.int8, -129), (np.int32, float("nan")), (np.float32, 1j), (np.float32, "x")],
)
def test_fill_rejects_values_out_of_range(dtype, value):
    made = forebay.zeros(3, dtype=dtype)
    with pytest.raises((OverflowError, ValueError, TypeError)):
        made.fill_(value)
    assert made.tolist() == [0, 0, 0]


# Lifetimes


def test_borrowed_memory_is_kept_until_its_work_is_done():
    """Queued fills and copies keep the memory of an array whose last reference was dropped."""
    for use in (
        lambda shared: shared.fill_(1),
        lambda shared: shared.fill_(1.5),
        lambda shared: shared.copy_(forebay.zeros(MIB)),
        lambda shared: forebay.zeros(MIB).copy_(shared),
        lambda shared: shared[::2].copy_(forebay.zeros(MIB // 2)),
    ):
        stream, gate = Stream(), threading.Event()
        array = np.zeros(MIB, np.float32)
        reference = weakref.ref(array)
        with stream:
            stream.queue.call(lambda gate=gate: gate.wait(30))
            use(forebay.from_numpy(array))
        del array
        gc.collect()
        assert reference() is not None
        gate.set()
        stream.synchronize()
        gc.collect()
        assert reference() is None


def test_source_is_kept_when_the_wait_is_interrupted():
    stream, gate = Stream(), threading.Event()
    source = np.ones(MIB, np.float32)
    reference = weakref.ref(source)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    with stream:
        target = forebay.zeros(MIB)
        stream.queue.call(lambda: gate.wait(30))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            target.copy_(source)
    timer.join()
    del source
    gc.collect()
    assert reference() is not None
    gate.set()
    stream.synchronize()
    gc.collect()
    assert reference() is None
    with stream:
        assert target.numpy().all()


def test_empty_cache_waits_for_queued_work():
    """On the CPU device, emptying at once would unmap memory that a queue is about to write."""
    stream, gate = Stream(), threading.Event()
    with stream:
        made = forebay.empty(30 * MIB, dtype=np.uint8)
        stream.queue.call(lambda: gate.wait(30))
        made.fill_(1)
        del made
    threading.Timer(0.1, gate.set).start()
    forebay.memory.empty_cache()
    assert stream.query()
    assert forebay.memory.memory_stats()["inactive_split_bytes.all.current"] >= 0


def test_copy_is_done_despite_earlier_failed_work():
    stream = Stream()
    with stream:
        stream.queue.call(lambda: 1 / 0)
        target = forebay.zeros(3)
        with pytest.raises(DeviceError, match="ZeroDivisionError"):
            target.copy_(np.ones(3))
        assert target.tolist() == [1, 1, 1]


# Devices and dtypes


def test_to_converts_only_when_necessary():
    made = forebay.tensor([1.5, 2.5])
    assert made.to() is made.to("cpu") is made.to(np.float32) is made.to(made.device) is made.cpu() is made
    assert made.to("cpu:0") is made.to("cpu") is made
    assert made.to(copy=True).data_ptr() != made.data_ptr()
    for moved in (
        made.to(int),
        made.to("int64"),
        made.to(dtype=int),
        made.to("cpu", int),
        made.to(device="cpu", dtype="i8"),
    ):
        assert (moved.dtype, moved.tolist()) == (np.int64, [1, 2])
    assert made.to("bfloat16").dtype == ml_dtypes.bfloat16
    assert made[::-1].clone().tolist() == [2.5, 1.5]
    assert made.contiguous() is made
    assert made[::-1].contiguous().is_contiguous()


def test_to_unknown_device_raises():
    made = forebay.tensor([1.5])
    for name in ("mps", "mtia:3"):
        with pytest.raises(forebay.ForebayError, match=r"has no backend for mtia|Metal needs macOS"):
            made.to(name)
    for name in ("bananas", "bananas:0"):
        with pytest.raises(RuntimeError, match=r"Expected one of .* at start of device string: bananas"):
            made.to(name)
    with pytest.raises(TypeError):
        made.to(3.5)


def commands(port, *names):
    return [call for call in port.calls if call[0] in names]


def test_copy_to_device_the_host_cannot_access(fake):
    made = forebay.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    remote = made.to("fake:0")
    port = fake.ports[0]
    assert commands(port, "copy") == [("copy", 0, remote.data_ptr(), made.data_ptr(), 24)]
    port.calls.clear()
    remote.copy_(np.arange(6).reshape(2, 3)[::-1])  # converted and laid out on the host
    ((_, _, dst, _, nbytes),) = commands(port, "copy")
    assert (dst, nbytes) == (remote.data_ptr(), 24)
    port.calls.clear()
    assert made.to("fake:0", np.float64).dtype == np.float64
    assert commands(port, "copy")[0][4] == 48
    forebay.tensor(5.0, device="fake:0")
    forebay.full((), 5.0, device="fake:0")
    remote[0, 0].copy_(3)


def test_copy_from_device_the_host_cannot_access(fake):
    remote = forebay.zeros(2, 3, device="fake:1")
    port = fake.ports[0]
    port.calls.clear()
    back = remote.cpu()
    assert (back.device, back.shape) == (forebay.device("cpu"), (2, 3))
    ((_, _, dst, src, nbytes),) = commands(
        port, "copy"
    )  # by the device's queue: the CPU device's queue cannot access its memory
    assert (dst, src, nbytes) == (back.data_ptr(), remote.data_ptr(), 24)
    assert remote.to("cpu", np.int8).dtype == np.int8
    port.calls.clear()
    remote.tolist()
    remote[0, 0].item()
    assert len(commands(port, "copy")) == 2
    assert not hasattr(current_stream("fake:1").queue, "memory")


def test_copy_between_devices_the_host_cannot_access(fake):
    one = forebay.zeros(4, device="fake:0")
    two = one.to("fake:1")
    assert commands(fake.ports[1], "copy") == [("copy", 0, two.data_ptr(), one.data_ptr(), 16)]
    assert commands(fake.ports[1], "wait_for") or current_stream("fake:0").query()
    strided = forebay.zeros(4, 4, device="fake:0")[:, :2]
    strided.copy_(forebay.zeros(4, 2, device="fake:0"))
    assert len(commands(fake.ports[0], "copy")) == 4


def test_overlapping_copy_on_device_the_host_cannot_access(fake):
    made = forebay.zeros(8, device="fake:0")
    made[1:].copy_(made[:-1])
    first, second = commands(fake.ports[0], "copy")
    assert first[3] == made.data_ptr()
    assert second[2:4] == (made.data_ptr() + 4, first[2])  # via a temporary copy
    made[::2].copy_(made[1::2])  # interleaved, but without a common element
    assert len(commands(fake.ports[0], "copy")) == 2 + 4


def test_device_without_launches_cannot_convert(fake):
    made = forebay.zeros(4, device="fake:0")
    with pytest.raises(Unsupported, match="can only copy bytes, in at most 4096 runs: cannot copy float32") as caught:
        made.to(np.float64)
    assert caught.value.ability == "Launches"
    with pytest.raises(Unsupported, match=f"at most {strided_copy.MAX_RUNS} runs"):
        forebay.zeros(10000, 2, device="fake:0")[:, 0].contiguous()
    made.fill_(1.5)  # a pattern of several bytes is copied from the host
    made[::2].zero_()


def test_copy_between_devices_of_two_backends(fake):
    from forebay import backends
    from forebay.runtime.devices import open_device
    from forebay.testing.fake import FakeDriver

    with backends.override_driver(FakeDriver(1, kind="other")):
        remote = forebay.zeros(4, device="fake:0").to("other:0")
        assert remote.device == forebay.device("other:0")
        assert remote.to("fake:1").device == forebay.device("fake:1")
        del open_device._opened[remote.device]
