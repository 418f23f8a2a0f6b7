"""Trace files: paths, errors, and the profilers' files."""

from __future__ import annotations

import sys

import pytest
from support.perfetto_files import decode

import forebay
from forebay import cuda
from forebay.errors import WrongState
from forebay.mps import profiler as mps_profiler
from forebay.observe import Trace, trace
from forebay.observe.ranges import ranges
from forebay.observe.tracing import perfetto, profiler_session, session
from forebay.runtime.base import observers

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made.pftrace"


@pytest.fixture
def requested_file(path, monkeypatch):
    """The file that FOREBAY_TRACE names."""
    monkeypatch.setenv("FOREBAY_TRACE", str(path))
    yield path
    profiler_session.end("cuda")


def test_error_in_the_block_propagates_and_the_trace_is_written(path):
    def program():
        with trace(path):
            forebay.zeros(10)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        program()
    assert len(decode(path).executed) == 1


@pytest.mark.parametrize("name", ["no/folder/made.pftrace", "."], ids=["no folder", "a folder"])
def test_unwritable_file_raises_at_start(tmp_path, name):
    with pytest.raises(OSError, match=rf"'{tmp_path / name}'"):  # the given name, not the temporary file's
        Trace(tmp_path / name).start()
    assert observers.tracer is None


def test_folder_deleted_during_the_trace_raises_at_stop(tmp_path):
    folder = tmp_path / "deleted"
    folder.mkdir()
    with pytest.raises(FileNotFoundError), trace(folder / "made.pftrace"):
        folder.rmdir()

    def program():
        folder.mkdir()
        with trace(folder / "made.pftrace"):
            folder.rmdir()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        program()
    assert "could not be written" in caught.value.__notes__[0]
    assert observers.tracer is None


def test_existing_file_is_kept_until_the_trace_is_complete(path):
    path.write_text("before")
    with trace(path):
        assert path.read_text() == "before"
    assert decode(path).recording["operations"] == 0
    assert list(path.parent.iterdir()) == [path]


def test_second_start_raises_and_second_stop_does_nothing(path):
    recording = Trace(path)
    recording.stop()  # not started
    assert not path.exists()
    recording.start()
    with pytest.raises(WrongState, match="already started"):
        recording.start()
    recording.stop()
    path.unlink()
    recording.stop()
    assert not path.exists()
    with pytest.raises(WrongState, match="already started"):
        recording.start()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"most": 0}, "from 1 to .*, not 0"),
        ({"most": 1 << 63}, "from 1 to"),
        ({"most": 1.5}, "not 1.5"),
        ({"limit": -1}, "non-negative number of seconds, not -1"),
    ],
    ids=["no entries", "too many", "float", "negative limit"],
)
def test_invalid_arguments_raise_value_error(path, arguments, text):
    with pytest.raises(ValueError, match=text):
        Trace(path, **arguments)


def test_missing_package_error_says_how_to_install_it(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install perfetto"), trace(path):
        pass
    assert (observers.tracer, path.exists()) == (None, False)


def test_empty_trace_is_written(path):
    with trace(path) as recording:
        pass
    found = decode(path)
    assert (recording.operations, [each.name for each in found.slices]) == (0, ["recording"])


def test_packets_are_written_in_parts(path, monkeypatch):
    monkeypatch.setattr(perfetto, "_PACKETS", 7)
    tensor = forebay.empty(10)
    with trace(path):
        for _ in range(20):
            tensor.fill_(0)
    assert len(decode(path).executed) == 20


def test_non_utf8_names_are_escaped(path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["\udcff.py"])
    source = compile("forebay.zeros(10)", "\udcfe.py", "exec")
    with trace(path):
        ranges.push("a\ud800b")
        exec(source, {"forebay": forebay})
        ranges.pop()
    found = decode(path)
    assert [(each.name, each.file) for each in found.slices[1:3]] == [("a?b", ""), ("fill_", "?.py")]
    assert found.recording["program"] == "?.py"


def test_concurrent_stops_write_one_file(path, eight_threads):
    recording = Trace(path)
    recording.start()
    forebay.zeros(10)
    eight_threads(lambda _: recording.stop())
    assert len(decode(path).executed) == 1


def test_stop_interrupted_by_ctrl_c_can_be_repeated(path, monkeypatch):
    recording = Trace(path)
    recording.start()
    forebay.zeros(10)
    monkeypatch.setattr(session, "resolve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recording.stop()
    monkeypatch.undo()
    forebay.zeros(10)
    assert not recording.written
    recording.stop()
    assert recording.written
    assert len(decode(path).executed) == 1


def interrupted(*_, **__):
    raise KeyboardInterrupt


# torch.cuda.profiler


def test_cuda_profiler_traces_to_the_requested_file(requested_file, emulated):
    with cuda.profiler.profile():
        forebay.zeros(10, device="cuda:0")
        cuda.profiler.start()  # already started
    cuda.profiler.stop()
    found = decode(requested_file)
    assert [each.name for each in found.executed] == ["fill_"]
    assert [each.name for each in found.moments][:2] == ["cudaProfilerStart", "cudaProfilerStart"]
    with cuda.profiler.profile():
        pass
    second = requested_file.with_name("made-2.pftrace")
    assert decode(second).executed == []
    assert len(decode(requested_file).executed) == 1


def test_cuda_profiler_does_not_trace_without_a_requested_file(emulated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_TRACE", raising=False)
    with cuda.profiler.profile():
        assert observers.tracer is None
    assert list(tmp_path.iterdir()) == []


def test_cuda_profiler_stops_after_its_emulation_ended(requested_file):
    with forebay.emulate("cuda"):
        cuda.profiler.start()
        forebay.zeros(10, device="cuda")
    cuda.profiler.stop()
    assert len(decode(requested_file).executed) == 1
    with pytest.raises(RuntimeError, match="Found no NVIDIA driver"):
        cuda.profiler.stop()


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_programs_error_takes_precedence_over_the_files(requested_file, monkeypatch, kind):
    def full(*_):
        raise OSError(28, "No space left on device")

    profile = cuda.profiler.profile if kind == "cuda" else mps_profiler.profile
    monkeypatch.setattr(perfetto, "write", full)
    with forebay.emulate(kind):
        with pytest.raises(ZeroDivisionError) as raised, profile():
            raise ZeroDivisionError
        with pytest.raises(OSError, match="No space left"), profile():
            pass
    assert raised.value.__notes__ == ["the trace could not be written: [Errno 28] No space left on device"]
