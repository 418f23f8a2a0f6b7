"""Scenes that run on forebay.cuda and on the real torch.cuda over the oracle, a stand-in CUDA runtime.

A scene is a function `name(cuda, torch_like)` in a file of `scenes/`. It returns plain values (numbers, strings, lists,
dicts), which must be equal on both sides:

    from support.on_oracle import outcome  # and NumPy and the standard library; neither forebay, torch nor pytest

    def set_device_rejects_missing_device(cuda, torch_like):
        return outcome(cuda, cuda.set_device, 99)

`python3 tests/support/on_oracle.py record FILE...` runs the scenes on the oracle and writes
tests/data/on_oracle/FILE.json, which is checked in. test_scenes.py compares forebay with the record everywhere, and the
record with the oracle if there is one (marker `oracle`): the environment variable ORACLE names its run.sh, or it is
beside the repository.

Both sides have DEVICES devices of MEMORY bytes. On PyTorch's side each scene runs in a fork of a process that has only
imported torch and initialised nothing. On forebay's side it runs in the test process inside `forebay.emulate`, or also
in forks if the file sets `FRESH_PROCESS = True`, for scenes about first use. `ENVIRON = {...}` is set on both sides
before any import, and implies fresh processes. `DRIVER = False` is for scenes without a driver: PyTorch runs without
the stand-in, forebay without emulation.

`DIFFERS = {"scene": "reason"}` lists intended differences: the results must then differ, and docs/differences.md
describes them. For scenes that return a dict, `DIFFERING_KEYS = {"reason": "keys, one a line"}` lists keys of it.

Not compared: the words PyTorch and forebay, addresses, C++ source locations. The stand-in runs no kernels (only copies
and memsets), its `wait_event` orders nothing, and it has no IPC.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import inspect
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCENES = HERE.parent / "names" / "scenes"
RECORDS = HERE.parent / "data" / "on_oracle"
ORACLE = Path(os.environ.get("ORACLE", HERE.parents[2] / "shared" / "torch-oracle" / "run.sh"))
ORACLE_HOME = Path(os.environ.get("ORACLE_HOME", Path.home() / ".cache" / "torch-oracle"))

DEVICES = 2
MEMORY = 1 << 30
PROFILE = "h200"  # the device that the stand-in reports
SCENE_SECONDS = 20
PROCESS_SECONDS = 110  # less than the time limit of a test

_SHARED_ERRORS = ("OutOfMemoryError", "AcceleratorError", "CudaError", "DeferredCudaCallError")
_FOREBAY_NAMES = {"OutOfMemoryError": "OutOfMemory"}  # by the name in torch
_REPLACEMENTS = (
    (r"\s*\(Triggered internally at [^)]*\)", ""),
    (r"\nException raised from [\s\S]*", ""),
    (r"^[\s\S]* INTERNAL ASSERT FAILED at [\s\S]*?please report a bug to PyTorch\. ", ""),
    (r"\bPyTorch\b", "forebay"),
    (r"\b([Tt])orch\b(?=\.\w| not compiled)", "forebay"),
    (r"\b0x[0-9a-f]{5,}", "0x…"),
)


def outcome(cuda, call, *arguments, **named):
    """Return a call's result or error and its warnings: {"value": …} or {"error": …, "message": …}, "warns": […].

    A value that is not plain is represented by its type's name, an error by the name under which programs catch it.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = call(*arguments, **named)
            result = {"value": value if _plain(value) else type(value).__name__}
        except Exception as error:  # noqa: BLE001 -- the error is the result
            result = {"error": _public_name(cuda, type(error)), "message": str(error)}
    if caught:
        result["warns"] = [[_public_name(cuda, warning.category), str(warning.message)] for warning in caught]
    return result


def comparable(result):
    """Return the result as JSON returns it, with the parts replaced that are not compared."""
    return _normalized(json.loads(json.dumps(result)))


def why_no_oracle() -> str:
    """Return the reason why the oracle is not available; "" if it is."""
    if not ORACLE.exists():
        return f"there is no oracle at {ORACLE}: name its run.sh in ORACLE"
    return "" if (ORACLE_HOME / "lib").is_dir() else "the oracle is not set up: run its setup.sh"


