"""The memory of small PyTorch workloads on this card, each in a fresh process: the truth for predictions of `fit`.

For each workload: peak allocated and reserved memory, and the size of every allocation in order (`gpu.workloads`).
Beside it, memory outside the allocator. The folder of the part gets truth.json, complete after each workload; `dev.py
gpu --keep` makes a record for the tests of it. Without a GPU, the workloads run small on PyTorch's CPU device: a
rehearsal, which measures nothing. This part imports nothing of forebay.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu.part import REAL, Job, NotRun, Outcome, execute, write_json
from gpu.workloads import children
from gpu.workloads.fresh_process import FreshProcesses, Running
from gpu.workloads.workload import Setting, Workload

__all__ = ["FORMAT", "RESULTS", "measure"]

RESULTS = "truth.json"
FORMAT = 1

_RESERVE = 3.0  # seconds that remain at the end, to write the outcome
_LEAST = 5.0  # seconds without which no workload starts
_CARD_SECONDS = 60.0  # to initialize CUDA for the first time on a machine
_OUTSIDE_SECONDS = 45.0  # for what should take 20
_REHEARSED_SECONDS = 60.0  # limit of a workload on the CPU
_STAND_IN_SECONDS = 10.0  # limit on a stand-in, where some operators wait for ever
_GIB = 1 << 30
_MIB = 1 << 20

# Variables that would change what is measured, and those that keep packages from the network.
_UNSET = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG",
          "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "TORCH_CUBLAS_WORKSPACE_CACHE",
          "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUDA_LAUNCH_BLOCKING")  # fmt: skip
_SET = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",  # a rehearsal shares its cores with other parts
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of compilers would outlive its workload
}
_IMPORTED = (  # at first use otherwise, by each workload again
    "torch._dynamo",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama", "bert", "vit")),
    "transformers.generation.utils",
)


def measure(job: Job) -> Outcome:
    """Measure the memory outside the allocator, then the workloads as far as time allows."""
    if find_spec("torch") is None:
        raise NotRun("PyTorch is not installed")
    _set_environment()
    truth = _Truth(job)
    try:
        truth.begin()
        for workload in truth.workloads:
            if not truth.run(workload):
                break
        return truth.finish()
    finally:
        truth.holder.stop()


def _set_environment() -> None:
    for name in _UNSET:
        os.environ.pop(name, None)
    os.environ |= _SET


class _Truth:
    """A run: its results so far, and the time that remains."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._files = job.folder / "workloads"
        self._files.mkdir(parents=True, exist_ok=True)
        self._processes = FreshProcesses(self._files)
        from gpu.workloads import all_workloads  # imports PyTorch, which reads the variables that were set

        self.workloads = all_workloads.load(quick=job.quick)
        self.holder = self._processes.start("holder", children.hold_card, seconds=job.remaining())
        self._rows: dict[str, dict[str, Any]] = {}
        self._document: dict[str, Any] = {
            "format": FORMAT,
            "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "planned": len(self.workloads),
            "workloads": self._rows,
        }

    def begin(self) -> None:
        """Describe the card, and measure the memory outside the allocator while the packages are imported."""
        self._document |= self._description()
        self.on_gpu = bool(self._document["card"])
        self._is_real = self.on_gpu and self._document["hardware"]
        self._document["rehearsal"] = not self._is_real
        self._save()
        if not self.on_gpu:
            if os.environ.get(REAL):
                raise RuntimeError(f"PyTorch finds no GPU: {self._document.get('problem', 'it gives no reason')}")
            self._import_packages()
            return
        path = self._files / "outside.json"
        seconds = _OUTSIDE_SECONDS if self._is_real else _STAND_IN_SECONDS
        running = self._start("outside", "measure_outside", (path,), seconds, quick=self.job.quick)
        self._import_packages()
        problem = running.problem()
        self._document["outside"] = _read(path) or []
        if problem:
            self._document["outside_problem"] = problem
        self._save()

    def _description(self) -> dict[str, Any]:
        """Return the card and the software. A card that cannot be described is still measured."""
        first = self._processes.method
        for method in dict.fromkeys((first, "spawn")):
            self._processes.method = method
            found = self._in_process("card", "describe_card", (), _CARD_SECONDS)
            if "hardware" in found:
                return found
        self._processes.method = first  # the other one is no better, and slower
        from gpu.workloads.card_facts import has_gpu

        there = has_gpu()
        card = {"name": "unknown"} if there else {}
        return {"card": card, "hardware": there, "versions": {}, "card_problem": found.get("problem", "")}

    def run(self, workload: Workload) -> bool:
        """Run a workload and save its results. Return False if there is no time for it."""
        missing = [each for each in workload.packages if find_spec(each) is None]
        if missing or (workload.needs_gpu and not self.on_gpu):
            reason = f"{missing[0]} is not installed" if missing else workload.needs_gpu
            self._rows[workload.name] = {"status": "not run", "detail": reason}
            self._save()
            return True
        remaining = self.job.remaining() - _RESERVE
        if remaining < _LEAST:
            return False
        seconds = workload.seconds if self._is_real else _STAND_IN_SECONDS if self.on_gpu else _REHEARSED_SECONDS
        setting = Setting("cuda", full=True) if self.on_gpu else Setting("cpu", full=False)
        start = time.monotonic()
        row = self._in_process(workload.name, "run_workload", (workload.name, setting), min(seconds, remaining))
        if row.get("stopped") and remaining <= seconds:
            return False  # it would have had more time
        row["total_seconds"] = round(time.monotonic() - start, 3)
        self._rows[workload.name] = _judged(row, stand_in=self.on_gpu and not self._is_real)
        self._save()
        return True

    def finish(self) -> Outcome:
        """Return the outcome."""
        outcome = self._outcome()
        self._document["complete"] = len(self._rows) == len(self.workloads)
        write_json(self.job.folder / RESULTS, self._document)
        return outcome

    def _in_process(self, name: str, function: str, arguments: tuple[Any, ...], seconds: float) -> dict[str, Any]:
        """Return the results of a function in a fresh process, with a problem if it had one."""
        path = self._files / f"{name}.json"
        method = self._processes.method
        problem = self._start(name, function, (path, *arguments), seconds).problem()
        found = _read(path) or {}  # written at the end: what is there is complete
        if problem and not found:
            found = {"problem": problem, "stopped": problem.startswith("stopped")}
        if method == "fork" and _is_about_forks(found.get("problem", "")):
            self._processes.method = "spawn"
            return self._in_process(name, function, arguments, seconds)
        return found

    def _start(self, name: str, function: str, arguments: tuple[Any, ...], seconds: float, **named: Any) -> Running:
        path = arguments[0]
        path.unlink(missing_ok=True)
        seconds = max(1.0, min(seconds, self.job.remaining() - _RESERVE))
        return self._processes.start(name, getattr(children, function), *arguments, seconds=seconds, **named)

    def _import_packages(self) -> None:
        """Import once what many workloads need. One that cannot be imported says so itself."""
        for name in [*_IMPORTED, *dict.fromkeys(each for one in self.workloads for each in one.packages)]:
            with suppress(Exception):
                import_module(name)
        gc.freeze()  # so that collections in the forks do not copy the pages of these packages
        self._processes.check_imports()

    def _save(self) -> None:
        write_json(self.job.folder / RESULTS, self._document)
        self.job.save(self._outcome())

    def _outcome(self) -> Outcome:
        counts = dict.fromkeys(("ok", "failed", "not run"), 0)
        for row in self._rows.values():
            counts[row["status"]] += 1
        reached = len(self._rows)
        status = "failed" if counts["failed"] else "ok" if reached == len(self.workloads) else "incomplete"
        parts = [f"{counts['ok']} of {len(self.workloads)} workloads"]
        parts += [f"{counts[each]} {each}" for each in ("failed", "not run") if counts[each]]
        if not self._document.get("card"):
            parts.append("rehearsed on the CPU, which has no allocator statistics")
        elif self._document["rehearsal"]:
            parts.append("rehearsed on a stand-in of CUDA")
        return Outcome(status, ", ".join(parts), [*_outside_table(self._document), *_table(self._rows)])


