"""Histories that PyTorch programs record themselves under `forebay run`, beside that of the report."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from forebay import snapshot

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

MIB = 1 << 20
PROGRAM = """
    import os, torch
    memory = torch.cuda.memory

    def functions(frames):
        return [each["name"] for each in frames if "forebay" not in each["filename"]][:2]

    def show():
        taken = memory._snapshot()
        for each in taken["device_traces"][0]:
            print(each["action"], each["size"], functions(each.get("frames", [])))
        for segment in taken["segments"]:
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    print("block", block["size"], functions(block.get("frames", [])))
        print(torch._C._cuda_isHistoryEnabled())

    def allocate():
        return torch.empty(1 << 20, device="cuda")

    def free():
        global first
        del first

    first = allocate()
    show()
    memory._record_memory_history(max_entries=3)
    second = allocate()
    show()
    free()
    third = allocate()
    show()
    memory._dump_snapshot("own.pickle")
    memory._record_memory_history(context="alloc", stacks="python", clear_history=True)
    first = allocate()
    free()
    del third
    show()
    memory._record_memory_history(enabled=None)
    fourth = allocate()
    show()
    memory._record_memory_history(context="state", skip_actions=["segment_alloc", "free_completed"])
    del fourth
    fifth = allocate()
    show()
    memory._record_memory_history(enabled="state")
    sixth = allocate()
    show()
"""
WITHOUT = """
import forebay, forebay.interop.torch, runpy
with forebay.emulate("cuda", profile="rtx_4090"), forebay.interop.torch.patch():
    runpy.run_path("script.py", run_name="__main__")
"""


def test_program_and_report_see_what_each_recorded(runner):
    runner.write(PROGRAM)
    without = runner.command("-c", WITHOUT)
    assert without.status == 0, without.err
    (runner.folder / "own.pickle").rename(runner.folder / "without.pickle")
    observed = runner.command("-m", "forebay", "run", "--emulate", "cuda:1@rtx_4090", "--compute", "script.py")
    assert (observed.status, observed.out) == (0, without.out), observed.err
    own, alone = (snapshot.load(runner.folder / name)[0] for name in ("own.pickle", "without.pickle"))
    assert own.trace["action"].tolist() == alone.trace["action"].tolist()

    (whole,) = snapshot.load(observed.output / "snapshot.pickle")
    allocated = [int(each["nbytes"]) for each in whole.trace if each["action"] == snapshot.Action.ALLOC]
    assert allocated == 7 * [4 * MIB]
    assert "(before recording)" not in observed.err
    innermost = {next(iter(whole.stack(int(each["stack"])))).name for each in whole.trace if each["stack"]}
    assert {"allocate"} <= innermost


def test_memory_after_the_end_of_a_programs_recording_is_attributed(runner):
    source = """
        import torch
        torch.cuda.memory._record_memory_history()
        first = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._record_memory_history(enabled=None)
        second = torch.empty(500 << 20, dtype=torch.uint8, device="cuda")
    """
    runner.write(source)
    observed = runner.command("-m", "forebay", "run", "--emulate", "cuda:1@rtx_4090", "--compute", "script.py")
    assert "script.py:6 <module>" in observed.err
    assert "(before recording)" not in observed.err
