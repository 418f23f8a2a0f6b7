"""`support.on_oracle`, with a fake torch module in place of the oracle."""

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
    """Return a factory of scene files, with an oracle that imports the fake torch."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "run.sh").write_text(f'PYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(on_oracle, "ORACLE", tmp_path / "run.sh")
    monkeypatch.setattr(on_oracle, "ORACLE_HOME", tmp_path)
    monkeypatch.setattr(on_oracle, "RECORDS", tmp_path / "records")

    def make(source: str) -> SceneFile:
        path = tmp_path / "scenes.py"
        path.write_text(dedent(source))
        return SceneFile(path)

    return make


def test_functions_with_cuda_and_torch_like_are_scenes(scenes):
    found = scenes("""
        from os.path import join
        def helper(cuda): ...
        def scene(cuda, torch_like): ...
    """)
    assert list(found.scenes) == ["scene"]


def test_write_records_the_oracles_results(scenes):
    found = scenes("def scene(cuda, torch_like): return (cuda.current, {'version': torch_like.__version__})")
    assert found.recorded() == {}
    found.write()
    assert found.recorded() == {"scene": [0, {"version": "0"}]}


def test_scenes_are_isolated(scenes):
    found = scenes("""
        def first(cuda, torch_like):
            cuda.current += 1
            return cuda.current
        def second(cuda, torch_like):
            return first(cuda, torch_like)
    """)
    assert found.run_on("pytorch")["scenes"] == {"first": 1, "second": 1}


def test_scene_may_print_and_sees_its_environment(scenes):
    found = scenes("""
        import os
        ENVIRON = {"SCENE_VALUE": "early"}
        BEFORE = os.environ.get("SCENE_VALUE")
        def scene(cuda, torch_like):
            print("noise", flush=True)
            return BEFORE
    """)
    assert found.fresh
    assert found.run_on("pytorch")["scenes"] == {"scene": "early"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return cuda.nothing", "scene: Traceback[^$]*has no attribute 'nothing'"),
        ("return object()", "not JSON serializable"),
        ("os._exit(3)", "its process died: wait status 768"),
        ("os.kill(os.getpid(), 9)", "its process died: wait status 9"),
    ],
    ids=["error", "not serializable", "exits", "killed"],
)
def test_failing_scene_is_reported_and_not_recorded(scenes, body, message):
    found = scenes(f"import os\ndef scene(cuda, torch_like): {body}")
    with pytest.raises(AssertionError, match=message):
        found.write()
    assert not found.record.exists()


def test_hanging_scene_is_killed(monkeypatch):
    monkeypatch.setattr(on_oracle, "SCENE_SECONDS", 0.1)
    key, message = on_oracle._fork(signal.pause)
    assert (key, message) == ("failed", "it took more than 0.1 seconds")


def test_difference_without_a_scene_is_rejected(scenes):
    with pytest.raises(ValueError, match=r"\['scone'\], which are not scenes"):
        scenes("DIFFERS = {'scone': 'a reason'}\ndef scene(cuda, torch_like): ...")


@pytest.mark.parametrize(
    ("result", "equal"),
    [({"a": 1, "b": 3}, True), ({"a": 1, "b": 2}, False), ({"a": 0, "b": 3}, False)],
    ids=["only listed key differs", "listed key is equal", "other key differs"],
)
def test_listed_keys_and_only_those_differ(scenes, result, equal):
    found = scenes("DIFFERING_KEYS = {'a reason': 'b'}\ndef scene(cuda, torch_like): ...")
    here, expected = found.compared(result, {"a": 1, "b": 2})
    assert (here == expected) is equal


@pytest.mark.parametrize("missing", ["run.sh", "lib"])
def test_missing_oracle_is_explained(scenes, tmp_path, missing):
    assert on_oracle.why_no_oracle() == ""
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    assert "oracle" in on_oracle.why_no_oracle()


class TestOutcome:
    cuda = SimpleNamespace(OutOfMemoryError=type("OOM", (RuntimeError,), {}))

    def test_plain_value_is_returned(self):
        assert outcome(self.cuda, max, 1, 2) == {"value": 2}

    def test_other_value_is_its_type_name(self):
        assert outcome(self.cuda, object) == {"value": "object"}
        assert outcome(self.cuda, lambda: [object()]) == {"value": "list"}

    def test_error_is_the_public_base_class_name(self):
        def fail(kind):
            raise kind("why")

        hidden = type("Hidden", (self.cuda.OutOfMemoryError,), {})
        assert outcome(self.cuda, fail, hidden) == {"error": "OutOfMemoryError", "message": "why"}
        assert outcome(self.cuda, fail, type("Ours", (ValueError,), {})) == {"error": "ValueError", "message": "why"}

    def test_warnings_are_included(self):
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
def test_comparable_removes_expected_differences(theirs, ours):
    assert comparable({"text": [theirs]}) == {"text": [ours]}


def test_forked_scene_equals_scene_in_this_process():
    found = SceneFile(on_oracle.SCENES / "visible_devices.py")
    assert found.run_on("forebay")["scenes"]["rows"] == found.run_here("rows")
