"""What `on_oracle` itself promises, with a torch of three lines in the oracle's place."""

from __future__ import annotations

import signal
import sys
from textwrap import dedent
from types import SimpleNamespace

import pytest
from support import on_oracle
from support.on_oracle import SceneFile, comparable, outcome

TORCH = """
__version__ = "0"
class cuda:
    current = 0
    class OutOfMemoryError(RuntimeError): ...
    class _Hidden(OutOfMemoryError): ...
"""


@pytest.fixture
def scenes(tmp_path, monkeypatch):
    """Makes a file of scenes, and an oracle that has another torch."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "run.sh").write_text(f'PYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(on_oracle, "ORACLE", tmp_path / "run.sh")
    monkeypatch.setattr(on_oracle, "ORACLE_HOME", tmp_path)
    monkeypatch.setattr(on_oracle, "RECORDS", tmp_path / "records")

    def make(source: str) -> SceneFile:
        path = tmp_path / "told.py"
        path.write_text(dedent(source))
        return SceneFile(path)

    return make


def test_only_functions_of_the_two_sides_are_scenes(scenes):
    found = scenes("""
        from os.path import join
        def helper(cuda): ...
        def scene(cuda, torch_like): ...
    """)
    assert list(found.scenes) == ["scene"]


def test_a_record_is_what_the_oracle_said(scenes):
    found = scenes("def scene(cuda, torch_like): return (cuda.current, {'version': torch_like.__version__})")
    assert found.recorded() == {}
    found.write()
    assert found.recorded() == {"scene": [0, {"version": "0"}]}


def test_a_scene_does_not_see_what_another_left(scenes):
    found = scenes("""
        def first(cuda, torch_like):
            cuda.current += 1
            return cuda.current
        def second(cuda, torch_like):
            return first(cuda, torch_like)
    """)
    assert found.on("pytorch")["scenes"] == {"first": 1, "second": 1}


def test_one_scene_can_be_asked_for(scenes):
    found = scenes("def one(cuda, torch_like): return 1\ndef two(cuda, torch_like): return 2")
    assert found.on("pytorch", "two")["scenes"] == {"two": 2}


def test_a_scene_may_print_and_its_environment_is_set(scenes):
    found = scenes("""
        import os
        ENVIRON = {"TOLD": "early"}
        BEFORE = os.environ.get("TOLD")
        def scene(cuda, torch_like):
            print("noise", flush=True)
            return BEFORE
    """)
    assert found.fresh
    assert found.on("pytorch")["scenes"] == {"scene": "early"}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return cuda.nothing", "scene: Traceback[^$]*has no attribute 'nothing'"),
        ("return object()", "not JSON serializable"),
        ("os._exit(3)", "its process died: wait status 768"),
        ("os.kill(os.getpid(), 9)", "its process died: wait status 9"),
    ],
    ids=["wrong", "not plain", "leaves", "killed"],
)
def test_a_scene_that_fails_is_told_and_nothing_is_recorded(scenes, body, told):
    found = scenes(f"import os\ndef scene(cuda, torch_like): {body}")
    with pytest.raises(AssertionError, match=told):
        found.write()
    assert not found.record.exists()


def test_a_scene_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(on_oracle, "SCENE_SECONDS", 0.1)
    key, told = on_oracle._fork(signal.pause)
    assert (key, told) == ("failed", "it took more than 0.1 seconds")


def test_a_difference_of_no_scene_is_refused(scenes):
    with pytest.raises(ValueError, match=r"\['scone'\], which are no scenes"):
        scenes("DIFFERS = {'scone': 'a reason'}\ndef scene(cuda, torch_like): ...")


@pytest.mark.parametrize("missing", ["run.sh", "lib"])
def test_an_absent_oracle_is_explained(scenes, tmp_path, missing):
    assert on_oracle.why_no_oracle() == ""
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    assert "oracle" in on_oracle.why_no_oracle()


class TestOutcome:
    cuda = SimpleNamespace(OutOfMemoryError=type("OOM", (RuntimeError,), {}))

    def test_of_a_plain_value(self):
        assert outcome(self.cuda, max, 1, 2) == {"value": 2}

    def test_of_another_value_is_its_type(self):
        assert outcome(self.cuda, object) == {"value": "object"}
        assert outcome(self.cuda, lambda: [object()]) == {"value": "list"}

    def test_of_an_error_is_the_name_that_a_program_catches(self):
        def fail(kind):
            raise kind("why")

        hidden = type("Hidden", (self.cuda.OutOfMemoryError,), {})
        assert outcome(self.cuda, fail, hidden) == {"error": "OutOfMemoryError", "says": "why"}
        assert outcome(self.cuda, fail, type("Ours", (ValueError,), {})) == {"error": "ValueError", "says": "why"}

    def test_tells_the_warnings(self):
        import warnings

        def warn():
            warnings.warn("old", FutureWarning, stacklevel=1)

        assert outcome(self.cuda, warn) == {"value": None, "warns": [["FutureWarning", "old"]]}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Torch not compiled with CUDA enabled", "forebay not compiled with CUDA enabled"),
        ("the torch.cuda.Stream of PyTorch", "the forebay.cuda.Stream of forebay"),
        ("bad (Triggered internally at /a/b.cpp:33.)", "bad"),
        ("no\nException raised from f at x.cpp:1 (most recent call first):\nframe #0", "no"),
        ('!x INTERNAL ASSERT FAILED at "/a/b.cpp":5, please report a bug to PyTorch. why', "why"),
        ("<Stream cuda_stream=0x55d0c0ffee00>", "<Stream cuda_stream=0x…>"),
        ("invalid device pointer: 0x4d2", "invalid device pointer: 0x4d2"),
        ("a flashtorch", "a flashtorch"),
    ],
)  # fmt: skip
def test_what_is_not_compared(theirs, ours):
    assert comparable({"text": [theirs]}) == {"text": [ours]}


def test_forks_of_a_new_process_tell_what_this_one_does():
    found = SceneFile(on_oracle.SCENES / "visible_devices.py")
    assert found.on("forebay", "rows")["scenes"] == {"rows": found.here("rows")}
