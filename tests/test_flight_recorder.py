"""The flight recorder: files when memory runs out, at exit and on a signal, and never an error of its own."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time

import pytest

import forebay
from forebay import snapshot
from forebay.errors import ForebayWarning
from forebay.flight_recorder import FlightRecorder

GIB = 1 << 30


@pytest.fixture
def device():
    with forebay.emulate("cuda", memory="1GiB"):
        yield "cuda"


def run_out(device="cuda", nbytes=4 * GIB):
    with pytest.raises(forebay.OutOfMemory):
        forebay.empty(nbytes, dtype=forebay.uint8, device=device)


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_oom_is_written_before_it_is_raised(tmp_path, device):
    with FlightRecorder(tmp_path / "new", on=["oom"]) as recorder:
        kept = forebay.empty(256 << 20, dtype=forebay.uint8, device=device)
        run_out()
    (path,) = recorder.written
    assert path.name == f"oom-{os.getpid()}-1-cuda-0.forebay"
    (found,) = snapshot.load(path)
    assert found.trace["action"].tolist()[-1] == snapshot.Action.OOM
    text = path.with_suffix(".txt").read_text()
    assert "cuda:0 ran out of memory" in text
    assert "256.00 MiB" in text
    assert "test_flight_recorder.py" in text
    assert not [line for line in text.splitlines() if line.endswith(" ")]
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, path.with_suffix(".txt").name]
    del kept


def test_devices_opened_later_are_recorded(tmp_path):
    with FlightRecorder(tmp_path, on=["oom"]) as recorder:
        for _ in range(2):  # the second emulation has devices of its own
            with forebay.emulate("cuda", memory="1GiB", count=2):
                run_out("cuda:1")
    assert [path.stem.rpartition("-")[0][-6:] for path in recorder.written] == ["1-cuda", "2-cuda"]
    assert [snapshot.load(path)[0].device for path in recorder.written] == ["cuda:1", "cuda:1"]


def test_number_of_files_is_limited(tmp_path, device):
    with FlightRecorder(tmp_path, on=["oom"], limit=2, replay=False) as recorder:
        for _ in range(5):
            run_out()
    assert (len(recorder.written), recorder.suppressed) == (2, 3)
    assert len(list(tmp_path.iterdir())) == 4


def test_history_is_bounded(tmp_path, device):
    with FlightRecorder(tmp_path, entries=10, on=["oom"], replay=False) as recorder:
        for _ in range(100):
            forebay.empty(1024, dtype=forebay.uint8, device=device)
        run_out()
    (found,) = snapshot.load(recorder.written[0])
    assert (len(found.trace), found.lost > 100) == (10, True)


def test_recording_of_program_is_left_as_it_is(tmp_path, device):
    forebay.memory.record_history(50, device=device)
    forebay.empty(1024, dtype=forebay.uint8, device=device)
    with FlightRecorder(tmp_path, entries=10, on=["oom"], replay=False) as recorder:
        run_out()
    (found,) = snapshot.load(recorder.written[0])
    assert found.trace["nbytes"][found.trace["action"] == snapshot.Action.ALLOC].tolist() == [1024]


def test_error_while_writing_does_not_replace_oom(tmp_path, device):
    with FlightRecorder(tmp_path / "gone", on=["oom"]) as recorder:
        shutil.rmtree(tmp_path / "gone")
        with pytest.warns(ForebayWarning, match="was not written completely: FileNotFoundError"):
            run_out()
    assert recorder.written == ()


def test_running_out_while_writing_ends(tmp_path, device, monkeypatch):
    from forebay.snapshot.formats import native

    write = native.write

    def write_and_run_out(*arguments):
        run_out()
        write(*arguments)

    monkeypatch.setattr(native, "write", write_and_run_out)
    with FlightRecorder(tmp_path, on=["oom"]) as recorder:
        run_out(device)
    assert len(recorder.written) == 1


def test_interrupt_while_writing_leaves_no_file(tmp_path, device, monkeypatch):
    from forebay.snapshot.formats import native

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with FlightRecorder(tmp_path, on=["oom"]) as recorder:
        monkeypatch.setattr(native, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            forebay.empty(4 * GIB, dtype=forebay.uint8, device=device)
        monkeypatch.undo()
        run_out()
    assert len(recorder.written) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_signal_writes_all_devices_and_calls_earlier_handler(tmp_path, device):
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *arguments: seen.append(arguments[0]))
    try:
        with FlightRecorder(tmp_path, on=["signal"], replay=False) as recorder:
            kept = forebay.empty(1024, dtype=forebay.uint8, device=device)
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_for(lambda: list(tmp_path.glob("signal-*cuda-0.txt")))
            ours = signal.getsignal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) not in (ours, signal.SIG_DFL)
        assert seen == [signal.SIGUSR1]
        assert any(path.name.endswith("cuda-0.forebay") for path in recorder.written)
        del kept
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_signal_needs_main_thread(tmp_path):
    errors = []

    def start():
        try:
            FlightRecorder(tmp_path).start()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(30)
    assert len(errors) == 1
    assert "main thread" in errors[0]


def test_rank_is_in_names(tmp_path, device, monkeypatch):
    monkeypatch.setenv("RANK", "12")
    with FlightRecorder(tmp_path, on=["oom"], replay=False) as recorder:
        run_out()
    assert recorder.written[0].name.startswith("rank12-oom-")


def test_second_start_is_refused_and_second_stop_ignored(tmp_path):
    recorder = FlightRecorder(tmp_path, on=["oom"])
    recorder.stop()
    recorder.start()
    with pytest.raises(RuntimeError, match="started already"):
        recorder.start()
    recorder.stop()
    recorder.stop()


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"on": ["oom", "never"]}, "'never'"),
        ({"on": "oom"}, "'oom'"),
        ({"entries": 0}, "at least 1, not 0"),
        ({"limit": -1}, "not -1"),
    ],
)
def test_invalid_arguments(tmp_path, named, text):
    with pytest.raises(ValueError, match=text):
        FlightRecorder(tmp_path, **named)


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        FlightRecorder(tmp_path / "file")
