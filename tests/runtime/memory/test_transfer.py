"""Copies and fills, in every combination."""

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


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, ml_dtypes.bfloat16, np.complex64])
@pytest.mark.parametrize("target", ["contiguous", "columns", "reversed", "transposed", "nothing"])
@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("of", ["tensor", "array", "shared"])
def test_any_layout_to_any_layout(of, source, target, dtype):
    """A copy is what NumPy's assignment is."""
    from_, to = LAYOUTS[source], LAYOUTS[target]
    values = numbers()
    theirs = from_(forebay.from_numpy(values))
    ours = forebay.zeros(6, 6, dtype=dtype)
    expected = np.zeros((6, 6), dtype)
    view = to(forebay.from_numpy(expected)).numpy()
    if of == "tensor":
        theirs = from_(forebay.tensor(values))
    elif of == "array":
        theirs = theirs.numpy()
    try:
        view[...] = from_(forebay.from_numpy(values)).numpy()
    except ValueError:
        with pytest.raises(ValueError, match="broadcast"):
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
def test_memory_that_overlaps(target, source, kind):
    expected = np.arange(6.0)
    made = forebay.tensor(expected)
    expected[target] = expected[source].copy()
    theirs = made[source]
    made[target].copy_(theirs if kind == "tensor" else theirs.numpy())
    np.testing.assert_array_equal(made.numpy(), expected)


def test_a_copy_of_itself():
    made = forebay.tensor([1, 2])
    assert made.copy_(made) is made
    assert made.tolist() == [1, 2]


@pytest.mark.parametrize("data", [5, 2.5, [1, 2, 3], [[1], [2]], np.int8(7), range(3), b"abc" and [True, False, True]])
def test_anything_that_numpy_understands(data):
    made = forebay.zeros(2, 3)
    expected = np.zeros((2, 3), np.float32)
    expected[...] = data
    assert made.copy_(data).tolist() == expected.tolist()


@pytest.mark.parametrize("data", [["a", "b", "c"], [object()] * 3, {}, "text", [[1, 2], [3]]])
def test_what_numpy_does_not_understand_is_told_at_once(data):
    made = forebay.zeros(3)
    with pytest.raises((TypeError, ValueError)):
        made.copy_(data)
    forebay.synchronize()
    assert made.tolist() == [0, 0, 0]


def test_what_cannot_be_converted():
    records = np.zeros(3, [("x", "f4"), ("y", "f4")])
    with pytest.raises(TypeError, match="cannot be converted to"):
        forebay.zeros(3).copy_(records)
    with pytest.raises(TypeError, match="cannot be converted to"):
        forebay.zeros(3).copy_(forebay.from_numpy(records))
    with pytest.raises(ValueError, match="broadcast"):
        forebay.zeros(3).copy_(np.zeros(4))


def test_a_copy_keeps_its_streams_in_step(fake):
    here, there = Stream("host:0"), Stream("host:0")
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
def test_work_is_done_in_the_order_it_was_said(steps):
    """Four tensors on two streams that wait for one another at each change."""
    streams = [Stream(), Stream()]
    ours = [forebay.full((50,), i, dtype=np.int32) for i in range(4)]
    theirs = [np.full(50, i, np.int32) for i in range(4)]
    previous = current_stream()
    for at, (what, a, b) in enumerate(steps):
        stream = streams[at % 2]
        stream.wait_stream(previous)
        with stream:
            if what == "copy":
                ours[a][::3].copy_(ours[b][1::3].expand(1, -1)[0][: len(ours[a][::3]) - 1].expand(17, 16)[0, :1])
                theirs[a][::3] = theirs[b][1]
            elif what == "fill":
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
def test_every_pattern(dtype, value, layout):
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
def test_values_that_do_not_fit(dtype, value):
    made = forebay.zeros(3, dtype=dtype)
    with pytest.raises((OverflowError, ValueError, TypeError)):
        made.fill_(value)
    assert made.tolist() == [0, 0, 0]


# Lifetimes


