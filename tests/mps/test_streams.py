"""Streams of forebay.mps: the default stream, the pool of 32, and stream ids."""

from __future__ import annotations

import threading

import pytest

import forebay
from forebay import mps
from forebay.testing.conformance.helpers import Gate, enqueue_call

pytestmark = pytest.mark.usefixtures("apple")


def test_streams_rotate_through_a_pool_of_32():
    streams = [mps.Stream() for _ in range(33)]
    assert [stream.stream_id for stream in streams] == [*range(1, 33), 1]
    assert streams[32] == streams[0] != streams[1]
    assert len({*streams}) == 32


def test_stream_can_be_created_by_id():
    assert mps.Stream(0) == mps.Stream(stream_id=0) == mps.default_stream()
    assert mps.Stream(7).stream_id == 7  # before the pool returns it
    assert [mps.Stream() for _ in range(7)][6] == mps.Stream(7)
    assert repr(mps.Stream(32)) == "<forebay.mps.Stream stream_id=32>"
    assert isinstance(mps.Stream(), forebay.Stream)


@pytest.mark.parametrize("number", [33, -2, 1 << 40, 64 | 1])
def test_unknown_stream_ids_are_rejected(number):
    with pytest.raises(forebay.ForebayError, match=f"^Unrecognized stream {number} on device mps:0"):
        mps.Stream(number)
    assert mps.Stream().stream_id == 1


@pytest.mark.parametrize("number", ["0", 1.0, None, [1]])
def test_stream_ids_must_be_ints(number):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        mps.Stream(number)


def test_priorities_do_not_select_a_pool():
    """PyTorch has one priority of MPS streams, so all `forebay.Stream` objects share the pool."""
    streams = [forebay.Stream("mps", priority=priority) for priority in (0, -1, -3, 5)]
    assert [stream.stream_id for stream in streams] == [1, 2, 3, 4]
    assert [stream.priority for stream in streams] == [0, -1, -3, 5]


# ---- The current stream


def test_default_stream_is_current_initially():
    assert mps.current_stream() == mps.default_stream()
    assert mps.current_stream().stream_id == mps.default_stream().native_handle == 0
    assert mps.current_stream() is mps.current_stream()


def test_stream_context_makes_the_stream_current():
    outer, inner = mps.Stream(), mps.Stream()
    with mps.stream(outer):
        with mps.stream(inner):
            assert mps.current_stream() == inner == forebay.current_stream("mps")
        assert mps.current_stream() == outer
        with mps.stream(None):
            assert mps.current_stream() == outer
        with mps.stream(outer), pytest.raises(KeyError):
            {}["raised inside"]
        assert mps.current_stream() == outer
    assert mps.current_stream() == mps.default_stream()


def test_stream_context_works_as_a_decorator():
    stream, seen = mps.Stream(), []

    @mps.stream(stream)
    def run(depth):
        seen.append(mps.current_stream())
        if depth:
            run(depth - 1)

    run(2)
    assert seen == [stream] * 3
    assert mps.current_stream() == mps.default_stream()


def test_stream_context_restores_the_stream_after_set_stream():
    mps.set_stream(before := mps.Stream())
    with mps.stream(mps.Stream()):
        mps.set_stream(mps.default_stream())
    assert mps.current_stream() == before
    with mps.stream(None):
        mps.set_stream(mps.default_stream())
    assert mps.current_stream() == mps.default_stream()
    mps.set_stream(None)
    assert mps.current_stream() == mps.default_stream()


def test_work_is_queued_on_the_current_stream():
    stream, gate = mps.Stream(), Gate()
    enqueue_call(stream, gate)
    with mps.stream(stream):
        tensor = forebay.full((3,), 2.0, device="mps")
    assert mps.default_stream().query()
    assert not stream.query()
    gate.open()
    stream.synchronize()
    assert stream.query()
    assert tensor.tolist() == [2.0] * 3


def test_synchronize_waits_for_every_stream():
    done, gate = [], Gate()
    for stream in (mps.Stream(), mps.default_stream()):
        enqueue_call(stream, gate)
        enqueue_call(stream, lambda: done.append(1))
    gate.open()
    mps.synchronize()
    assert done == [1, 1]


def test_current_stream_is_per_thread():
    mps.set_stream(mps.Stream())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(mps.current_stream()))
    thread.start()
    thread.join(20)
    assert seen == [mps.default_stream()]
    assert mps.current_stream().stream_id == 1


def test_general_stream_is_converted_to_an_mps_stream():
    general = forebay.Stream("mps")
    with general:
        assert isinstance(mps.current_stream(), mps.Stream)
        assert mps.current_stream() == general
    mps.set_stream(general)
    assert mps.current_stream() == general


@pytest.mark.parametrize("wrong", [3, "mps", object()], ids=["int", "text", "object"])
def test_non_streams_are_rejected(wrong):
    for use in (lambda: mps.set_stream(wrong), lambda: mps.stream(wrong).__enter__()):
        with pytest.raises(TypeError, match=r"^expected a Stream, not "):
            use()
    assert mps.current_stream() == mps.default_stream()


# ---- Other device kinds


def test_stream_context_restores_the_current_device_of_another_kind():
    with forebay.use_device("cpu"):
        with mps.stream(mps.Stream()):
            assert forebay.current_device() == forebay.device("mps", 0)
        assert forebay.current_device() == forebay.device("cpu")
    assert mps.current_stream() == mps.default_stream()


def test_streams_of_another_kind_are_rejected():
    stream = forebay.Stream("cpu")
    for use in (mps.set_stream, lambda stream: mps.stream(stream).__enter__()):
        with pytest.raises(TypeError, match=r"^expected a stream of an MPS device, not of cpu$"):
            use(stream)
    assert type(forebay.current_stream("cpu")) is forebay.Stream


def test_emulation_may_end_inside_the_stream_context(apple):
    with mps.stream(stream := mps.Stream()):
        apple.stop()
    assert forebay.current_device().kind != "mps"
    for use in (stream.synchronize, stream.query, lambda: mps.set_stream(stream)):
        with pytest.raises(forebay.WrongState, match="the emulation of mps:0 has ended"):
            use()
