"""`forebay.mps.profiler`: modes, errors in PyTorch's words, and what is in the file."""

from __future__ import annotations

import os
import sys
import types

import pytest
from support.perfetto_files import decoded

import forebay
from forebay import cuda
from forebay.mps import profiler
from forebay.observe.tracing import profiler_session
from forebay.runtime.base import observers

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def mps(clean, tmp_path, monkeypatch):
    """An emulated device, and a folder to write to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_TRACE", raising=False)
    with forebay.emulate("mps", profile="apple_m3_max", memory="512MiB"):
        yield tmp_path
        profiler.stop()
    assert observers.tracer is None


def usual(folder, number=""):
    return folder / f"forebay-trace-{os.getpid()}{number}.pftrace"


@pytest.mark.parametrize(
    ("mode", "slices", "moments"),
    [
        ("interval", {"fill", "host"}, set()),
        ("event", set(), {"fill", "event"}),
        ("interval,event", {"fill", "host"}, {"event"}),
        (" Event , INTERVAL,", {"fill", "host"}, {"event"}),
    ],
)
def test_the_mode_says_what_is_traced(mps, mode, slices, moments):
    with profiler.profile(mode):
        forebay.zeros(10, device="mps")
        forebay.synchronize("mps")
    found = decoded(usual(mps))
    assert {each.category for each in found.slices} - {"recording"} == slices
    assert {each.category for each in found.moments} == moments


@pytest.mark.parametrize("mode", ["", ",", "  "], ids=["empty", "comma", "blank"])
def test_an_empty_mode_starts_nothing(mps, mode):
    profiler.start(mode)
    assert observers.tracer is None
    profiler.start(mode, True)
    profiler.stop()
    assert list(mps.iterdir()) == []


@pytest.mark.parametrize(("mode", "word"), [("nonsense", "nonsense"), ("interval,x", "x"), ("Intervals", "intervals")])
def test_another_mode_is_refused_and_nothing_is_started(mps, mode, word):
    with pytest.raises(RuntimeError) as caught:
        profiler.start(mode)
    assert str(caught.value) == f"Invalid Signpost trace mode: {word}"
    assert observers.tracer is None


def test_it_is_started_once_at_a_time(mps):
    profiler.start()
    with pytest.raises(RuntimeError) as caught:
        profiler.start("event")
    assert str(caught.value) == "Tracing Signposts is already enabled "
    profiler.stop()
    profiler.stop()
    profiler.start()
    profiler.stop()
    assert usual(mps).exists()
    assert usual(mps, "-2").exists()


def test_one_inside_another_ends_that_as_in_pytorch(mps):
    with pytest.raises(RuntimeError, match="already enabled"), profiler.profile(), profiler.profile():
        pass
    assert observers.tracer is None
    profiler.start()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((3,), AttributeError, "'int' object has no attribute 'lower'"),
        ((None,), AttributeError, "'NoneType' object has no attribute 'lower'"),
        (("interval", 3), RuntimeError, "couldn't convert python object to boolean"),
        (("interval", None), RuntimeError, "couldn't convert python object to boolean"),
    ],
)
def test_nonsense_is_refused_in_pytorchs_words(arguments, error, words):
    with pytest.raises(error) as caught:
        profiler.start(*arguments)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (profiler.start, "Cannot execute profilerStartTrace() without MPS backend."),
        (profiler.stop, "Cannot execute profilerStopTrace() without MPS backend."),
        (lambda: profiler.profile().__enter__(), "Cannot execute profilerStopTrace() without MPS backend."),
        (lambda: profiler.metal_capture("x").__enter__(), "Cannot execute startCapture() without MPS backend."),
    ],
    ids=["start", "stop", "profile", "metal_capture"],
)
def test_without_a_device_it_is_said_in_pytorchs_words(call, words):
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value).splitlines()[0] == words


def test_a_capture_of_metal_is_refused_for_want_of_metal(mps, monkeypatch):
    monkeypatch.setenv("MTL_CAPTURE_ENABLED", "1")
    assert profiler.is_metal_capture_enabled() is False
    assert profiler.is_capturing_metal() is False
    with pytest.raises(forebay.Unsupported, match="no backend"), profiler.metal_capture("x"):
        pass


def test_each_operation_is_waited_for_if_that_is_asked(mps):
    with profiler.profile("interval", wait_until_completed=True):
        tensor = forebay.zeros(1 << 20, device="mps")
        assert forebay.current_stream("mps").query()
        tensor.fill_(1)
    first, second = decoded(usual(mps)).executed
    call = next(each for each in decoded(usual(mps)).asked if each.id == second.id)
    assert first.end <= call.begin


def test_the_file_is_where_the_environment_says(mps, monkeypatch):
    monkeypatch.setenv("FOREBAY_TRACE", "mine.pftrace")
    with profiler.profile():
        forebay.zeros(10, device="mps")
    assert [each.name for each in mps.iterdir()] == ["mine.pftrace"]
    assert len(decoded(mps / "mine.pftrace").executed) == 1


def test_what_goes_on_is_ended_though_its_device_has_gone(clean, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with forebay.emulate("mps"):
        profiler.start()
        forebay.zeros(10, device="mps")
    profiler.stop()
    assert len(decoded(usual(tmp_path)).executed) == 1
    with pytest.raises(RuntimeError, match=r"^Cannot execute profilerStopTrace\(\) without MPS backend"):
        profiler.stop()


def test_it_does_not_end_what_cudas_profiler_began(mps):
    profiler_session.begin("cuda", mps / "other.pftrace")
    profiler.stop()
    with profiler.profile():
        assert profiler_session.going_on()
    assert profiler_session.going_on()
    profiler_session.end("cuda")
    assert [each.name for each in mps.iterdir()] == ["other.pftrace"]


def test_cudas_profiler_does_not_end_it_either(mps, monkeypatch):
    monkeypatch.setenv("FOREBAY_TRACE", "mine.pftrace")
    with forebay.emulate("cuda"):
        profiler.start()
        with cuda.profiler.profile():
            forebay.zeros(10, device="mps")
        forebay.zeros(10, device="mps")
        profiler.stop()
    assert len(decoded(mps / "mine.pftrace").executed) == 2


# Signposts: a stand-in for the package, as this is no Mac.


class Signposter:
    Category = types.SimpleNamespace(DynamicTracing="DynamicTracing")
    told: list = []  # noqa: RUF012 -- of the class, as the tests make no object

    def __init__(self, subsystem, category):
        self.told.append(("log", subsystem, category))

    def begin_interval(self, words):
        self.told.append(("begin", words))
        return lambda words=None: self.told.append(("end", words))

    def emit_event(self, words):
        self.told.append(("event", words))


@pytest.fixture
def a_mac(mps, monkeypatch):
    """One that says so, with the package installed."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "os_signpost", types.SimpleNamespace(Signposter=Signposter))
    monkeypatch.setattr(Signposter, "told", [])
    return Signposter


def test_on_a_mac_operations_are_signposts_too(a_mac):
    with profiler.profile("interval,event"):
        tensor = forebay.empty(10, device="mps")
        tensor.fill_(0)
        forebay.synchronize("mps")
    assert a_mac.told == [
        ("log", "forebay", "DynamicTracing"),
        ("begin", "queue 0"),
        ("end", "fill fill_, 40 bytes"),
        ("event", "fill fill_, 40 bytes"),
    ]


def test_signposts_are_as_the_mode_says(a_mac):
    tensor = forebay.empty(10, device="mps")
    with profiler.profile("event"):
        tensor.fill_(0)
        forebay.synchronize("mps")
    tensor.fill_(0)
    forebay.synchronize("mps")
    assert [each[0] for each in a_mac.told] == ["log", "event"]


def test_a_maker_of_signposts_that_fails_leaves_no_trace(a_mac, monkeypatch):
    monkeypatch.setattr(a_mac, "__init__", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        profiler.start()
    assert not profiler_session.going_on()
    assert observers.tracer is None


def test_a_mac_without_the_package_has_the_file_alone(mps, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "os_signpost", None)
    with profiler.profile():
        forebay.zeros(10, device="mps")
    assert usual(mps).exists()
