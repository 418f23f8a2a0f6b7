"""Trace files: where they go, and what is told when they cannot."""

from __future__ import annotations

import sys

import pytest
from support.perfetto_files import decoded

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
def asked_for(path, monkeypatch):
    """The file that FOREBAY_TRACE names."""
    monkeypatch.setenv("FOREBAY_TRACE", str(path))
    yield path
    profiler_session.end("cuda")


def test_an_error_inside_goes_on_and_the_trace_is_written(path):
    def program():
        with trace(path):
            forebay.zeros(10)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        program()
    assert len(decoded(path).executed) == 1


@pytest.mark.parametrize("where", ["no/folder/made.pftrace", "."], ids=["no folder", "a folder"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_recorded(tmp_path, where):
    with pytest.raises(OSError, match=rf"'{tmp_path / where}'"):  # and not in the name of a file beside it
        Trace(tmp_path / where).start()
    assert observers.tracer is None


def test_a_folder_that_goes_meanwhile_is_told_at_the_end(tmp_path):
    folder = tmp_path / "gone"
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


def test_a_file_that_was_there_stays_until_the_trace_is_whole(path):
    path.write_text("before")
    with trace(path):
        assert path.read_text() == "before"
    assert decoded(path).recording["operations"] == 0
    assert list(path.parent.iterdir()) == [path]


def test_started_twice_and_stopped_twice(path):
    made = Trace(path)
    made.stop()  # nothing to stop
    assert not path.exists()
    made.start()
    with pytest.raises(WrongState, match="started before"):
        made.start()
    made.stop()
    path.unlink()
    made.stop()
    assert not path.exists()
    with pytest.raises(WrongState, match="started before"):
        made.start()


@pytest.mark.parametrize(
    ("nonsense", "words"),
    [
        ({"most": 0}, "from 1 to .*, not 0"),
        ({"most": 1 << 63}, "from 1 to"),
        ({"most": 1.5}, "not 1.5"),
        ({"limit": -1}, "seconds, not -1"),
    ],
    ids=["no entries", "too many", "half an entry", "before now"],
)
def test_nonsense_is_refused(path, nonsense, words):
    with pytest.raises(ValueError, match=words):
        Trace(path, **nonsense)


def test_without_the_package_it_is_said_how_to_have_it(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install perfetto"), trace(path):
        pass
    assert (observers.tracer, path.exists()) == (None, False)


def test_a_trace_of_nothing_is_a_trace(path):
    with trace(path) as made:
        pass
    found = decoded(path)
    assert (made.operations, [each.name for each in found.slices]) == (0, ["recording"])


def test_many_packets_are_written_in_parts(path, monkeypatch):
    monkeypatch.setattr(perfetto, "_PACKETS", 7)
    tensor = forebay.empty(10)
    with trace(path):
        for _ in range(20):
            tensor.fill_(0)
    assert len(decoded(path).executed) == 20


def test_names_that_utf_8_cannot_tell_are_told_nearly(path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["\udcff.py"])
    source = compile("forebay.zeros(10)", "\udcfe.py", "exec")
    with trace(path):
        ranges.push("a\ud800b")
        exec(source, {"forebay": forebay})
        ranges.pop()
    found = decoded(path)
    assert [(each.name, each.file) for each in found.slices[1:3]] == [("a?b", ""), ("fill_", "?.py")]
    assert found.recording["program"] == "?.py"


def test_threads_that_stop_it_at_once_write_it_once(path, eight_threads):
    made = Trace(path)
    made.start()
    forebay.zeros(10)
    eight_threads(lambda _: made.stop())
    assert len(decoded(path).executed) == 1


def test_ctrl_c_while_it_is_written(path, monkeypatch):
    """The next to stop it writes it."""
    made = Trace(path)
    made.start()
    forebay.zeros(10)
    monkeypatch.setattr(session, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.stop()
    monkeypatch.undo()
    forebay.zeros(10)
    assert not made.written
    made.stop()
    assert made.written
    assert len(decoded(path).executed) == 1


def interrupted(*_, **__):
    raise KeyboardInterrupt


# torch.cuda.profiler


def test_cudas_profiler_records_where_a_file_is_asked_for(asked_for, emulated):
    with cuda.profiler.profile():
        forebay.zeros(10, device="cuda:0")
        cuda.profiler.start()  # goes on already
    cuda.profiler.stop()
    found = decoded(asked_for)
    assert [each.name for each in found.executed] == ["fill_"]
    assert [each.name for each in found.moments][:2] == ["cudaProfilerStart", "cudaProfilerStart"]
    with cuda.profiler.profile():
        pass
    second = asked_for.with_name("made-2.pftrace")
    assert decoded(second).executed == []
    assert len(decoded(asked_for).executed) == 1


def test_cudas_profiler_records_nothing_unasked(emulated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_TRACE", raising=False)
    with cuda.profiler.profile():
        assert observers.tracer is None
    assert list(tmp_path.iterdir()) == []


def test_cudas_profiler_ends_though_its_devices_have_gone(asked_for):
    with forebay.emulate("cuda"):
        cuda.profiler.start()
        forebay.zeros(10, device="cuda")
    cuda.profiler.stop()
    assert len(decoded(asked_for).executed) == 1
    with pytest.raises(RuntimeError, match="Found no NVIDIA driver"):
        cuda.profiler.stop()


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_what_the_program_raised_matters_more_than_the_file(asked_for, monkeypatch, kind):
    def full(*_):
        raise OSError(28, "No space left on device")

    profile = cuda.profiler.profile if kind == "cuda" else mps_profiler.profile
    monkeypatch.setattr(perfetto, "write", full)
    with forebay.emulate(kind):
        with pytest.raises(ZeroDivisionError) as raised, profile():
            raise ZeroDivisionError
        with pytest.raises(OSError, match="No space left"), profile():
            pass
    assert raised.value.__notes__ == ["and the trace could not be written: [Errno 28] No space left on device"]