class SceneFile:
    """The scenes of one file, their settings and their record."""

    def __init__(self, path: Path) -> None:
        sys.modules.setdefault("support.on_oracle", sys.modules[__name__])  # the name that scenes import
        self.path = path
        spec = importlib.util.spec_from_file_location(f"scenes_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.scenes = {name: value for name, value in vars(module).items() if _is_scene(value, module.__name__)}
        self.differs: dict[str, str] = getattr(module, "DIFFERS", {})
        keys = getattr(module, "DIFFERING_KEYS", {}).items()
        self.differing_keys = {key: reason for reason, text in keys for key in text.strip().splitlines()}
        self.environ: dict[str, str] = getattr(module, "ENVIRON", {})
        self.driver: bool = getattr(module, "DRIVER", True)
        self.fresh = bool(self.environ) or not self.driver or getattr(module, "FRESH_PROCESS", False)
        if unknown := self.differs.keys() - self.scenes:
            raise ValueError(f"{path.name}: DIFFERS names {sorted(unknown)}, which are not scenes")

    @property
    def record(self) -> Path:
        return RECORDS / f"{self.path.stem}.json"

    def why_not(self) -> str:
        """Return the reason why this machine cannot run the scenes; "" if it can."""
        return "there is an NVIDIA driver" if not self.driver and Path("/proc/driver/nvidia").exists() else ""

    def recorded(self) -> dict[str, object]:
        return json.loads(self.record.read_text())["scenes"] if self.record.exists() else {}

    def compared(self, result, recorded) -> tuple[object, object]:
        """Return both results, of dicts without the keys that are intended to differ, but with those that do not."""
        if not isinstance(result, dict) or not isinstance(recorded, dict):
            return result, recorded
        different = {key for key in self.differing_keys.keys() & recorded.keys() if result.get(key) != recorded[key]}
        intended = dict.fromkeys(different, "differs")
        obsolete = dict.fromkeys(self.differing_keys.keys() - different, "should differ")
        return result | intended, recorded | intended | obsolete

    def run_here(self, scene: str):
        """Return the scene's result on forebay in this process."""
        import forebay
        import forebay.cuda

        with forebay.emulate("cuda", count=DEVICES, profile=PROFILE, memory=MEMORY):
            return comparable(self.scenes[scene](forebay.cuda, TorchLike()))

    def run_on(self, side: str) -> dict[str, object]:
        """Return the file's result of `outcomes`.

        Raises AssertionError with the traceback of each scene that failed or exceeded its time limit.
        """
        output = outcomes(side, [self])[self.path.stem]
        failed = [f"{name}: {text}" for name, text in output["failed"].items()]
        assert not failed, f"on {side}:\n" + "\n".join(failed)
        return output

    def write(self) -> None:
        """Run the scenes on the oracle and write the record."""
        output = self.run_on("pytorch")
        RECORDS.mkdir(exist_ok=True)
        text = json.dumps({"torch": output["torch"], "scenes": output["scenes"]}, indent=1, sort_keys=True)
        self.record.write_text(text + "\n")


def outcomes(side: str, files: list[SceneFile]) -> dict[str, dict[str, object]]:
    """Return by file the results and failures on "forebay" or "pytorch" of all scenes.

    Each scene runs in a fork of one new process; the files must have the same settings. The keys of a file's result are
    "scenes" and "failed", whose values are by scene, and on PyTorch "torch".
    """
    driver, environ = files[0].driver, files[0].environ
    assert all((file.driver, file.environ) == (driver, environ) for file in files)
    oracle = ["bash", str(ORACLE)] if driver else [str(ORACLE_HOME / "venv" / "bin" / "python")]
    interpreter = [sys.executable] if side == "forebay" else oracle
    settings = {"FAKE_CUDA_DEVICES": str(DEVICES), "FAKE_CUDA_TOTAL_BYTES": str(MEMORY)}
    done = subprocess.run(
        [*interpreter, str(HERE / "on_oracle.py"), side, *(str(file.path) for file in files)], capture_output=True,
        encoding="utf-8", check=False, timeout=PROCESS_SECONDS, env=os.environ | settings | environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {stem: output | {"scenes": comparable(output["scenes"])} for stem, output in found.items()}


class TorchLike:
    """Forebay under the top-level names of torch."""

    def __getattr__(self, name: str):
        import forebay
        import forebay.accelerator

        return getattr(forebay, _FOREBAY_NAMES.get(name, name))


def every_file() -> list[SceneFile]:
    return [SceneFile(path) for path in sorted(SCENES.glob("*.py"))]


def _is_scene(value, module: str) -> bool:
    return (
        inspect.isfunction(value)
        and value.__module__ == module
        and list(inspect.signature(value).parameters) == ["cuda", "torch_like"]
    )


def _plain(value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _public_name(cuda, kind: type) -> str:
    """Return the name of the first base class that `cuda` or `builtins` exports."""
    shared = {getattr(cuda, name, None): name for name in _SHARED_ERRORS}
    return next(
        shared.get(base, base.__name__)
        for base in kind.__mro__
        if base in shared or getattr(builtins, base.__name__, None) is base
    )


def _normalized(value):
    if isinstance(value, list):
        return [_normalized(item) for item in value]
    if isinstance(value, dict):
        return {key: _normalized(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    for pattern, replacement in _REPLACEMENTS:
        value = re.sub(pattern, replacement, value)
    return value


def _fork(work) -> tuple[str, object]:
    """Run `work` in a fork. Return ("scenes", its result) or ("failed", the reason)."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's threads make Python warn about the fork
        child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.close(read_end)
        try:
            output = ("scenes", json.loads(json.dumps(work())))
        except BaseException:  # noqa: BLE001 -- reported to the test
            output = ("failed", traceback.format_exc())
        with os.fdopen(write_end, "w") as out:
            json.dump(output, out)
        os._exit(0)
    os.close(write_end)
    text = b""
    try:
        while select.select([read_end], [], [], SCENE_SECONDS)[0]:
            if not (more := os.read(read_end, 1 << 16)):
                break
            text += more
        else:
            return "failed", f"it took more than {SCENE_SECONDS} seconds"
        if "coverage" in sys.modules:
            _wait_for_exit(child)  # it writes what it has executed
    finally:
        os.close(read_end)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # the child and the processes that it started
        status = os.waitpid(child, 0)[1]
    return tuple(json.loads(text)) if text else ("failed", f"its process died: wait status {status}")


def _wait_for_exit(child: int) -> None:
    """Wait until a process has ended, at most for some time."""
    limit = time.monotonic() + SCENE_SECONDS
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < limit:
        time.sleep(0.001)


def _run(side: str, *paths: str) -> None:
    """Run the scenes for `outcomes`, in its new process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # scenes may print
    files = [SceneFile(Path(path)) for path in paths]
    version: dict[str, object] = {}
    if side == "pytorch":
        import torch

        version["torch"] = torch.__version__
        sides = contextlib.nullcontext, torch.cuda, torch
    else:
        import forebay
        import forebay.cuda

        def emulation():
            return forebay.emulate("cuda", count=DEVICES, profile=PROFILE, memory=MEMORY)

        sides = emulation if files[0].driver else contextlib.nullcontext, forebay.cuda, TorchLike()

    def run(scene):
        with sides[0]():
            return scene(*sides[1:])

    found = {}
    for scene_file in files:
        found[scene_file.path.stem] = output = {"scenes": {}, "failed": {}, **version}
        for name, scene in scene_file.scenes.items():
            outcome_key, result = _fork(lambda scene=scene: run(scene))
            output[outcome_key][name] = result
    json.dump(found, out)
    out.close()


def _record(names: list[str]) -> None:
    if why := why_no_oracle():
        sys.exit(why)
    for path in [SCENES / f"{Path(name).stem}.py" for name in names] or sorted(SCENES.glob("*.py")):
        scene_file = SceneFile(path)
        scene_file.write()
        print(f"{scene_file.record.name}: {len(scene_file.scenes)} scenes")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))  # scenes may import other modules of `support`
    if sys.argv[1:2] == ["record"]:
        _record(sys.argv[2:])
    else:
        _run(*sys.argv[1:])
