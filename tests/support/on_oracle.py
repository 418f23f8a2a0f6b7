"""Scenes that run twice: on forebay.cuda, and on the real torch.cuda over the oracle's stand-in runtime.

A scene is a function `name(cuda, torch_like)` in a file of `scenes/`; what it returns is plain (numbers, texts, lists,
dicts) and the same on both sides. There is nothing else to write:

    from support.on_oracle import outcome  # and the standard library; neither forebay, nor torch, nor pytest

    def a_missing_device_is_refused(cuda, torch_like):
        return outcome(cuda, cuda.set_device, 99)

`python3 tests/support/on_oracle.py record FILE...` asks the oracle and writes tests/data/on_oracle/FILE.json, which is
checked in. test_scenes.py then holds forebay against the record everywhere, and the record against the oracle where
there is one (marker `oracle`): the environment's ORACLE names its run.sh, or it is beside the repository.

Both sides have DEVICES devices of MEMORY bytes. PyTorch's side runs each scene in a fork of one process that has only
imported torch: nothing is initialised yet. Forebay's runs in the test's process, inside of `forebay.emulate`; a file
that says `FRESH_PROCESS = True` gets forks there, too, for scenes about a process's first use. `ENVIRON = {...}` is set
on both sides before anything is imported, and implies fresh processes. `DIFFERS = {"scene": "reason"}` says where
forebay is meant to differ: then it must, and docs/differences.md says so as well.

What is not compared: whether a text says PyTorch or forebay, addresses, the places of C++ lines. The stand-in runs no
kernels (only copies and memsets), its `wait_event` orders nothing, and IPC does not work there.
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
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCENES = HERE.parent / "faces" / "scenes"
RECORDS = HERE.parent / "data" / "on_oracle"
ORACLE = Path(os.environ.get("ORACLE", HERE.parents[2] / "shared" / "torch-oracle" / "run.sh"))
ORACLE_HOME = Path(os.environ.get("ORACLE_HOME", Path.home() / ".cache" / "torch-oracle"))

DEVICES = 2
MEMORY = 1 << 30
PROFILE = "h200"  # what the stand-in says it is
SCENE_SECONDS = 20
FILE_SECONDS = 110  # less than a test's limit

_SHARED_ERRORS = ("OutOfMemoryError", "AcceleratorError", "CudaError", "DeferredCudaCallError")
_TWINS = {"device": "Device", "bool": "bool_", "OutOfMemoryError": "OutOfMemory"}  # torch's name: forebay's
_NOT_COMPARED = (
    (r"\s*\(Triggered internally at [^)]*\)", ""),
    (r"\nException raised from [\s\S]*", ""),
    (r"^[\s\S]* INTERNAL ASSERT FAILED at [\s\S]*?please report a bug to PyTorch\. ", ""),
    (r"\bPyTorch\b", "forebay"),
    (r"\b([Tt])orch\b(?=\.\w| not compiled)", "forebay"),
    (r"\b0x[0-9a-f]{5,}", "0x…"),
)


def outcome(cuda, call, *arguments, **named):
    """What a call gives, or how it fails, and its warnings: {"value": …} or {"error": …, "says": …}, "warns": […].

    A value that is not plain is told by the name of its type, and an error by the name that a program catches.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = call(*arguments, **named)
            found = {"value": value if _plain(value) else type(value).__name__}
        except Exception as error:  # noqa: BLE001 -- which one it is, is what we ask
            found = {"error": _known_as(cuda, type(error)), "says": str(error)}
    if caught:
        found["warns"] = [[_known_as(cuda, warning.category), str(warning.message)] for warning in caught]
    return found


def comparable(result):
    """The result as JSON gives it back, without what is not compared."""
    return _cleaned(json.loads(json.dumps(result)))


def why_no_oracle() -> str:
    """Why the real torch.cuda cannot be asked here; "" where it can."""
    if not ORACLE.exists():
        return f"there is no oracle at {ORACLE}: name its run.sh in ORACLE"
    return "" if (ORACLE_HOME / "lib").is_dir() else "the oracle is not set up: its setup.sh does it"


