"""`forebay.mps.profiler`: modes, PyTorch's errors, and the content of the file."""

from __future__ import annotations

import os
import sys
import types

import pytest
from support.perfetto_files import decode

import forebay
from forebay import cuda
from forebay.mps import profiler
from forebay.observe.tracing import profiler_session
from forebay.runtime.base import observers

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def trace_folder(clean, tmp_path, monkeypatch):
    """Directory of the trace files, with an emulated device."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_TRACE", raising=False)
    with forebay.emulate("mps", profile="apple_m3_max", memory="512MiB"):
        yield tmp_path
        profiler.stop()
    assert observers.tracer is None


def default_file(folder, number=""):
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
def test_mode_selects_what_is_traced(trace_folder, mode, slices, moments):
    with profiler.profile(mode):
        forebay.zeros(10, device="mps")
        forebay.synchronize("mps")
    found = decode(default_file(trace_folder))
    assert {each.category for each in found.slices} - {"recording"} == slices
    assert {each.category for each in found.moments} == moments


@pytest.mark.parametrize("mode", ["", ",", "  "], ids=["empty", "comma", "blank"])
def test_an_empty_mode_starts_nothing(trace_folder, mode):
    profiler.start(mode)
    assert observers.tracer is None
    profiler.start(mode, True)
    profiler.stop()
    assert list(trace_folder.iterdir()) == []


@pytest.mark.parametrize(("mode", "word"), [("nonsense", "nonsense"), ("interval,x", "x"), ("Intervals", "intervals")])
def test_unknown_modes_are_rejected_and_start_no_trace(trace_folder, mode, word):
    with pytest.raises(RuntimeError) as caught:
        profiler.start(mode)
    assert str(caught.value) == f"Invalid Signpost trace mode: {word}"
    assert observers.tracer is None


def test_only_one_trace_is_active_at_a_time(trace_folder):
    profiler.start()
    with pytest.raises(RuntimeError) as caught:
        profiler.start("event")
    assert str(caught.value) == "Tracing Signposts is already enabled "
    profiler.stop()
    profiler.stop()
    profiler.start()
    profiler.stop()
    assert default_file(trace_folder).exists()
    assert default_file(trace_folder, "-2").exists()


def test_nested_profile_ends_the_outer_trace_as_in_pytorch(trace_folder):
    with pytest.raises(RuntimeError, match="already enabled"), profiler.profile(), profiler.profile():
        pass
    assert observers.tracer is None
    profiler.start()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3,), AttributeError, "'int' object has no attribute 'lower'"),
        ((None,), AttributeError, "'NoneType' object has no attribute 'lower'"),
        (("interval", 3), RuntimeError, "couldn't convert python object to boolean"),
        (("interval", None), RuntimeError, "couldn't convert python object to boolean"),
    ],
)
def test_invalid_arguments_raise_pytorchs_errors(arguments, error, message):
    with pytest.raises(error) as caught:
        profiler.start(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (profiler.start, "Cannot execute profilerStartTrace() without MPS backend."),
        (profiler.stop, "Cannot execute profilerStopTrace() without MPS backend."),
        (lambda: profiler.profile().__enter__(), "Cannot execute profilerStopTrace() without MPS backend."),
        (lambda: profiler.metal_capture("x").__enter__(), "Cannot execute startCapture() without MPS backend."),
    ],
    ids=["start", "stop", "profile", "metal_capture"],
)
def test_missing_device_raises_pytorchs_error(call, message):
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value).splitlines()[0] == message


def test_metal_capture_is_unsupported(trace_folder, monkeypatch):
    monkeypatch.setenv("MTL_CAPTURE_ENABLED", "1")
    assert profiler.is_metal_capture_enabled() is False
    assert profiler.is_capturing_metal() is False
    with pytest.raises(forebay.Unsupported, match="mps:0 has none"), profiler.metal_capture("x"):
        pass


def test_wait_until_completed_waits_for_each_operation(trace_folder):
    with profiler.profile("interval", wait_until_completed=True):
        tensor = forebay.zeros(1 << 20, device="mps")
        assert forebay.current_stream("mps").query()
        tensor.fill_(1)
    first, second = decode(default_file(trace_folder)).executed
    call = next(each for each in decode(default_file(trace_folder)).queueing_calls if each.id == second.id)
    assert first.end <= call.begin


def test_environment_variable_names_the_file(trace_folder, monkeypatch):
    monkeypatch.setenv("FOREBAY_TRACE", "requested.pftrace")
    with profiler.profile():
        forebay.zeros(10, device="mps")
    assert [each.name for each in trace_folder.iterdir()] == ["requested.pftrace"]
    assert len(decode(trace_folder / "requested.pftrace").executed) == 1


def test_stop_writes_the_trace_after_its_emulation_has_ended(clean, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with forebay.emulate("mps"):
        profiler.start()
        forebay.zeros(10, device="mps")
    profiler.stop()
    assert len(decode(default_file(tmp_path)).executed) == 1
    with pytest.raises(RuntimeError, match=r"^Cannot execute profilerStopTrace\(\) without MPS backend"):
        profiler.stop()


def test_mps_stop_does_not_end_a_cuda_trace(trace_folder):
    profiler_session.begin("cuda", trace_folder / "other.pftrace")
    profiler.stop()
    with profiler.profile():
        assert profiler_session.is_active()
    assert profiler_session.is_active()
    profiler_session.end("cuda")
    assert [each.name for each in trace_folder.iterdir()] == ["other.pftrace"]


def test_cuda_profiler_does_not_end_an_mps_trace(trace_folder, monkeypatch):
    monkeypatch.setenv("FOREBAY_TRACE", "requested.pftrace")
    with forebay.emulate("cuda"):
        profiler.start()
        with cuda.profiler.profile():
            forebay.zeros(10, device="mps")
        forebay.zeros(10, device="mps")
        profiler.stop()
    assert len(decode(trace_folder / "requested.pftrace").executed) == 2


# Signposts, with a fake of the macOS package


class Signposter:
    Category = types.SimpleNamespace(DynamicTracing="DynamicTracing")
    calls: list = []  # noqa: RUF012 -- shared: the code under test creates the object

    def __init__(self, subsystem, category):
        self.calls.append(("log", subsystem, category))

    def begin_interval(self, text):
        self.calls.append(("begin", text))
        return lambda text=None: self.calls.append(("end", text))

    def emit_event(self, text):
        self.calls.append(("event", text))


@pytest.fixture
def signposter(trace_folder, monkeypatch):
    """The fake package, on a platform that claims to be macOS."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "os_signpost", types.SimpleNamespace(Signposter=Signposter))
    monkeypatch.setattr(Signposter, "calls", [])
    return Signposter


def test_operations_are_signposts_on_macos(signposter):
    with profiler.profile("interval,event"):
        tensor = forebay.empty(10, device="mps")
        tensor.fill_(0)
        forebay.synchronize("mps")
    assert signposter.calls == [
        ("log", "forebay", "DynamicTracing"),
        ("begin", "queue 0"),
        ("end", "fill fill_, 40 bytes"),
        ("event", "fill fill_, 40 bytes"),
    ]


def test_mode_selects_signposts(signposter):
    tensor = forebay.empty(10, device="mps")
    with profiler.profile("event"):
        tensor.fill_(0)
        forebay.synchronize("mps")
    tensor.fill_(0)
    forebay.synchronize("mps")
    assert [each[0] for each in signposter.calls] == ["log", "event"]


def test_failing_signpost_package_starts_no_trace(signposter, monkeypatch):
    monkeypatch.setattr(signposter, "__init__", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        profiler.start()
    assert not profiler_session.is_active()
    assert observers.tracer is None


def test_macos_without_the_signpost_package_writes_only_the_file(trace_folder, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "os_signpost", None)
    with profiler.profile():
        forebay.zeros(10, device="mps")
    assert default_file(trace_folder).exists()
