"""The current device and stream of each thread."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import forebay
from forebay import (
    ForebayError,
    Forked,
    Stream,
    WrongState,
    current_device,
    current_stream,
    default_stream,
    set_device,
    set_stream,
    use_device,
)
from forebay._base.device_spec import Device
from forebay.runtime.devices import current

pytestmark = pytest.mark.usefixtures("clean")


def run_in_thread(function):
    """Return the result of the function in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=30)


def test_default_current_device_is_the_accelerator(fake):
    assert run_in_thread(current_device) == Device("fake:0")
    assert current_device() == Device("cpu")
    assert fake.ports == []  # the lookup does not open a device


def test_current_device_and_stream_are_per_thread(fake):
    set_device("fake:1")
    stream = Stream("fake:1")
    set_stream(stream)
    assert run_in_thread(lambda: (current_device(), current_stream("fake:1"))) == (
        Device("fake:0"),
        default_stream("fake:1"),
    )
    assert run_in_thread(lambda: set_device("cpu")) is None
    assert (current_device(), current_stream()) == (Device("fake:1"), stream)


def test_kind_without_index_is_the_current_device_of_that_kind(fake):
    set_device("fake:1")
    set_device("cpu")
    assert current.resolve("fake") == Device("fake:1")
    assert current.resolve(Device("fake")) == Device("fake:1")
    assert current.resolve(0) == Device("fake:0")  # an index of the accelerator, although the CPU is current
    with use_device("fake:0"):
        assert current.resolve("fake") == Device("fake:0")
        assert current.resolve(1) == Device("fake:1")
    assert current.resolve("fake") == Device("fake:1")


@pytest.mark.parametrize("device", [1.5, True, ("cpu", 0), object()])
def test_invalid_device_argument_is_refused(device):
    with pytest.raises(TypeError, match=r"^argument 'device' must be forebay\.device, not "):
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


def test_missing_device_leaves_the_current_device_unchanged(fake):
    for attempt in (lambda: set_device("fake:9"), lambda: use_device("fake:9").__enter__()):
        with pytest.raises(ForebayError):
            attempt()
        assert current_device() == Device("cpu")


def test_stream_context_also_changes_the_device(fake):
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


def test_stream_context_can_be_nested_in_itself():
    stream, other = Stream(), Stream()
    with stream:
        with other, stream:
            assert current_stream() is stream
        assert current_stream() is stream
    assert current_stream() == default_stream()


def test_stream_context_restores_the_stream_of_its_device(fake):
    with Stream("cpu") as stream:
        set_stream(Stream("cpu"))
        assert current_stream() != stream
        set_device("fake:1")
    assert (current_device(), current_stream("cpu")) == (Device("fake", 1), default_stream("cpu"))  # as PyTorch
    set_device("cpu")


def test_stream_context_does_not_set_the_device_that_is_only_preferred():
    def work():
        found = [current_device()]
        with Stream("cpu"):
            found.append(current_device())
        with forebay.emulate("cuda"):
            return [*found, current_device()]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == [Device("cpu"), Device("cpu"), Device("cuda", 0)]


def test_threads_leave_one_stream_independently():
    """Each thread restores its own state, whichever exits the context first."""
    stream, entered, exit_allowed = Stream(), threading.Event(), threading.Event()

    def other():
        previous = Stream()
        set_stream(previous)
        with stream:
            entered.set()
            assert exit_allowed.wait(30)
        return current_stream() is previous

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(other)
        assert entered.wait(30)
        with stream:
            exit_allowed.set()
            assert found.result(30)
            assert current_stream() is stream
        assert current_stream() == default_stream()


def test_exit_without_enter_raises():
    with pytest.raises(WrongState, match="not entered by this thread"):
        Stream().__exit__(None, None, None)


def test_stream_context_exit_does_not_open_a_device(fake):
    """The previous device may not have been opened."""
    current.thread_state().device = Device("fake:1")
    with Stream("cpu"):
        pass
    assert current_device() == Device("fake:1")
    assert fake.ports == []


def test_set_stream_rejects_other_objects():
    with pytest.raises(TypeError, match="expected a Stream, not str"):
        set_stream("cpu")


def test_memory_is_allocated_on_the_current_stream():
    with Stream() as stream:
        assert forebay.allocate(1).queue == stream.handle
        assert forebay.empty(1).raw_storage.block.queue == stream.handle
    assert forebay.allocate(1).queue == 0


@pytest.mark.parametrize("name", ["cpu", "cpu:0", Device("cpu"), Device("cpu", 0)])
def test_names_of_the_first_cpu_device_are_equivalent(fake, name):
    assert current.resolve(name) == Device("cpu")
    assert forebay.zeros(3, device=name).device == Device("cpu")
    assert forebay.zeros(3, device="fake:0").to(name).tolist() == [0, 0, 0]


@pytest.mark.parametrize("spelled", [str, Device])
def test_names_of_devices_follow_the_current_index(fake, spelled):
    """A name without an index is looked up again after each way to change the current device."""

    def index() -> int | None:
        return forebay.empty(1, device=spelled("fake")).device.index

    assert index() == 0
    set_device("fake:1")
    assert index() == 1
    with use_device("fake:0"):
        assert index() == 0
    assert index() == 1
    with Stream("fake:0"):
        assert index() == 0
    assert index() == 1
    set_stream(Stream("fake:0"))
    assert index() == 0
    with forebay.device("fake:1"):  # the default device of factories, not the current one
        assert index() == 0
    assert run_in_thread(index) == 0


def test_names_of_unusable_devices_are_looked_up_again(fake):
    """In a forked child, where the parent's thread has used the name."""
    current.opened_for("fake:1").mark_unusable("forked")
    with pytest.raises(Forked):
        forebay.empty(1, device="fake:1")