def _judged(row: dict[str, Any], *, stand_in: bool) -> dict[str, Any]:
    """Return the results of a workload with their status. A stand-in of CUDA lacks libraries and computes nothing."""
    problem = row.pop("problem", "")
    row.pop("stopped", None)
    if not problem and not stand_in:
        problem = next((f"a loss is {each}" for each in row["losses"] if isinstance(each, str)), "")
    if problem:
        return {"status": "not run" if stand_in else "failed", "detail": problem, **row}
    return {"status": "ok", **row}


def _is_about_forks(problem: str) -> bool:
    """Return whether CUDA refused a fork; see Note [Fork before CUDA]."""
    return "forked subprocess" in problem or "initialization error" in problem


def _read(path: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


def _table(rows: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| workload | result | allocations | peak allocated | peak reserved | outside | seconds |",
        "|" + "---|" * 7,
    ]
    for name, row in rows.items():
        result = row["status"] + (f": {_cell(row['detail'])}" if row.get("detail") else "")
        count = sum(each["count"] for each in row.get("phases", ()))
        sizes = [_gib(row.get("peak_allocated")), _gib(row.get("peak_reserved")), _mib(row.get("outside"))]
        cells = [name, result, f"{count:,}" if count else "", *sizes, str(row.get("seconds", ""))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _outside_table(document: dict[str, Any]) -> list[str]:
    if not document.get("outside"):
        return []
    lines = [
        "| memory outside the allocator, after | on the device | of this process | outside | reserved |",
        "|" + "---|" * 5,
    ]
    for step in document["outside"]:
        problem = f" ({_cell(step['problem'])})" if step.get("problem") else ""
        sizes = " | ".join(_mib(step.get(each)) for each in ("device", "process", "outside", "reserved"))
        lines.append(f"| {step['name']}{problem} | {sizes} |")
    if document.get("outside_problem"):
        lines.append(f"| {_cell(document['outside_problem'])} | | | | |")
    return [*lines, ""]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / _GIB:.3f} GiB"


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / _MIB:,.1f} MiB"


if __name__ == "__main__":
    execute(measure)
    sys.stdout.flush()
    os._exit(0)  # not the handlers of exit: multiprocessing would wait for a process that is stuck in the driver