def test_borrowed_memory_lives_until_its_work_is_done():
    """Filling and copying into an array that everybody has dropped writes to memory that is still there."""
    for use in (
        lambda shared: shared.fill_(1),
        lambda shared: shared.fill_(1.5),
        lambda shared: shared.copy_(forebay.zeros(MIB)),
        lambda shared: forebay.zeros(MIB).copy_(shared),
        lambda shared: shared[::2].copy_(forebay.zeros(MIB // 2)),
    ):
        stream, gate = Stream(), threading.Event()
        array = np.zeros(MIB, np.float32)
        gone = weakref.ref(array)
        with stream:
            stream.queue.call(lambda gate=gate: gate.wait(30))
            use(forebay.from_numpy(array))
        del array
        gc.collect()
        assert gone() is not None
        gate.set()
        stream.synchronize()
        gc.collect()
        assert gone() is None


def test_a_source_lives_though_the_wait_for_it_is_interrupted():
    stream, gate = Stream(), threading.Event()
    source = np.ones(MIB, np.float32)
    gone = weakref.ref(source)
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
    assert gone() is not None
    gate.set()
    stream.synchronize()
    gc.collect()
    assert gone() is None
    with stream:
        assert target.numpy().all()


def test_the_cache_may_be_emptied_under_queued_work():
    """On the host that would unmap what a queue is about to write."""
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


def test_failed_work_does_not_lose_a_copy():
    stream = Stream()
    with stream:
        stream.queue.call(lambda: 1 / 0)
        target = forebay.zeros(3)
        with pytest.raises(DeviceError, match="ZeroDivisionError"):
            target.copy_(np.ones(3))
        assert target.tolist() == [1, 1, 1]


# Devices and dtypes


def test_to():
    made = forebay.tensor([1.5, 2.5])
    assert made.to() is made.to("host:0") is made.to(np.float32) is made.to(made.device) is made.cpu() is made
    assert made.to(0) is made.to("host") is made
    assert made.to(copy=True).data_ptr() != made.data_ptr()
    for moved in (
        made.to(int),
        made.to("int64"),
        made.to(dtype=int),
        made.to("host", int),
        made.to(device="host:0", dtype="i8"),
    ):
        assert (moved.dtype, moved.tolist()) == (np.int64, [1, 2])
    assert made.to("bfloat16").dtype == ml_dtypes.bfloat16
    assert made[::-1].clone().tolist() == [2.5, 1.5]
    assert made.contiguous() is made
    assert made[::-1].contiguous().is_contiguous()


def test_to_what_is_not_there():
    made = forebay.tensor([1.5])
    for name in ("cuda", "cuda:0", "mps", "mtia:3"):
        with pytest.raises(forebay.ForebayError, match=f"no device {name}"):
            made.to(name)
    with pytest.raises(forebay.ForebayError, match="'bananas' is not a kind"):
        made.to("bananas:0")
    with pytest.raises(TypeError, match="bananas"):
        made.to("bananas")
    with pytest.raises(TypeError):
        made.to(3.5)


def commands(port, *names):
    return [call for call in port.calls if call[0] in names]


def test_to_a_device_that_the_host_cannot_read(fake):
    made = forebay.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    there = made.to("fake:0")
    port = fake.ports[0]
    assert commands(port, "copy") == [("copy", 0, there.data_ptr(), made.data_ptr(), 24)]
    port.calls.clear()
    there.copy_(np.arange(6).reshape(2, 3)[::-1])  # converted and laid out on the host
    ((_, _, dst, _, nbytes),) = commands(port, "copy")
    assert (dst, nbytes) == (there.data_ptr(), 24)
    port.calls.clear()
    assert made.to("fake:0", np.float64).dtype == np.float64
    assert commands(port, "copy")[0][4] == 48
    forebay.tensor(5.0, device="fake:0")
    forebay.full((), 5.0, device="fake:0")
    there[0, 0].copy_(3)


def test_back_from_there(fake):
    there = forebay.zeros(2, 3, device="fake:1")
    port = fake.ports[0]
    port.calls.clear()
    back = there.cpu()
    assert (back.device, back.shape) == (forebay.Device("host:0"), (2, 3))
    ((_, _, dst, src, nbytes),) = commands(port, "copy")  # its own queue did it: the host's cannot read there
    assert (dst, src, nbytes) == (back.data_ptr(), there.data_ptr(), 24)
    assert there.to("host", np.int8).dtype == np.int8
    port.calls.clear()
    there.tolist()
    there[0, 0].item()
    assert len(commands(port, "copy")) == 2
    assert not hasattr(current_stream("fake:1").queue, "memory")


def test_between_devices_that_the_host_cannot_read(fake):
    one = forebay.zeros(4, device="fake:0")
    two = one.to("fake:1")
    assert commands(fake.ports[1], "copy") == [("copy", 0, two.data_ptr(), one.data_ptr(), 16)]
    assert commands(fake.ports[1], "wait_for") or current_stream("fake:0").query()
    strided = forebay.zeros(4, 4, device="fake:0")[:, :2]
    strided.copy_(forebay.zeros(4, 2, device="fake:0"))
    assert len(commands(fake.ports[0], "copy")) == 4


def test_overlapping_there(fake):
    made = forebay.zeros(8, device="fake:0")
    made[1:].copy_(made[:-1])
    first, second = commands(fake.ports[0], "copy")
    assert first[3] == made.data_ptr()
    assert second[2:4] == (made.data_ptr() + 4, first[2])  # by way of a copy
    made[::2].copy_(made[1::2])  # interleaved, but no element is in both
    assert len(commands(fake.ports[0], "copy")) == 2 + 4


def test_what_only_the_host_can_do(fake):
    made = forebay.zeros(4, device="fake:0")
    with pytest.raises(Unsupported, match="converts nothing: not from float32") as caught:
        made.to(np.float64)
    assert caught.value.ability == "Launches"
    with pytest.raises(Unsupported, match=f"at most {strided_copy.MOST} runs"):
        forebay.zeros(10000, 2, device="fake:0")[:, 0].contiguous()
    made.fill_(1.5)  # a pattern of several bytes comes from the host
    made[::2].zero_()


def test_between_two_vendors(fake):
    from forebay import backends
    from forebay.runtime.devices import open_device
    from forebay.testing.fake import FakeDriver

    with backends.registered(FakeDriver(1, kind="other")):
        there = forebay.zeros(4, device="fake:0").to("other:0")
        assert there.device == forebay.Device("other:0")
        assert there.to("fake:1").device == forebay.Device("fake:1")
        del open_device._opened[there.device]