class SceneFile:
    def __init__(self, path: Path) -> None:
        sys.modules.setdefault("support.on_oracle", sys.modules[__name__])  # what the scenes import, whoever we are
        self.path = path
        spec = importlib.util.spec_from_file_location(f"scenes_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.scenes = {name: value for name, value in vars(module).items() if _is_scene(value, module.__name__)}
        self.differs: dict[str, str] = getattr(module, "DIFFERS", {})
        self.environ: dict[str, str] = getattr(module, "ENVIRON", {})
        self.fresh = bool(self.environ) or getattr(module, "FRESH_PROCESS", False)
        if unknown := self.differs.keys() - self.scenes:
            raise ValueError(f"{path.name}: DIFFERS names {sorted(unknown)}, which are no scenes")

    @property
    def record(self) -> Path:
        return RECORDS / f"{self.path.stem}.json"

    def recorded(self) -> dict[str, object]:
        return json.loads(self.record.read_text())["scenes"] if self.record.exists() else {}

    def here(self, scene: str):
        """On forebay, in this process."""
        import forebay
        import forebay.cuda

        with forebay.emulate("cuda", count=DEVICES, profile=PROFILE, memory=MEMORY):
            return comparable(self.scenes[scene](forebay.cuda, TorchLike()))

    def on(self, side: str, only: str = "") -> dict[str, object]:
        """Every scene's result on "forebay" or "pytorch", each in a fork of one new process.

        Raises AssertionError with the traceback of each scene that failed, or that it took too long.
        """
        interpreter = [sys.executable] if side == "forebay" else ["bash", str(ORACLE)]
        settings = {"FAKE_CUDA_DEVICES": str(DEVICES), "FAKE_CUDA_TOTAL_BYTES": str(MEMORY)}
        done = subprocess.run(
            [*interpreter, str(HERE / "on_oracle.py"), side, str(self.path), only], capture_output=True,
            encoding="utf-8", check=False, timeout=FILE_SECONDS, env=os.environ | settings | self.environ,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        failed = [f"{name}: {text}" for name, text in answer["failed"].items()]
        assert not failed, f"on {side}:\n" + "\n".join(failed)
        return answer | {"scenes": comparable(answer["scenes"])}

    def write(self) -> None:
        """Asks the oracle, and keeps what it says."""
        answer = self.on("pytorch")
        RECORDS.mkdir(exist_ok=True)
        text = json.dumps({"torch": answer["torch"], "scenes": answer["scenes"]}, indent=1, sort_keys=True)
        self.record.write_text(text + "\n")


# Where no device is named, PyTorch takes the host, forebay the current device.
_MADE_ON_THE_HOST = {"empty", "full", "rand", "randint", "randn", "tensor", "zeros"}


class TorchLike:
    """Forebay under the few top-level names of torch that a scene needs."""

    def __getattr__(self, name: str):
        import forebay
        import forebay.accelerator

        found = getattr(forebay, _TWINS.get(name, name))
        if name not in _MADE_ON_THE_HOST:
            return found
        return lambda *what, device="host:0", **how: found(*what, device=device, **how)


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


def _known_as(cuda, kind: type) -> str:
    shared = {getattr(cuda, name, None): name for name in _SHARED_ERRORS}
    return next(
        shared.get(base, base.__name__)
        for base in kind.__mro__
        if base in shared or getattr(builtins, base.__name__, None) is base
    )


def _cleaned(value):
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    for pattern, instead in _NOT_COMPARED:
        value = re.sub(pattern, instead, value)
    return value


def _fork(work) -> tuple[str, object]:
    """("scenes", what it gives) or ("failed", why), from a fork of this process."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where NumPy has made threads
        child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.close(reading)
        try:
            told = ("scenes", json.loads(json.dumps(work())))
        except BaseException:  # noqa: BLE001 -- told to the test
            told = ("failed", traceback.format_exc())
        with os.fdopen(writing, "w") as out:
            json.dump(told, out)
        os._exit(0)
    os.close(writing)
    text = b""
    try:
        while select.select([reading], [], [], SCENE_SECONDS)[0]:
            if not (more := os.read(reading, 1 << 16)):
                break
            text += more
        else:
            return "failed", f"it took more than {SCENE_SECONDS} seconds"
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # it, and what it may have started
        status = os.waitpid(child, 0)[1]
    return tuple(json.loads(text)) if text else ("failed", f"its process died: wait status {status}")


def _run(side: str, path: str, only: str) -> None:
    """The other end of `SceneFile.on`."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a scene may print
    found = SceneFile(Path(path))
    answer: dict[str, object] = {"scenes": {}, "failed": {}}
    if side == "pytorch":
        import torch

        answer["torch"] = torch.__version__
        sides = contextlib.nullcontext, torch.cuda, torch
    else:
        import forebay
        import forebay.cuda

        sides = (
            lambda: forebay.emulate("cuda", count=DEVICES, profile=PROFILE, memory=MEMORY),
            forebay.cuda,
            TorchLike(),
        )

    def run(scene):
        with sides[0]():
            return scene(*sides[1:])

    for name, scene in found.scenes.items():
        if only in ("", name):
            key, told = _fork(lambda scene=scene: run(scene))
            answer[key][name] = told
    json.dump(answer, out)
    out.close()


def _record(names: list[str]) -> None:
    if why := why_no_oracle():
        sys.exit(why)
    for path in [SCENES / f"{Path(name).stem}.py" for name in names] or sorted(SCENES.glob("*.py")):
        found = SceneFile(path)
        found.write()
        print(f"{found.record.name}: {len(found.scenes)} scenes")


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        _record(sys.argv[2:])
    else:
        _run(*sys.argv[1:4])
