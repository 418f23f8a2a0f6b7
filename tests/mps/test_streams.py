"""Streams of forebay.mps: the default one and a pool of 32, by their ids."""

from __future__ import annotations

import threading

import pytest

import forebay
from forebay import mps
from forebay.testing.conformance.scenes import Gate, call

pytestmark = pytest.mark.usefixtures("apple")


def test_streams_come_from_a_pool_in_turn():
    streams = [mps.Stream() for _ in range(33)]
    assert [stream.stream_id for stream in streams] == [*range(1, 33), 1]
    assert streams[32] == streams[0] != streams[1]
    assert len({*streams}) == 32


def test_a_stream_by_its_id():
    assert mps.Stream(0) == mps.Stream(stream_id=0) == mps.default_stream()
    assert mps.Stream(7).stream_id == 7  # before its turn has come
    assert [mps.Stream() for _ in range(7)][6] == mps.Stream(7)
    assert repr(mps.Stream(32)) == "<forebay.mps.Stream stream_id=32>"
    assert isinstance(mps.Stream(), forebay.Stream)


@pytest.mark.parametrize("number", [33, -2, 1 << 40, 64 | 1])
def test_an_id_that_no_stream_has(number):
    with pytest.raises(forebay.ForebayError, match=f"^Unrecognized stream {number} on device mps:0"):
        mps.Stream(number)
    assert mps.Stream().stream_id == 1


@pytest.mark.parametrize("number", ["0", 1.0, None, [1]])
def test_what_is_no_id(number):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        mps.Stream(number)


def test_priorities_are_no_more_than_hints():
    """PyTorch has one priority of MPS streams, so those of no kind's face share the pool."""
    streams = [forebay.Stream("mps", priority=priority) for priority in (0, -1, -3, 5)]
    assert [stream.stream_id for stream in streams] == [1, 2, 3, 4]
    assert [stream.priority for stream in streams] == [0, -1, -3, 5]


# ---- Which one is current


def test_the_default_stream_is_current_at_first():
    assert mps.current_stream() == mps.default_stream()
    assert mps.current_stream().stream_id == mps.default_stream().native_handle == 0
    assert mps.current_stream() is mps.current_stream()


def test_a_stream_is_current_inside():
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


def test_a_function_runs_on_a_stream():
    stream, seen = mps.Stream(), []

    @mps.stream(stream)
    def run(depth):
        seen.append(mps.current_stream())
        if depth:
            run(depth - 1)

    run(2)
    assert seen == [stream] * 3
    assert mps.current_stream() == mps.default_stream()


def test_what_was_current_comes_back_whatever_was_set_inside():
    mps.set_stream(before := mps.Stream())
    with mps.stream(mps.Stream()):
        mps.set_stream(mps.default_stream())
    assert mps.current_stream() == before
    with mps.stream(None):
        mps.set_stream(mps.default_stream())
    assert mps.current_stream() == mps.default_stream()
    mps.set_stream(None)
    assert mps.current_stream() == mps.default_stream()


def test_work_goes_to_the_current_stream():
    stream, gate = mps.Stream(), Gate()
    call(stream, gate)
    with mps.stream(stream):
        tensor = forebay.full(3, 2.0, device="mps")
    assert mps.default_stream().query()
    assert not stream.query()
    gate.open()
    stream.synchronize()
    assert stream.query()
    assert tensor.tolist() == [2.0] * 3


def test_synchronize_waits_for_every_stream():
    done, gate = [], Gate()
    for stream in (mps.Stream(), mps.default_stream()):
        call(stream, gate)
        call(stream, lambda: done.append(1))
    gate.open()
    mps.synchronize()
    assert done == [1, 1]


def test_each_thread_has_its_own():
    mps.set_stream(mps.Stream())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(mps.current_stream()))
    thread.start()
    thread.join(20)
    assert seen == [mps.default_stream()]
    assert mps.current_stream().stream_id == 1


def test_a_stream_that_no_face_made_is_one_here():
    plain = forebay.Stream("mps")
    with plain:
        assert isinstance(mps.current_stream(), mps.Stream)
        assert mps.current_stream() == plain
    mps.set_stream(plain)
    assert mps.current_stream() == plain


@pytest.mark.parametrize("wrong", [3, "mps", object()], ids=["int", "text", "object"])
def test_what_is_no_stream(wrong):
    for use in (lambda: mps.set_stream(wrong), lambda: mps.stream(wrong).__enter__()):
        with pytest.raises(TypeError, match=r"^expected a Stream, not "):
            use()
    assert mps.current_stream() == mps.default_stream()


# ---- Beside other kinds


def test_the_current_device_of_another_kind_comes_back():
    with forebay.use_device("host:0"):
        with mps.stream(mps.Stream()):
            assert forebay.current_device() == forebay.Device("mps", 0)
        assert forebay.current_device() == forebay.Device("host", 0)
    assert mps.current_stream() == mps.default_stream()


def test_a_stream_of_another_kind_is_refused():
    stream = forebay.Stream("host:0")
    for use in (mps.set_stream, lambda stream: mps.stream(stream).__enter__()):
        with pytest.raises(TypeError, match=r"^expected a stream of an MPS device, not one of host:0$"):
            use(stream)
    assert type(forebay.current_stream("host:0")) is forebay.Stream


def test_the_end_of_the_emulation_inside(apple):
    with mps.stream(stream := mps.Stream()):
        apple.stop()
    assert forebay.current_device().kind != "mps"
    for use in (stream.synchronize, stream.query, lambda: mps.set_stream(stream)):
        with pytest.raises(forebay.WrongState, match="the emulation that mps:0 belonged to has ended"):
            use()
