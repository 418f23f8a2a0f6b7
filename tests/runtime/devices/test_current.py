"""The current device and stream of each thread."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import forebay
from forebay import (
    ForebayError,
    Stream,
    WrongState,
    current_device,
    current_stream,
    default_stream,
    set_device,
    set_stream,
    use_device,
)
from forebay.device_spec import Device
from forebay.runtime.devices import current

pytestmark = pytest.mark.usefixtures("clean")


def elsewhere(function):
    """Return the result of the function in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=30)


def test_a_vendors_device_comes_before_the_host(fake):
    assert elsewhere(current_device) == Device("fake:0")
    assert current_device() == Device("cpu")
    assert fake.ports == []  # asking opened nothing


def test_each_thread_has_its_own(fake):
    set_device("fake:1")
    stream = Stream("fake:1")
    set_stream(stream)
    assert elsewhere(lambda: (current_device(), current_stream("fake:1"))) == (
        Device("fake:0"),
        default_stream("fake:1"),
    )
    assert elsewhere(lambda: set_device("cpu")) is None
    assert (current_device(), current_stream()) == (Device("fake:1"), stream)


def test_a_kind_alone_means_its_current_index(fake):
    set_device("fake:1")
    set_device("cpu")
    assert current.resolve("fake") == Device("fake:1")
    assert current.resolve(Device("fake")) == Device("fake:1")
    assert current.resolve(0) == Device("fake:0")  # an index of the accelerator, although the CPU is current
    with use_device("fake:0"):
        assert current.resolve("fake") == Device("fake:0")
        assert current.resolve(1) == Device("fake:1")
    assert current.resolve("fake") == Device("fake:1")


@pytest.mark.parametrize("device", [1.5, True, b"cpu", ("cpu", 0), object()])
def test_invalid_device_argument_is_refused(device):
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        current.resolve(device)


def test_negative_index_is_refused():
    with pytest.raises(RuntimeError, match="Device index must not be negative"):
        forebay.empty(1, device=-1)


def test_use_device_nests_and_ends_with_an_exception(fake):
    with contextlib.suppress(KeyError), use_device("fake:0"), use_device("fake:1") as inner:
        assert inner == current_device() == Device("fake:1")
        set_device("cpu")
        raise KeyError
    assert current_device() == Device("cpu")


def test_a_device_that_is_not_there_changes_nothing(fake):
    for attempt in (lambda: set_device("fake:9"), lambda: use_device("fake:9").__enter__()):
        with pytest.raises(ForebayError):
            attempt()
        assert current_device() == Device("cpu")


def test_entering_a_stream_switches_the_device_too(fake):
    outer, inner = Stream("fake:0"), Stream("fake:1")
    with contextlib.suppress(KeyError), outer as entered:
        assert entered is outer
        assert (current_device(), current_stream()) == (Device("fake:0"), outer)
        with inner:
            assert (current_device(), current_stream()) == (Device("fake:1"), inner)
            assert current_stream("fake:0") == outer
        assert (current_device(), current_stream()) == (Device("fake:0"), outer)
        assert current_stream("fake:1") == default_stream("fake:1")
        raise KeyError
    assert current_device() == Device("cpu")
    assert current_stream("fake:0") == default_stream("fake:0")


def test_a_stream_nests_in_itself():
    stream, other = Stream(), Stream()
    with stream:
        with other, stream:
            assert current_stream() is stream
        assert current_stream() is stream
    assert current_stream() == default_stream()


def test_what_is_set_inside_ends_with_the_stream(fake):
    with Stream("cpu") as stream:
        set_stream(Stream("cpu"))
        assert current_stream() != stream
        set_device("fake:1")
    assert (current_device(), current_stream()) == (Device("cpu"), default_stream("cpu"))


def test_two_threads_in_one_stream():
    """Each comes back to what it had, whichever leaves first."""
    stream, inside, leave = Stream(), threading.Event(), threading.Event()

    def other():
        mine = Stream()
        set_stream(mine)
        with stream:
            inside.set()
            assert leave.wait(30)
        return current_stream() is mine

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(other)
        assert inside.wait(30)
        with stream:
            leave.set()
            assert found.result(30)
            assert current_stream() is stream
        assert current_stream() == default_stream()


def test_leaving_what_was_not_entered():
    with pytest.raises(WrongState, match="not entered by this thread"):
        Stream().__exit__(None, None, None)


def test_leaving_opens_nothing(fake):
    """The device before may never have been used."""
    current.here().device = Device("fake:1")
    with Stream("cpu"):
        pass
    assert current_device() == Device("fake:1")
    assert fake.ports == []


def test_only_a_stream_can_be_current():
    with pytest.raises(TypeError, match="expected a Stream, not str"):
        set_stream("cpu")


def test_memory_comes_from_the_current_stream():
    with Stream() as stream:
        assert forebay.allocate(1).queue == stream.handle
        assert forebay.empty(1).storage.block.queue == stream.handle
    assert forebay.allocate(1).queue == 0


@pytest.mark.parametrize("name", ["cpu", "cpu:0", Device("cpu"), Device("cpu", 0)])
def test_spellings_of_the_first_cpu_device(fake, name):
    assert current.resolve(name) == Device("cpu")
    assert forebay.zeros(3, device=name).device == Device("cpu")
    assert forebay.zeros(3, device="fake:0").to(name).tolist() == [0, 0, 0]
