"""Forked children after queries of their parent, as PyTorch's CUDA build over a stand-in runtime answers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

BOTH, RUNTIME, NEITHER = "both", "runtime", "neither"  # the values of the variable with which the child fails
QUERIES = {
    "torch.cuda.is_available()": RUNTIME,
    "torch.accelerator.is_available()": RUNTIME,
    "torch.accelerator.current_accelerator(True)": RUNTIME,
    "torch.autocast('cuda')": RUNTIME,
    "[*torch.utils.data.DataLoader([1, 2], pin_memory=True)]": RUNTIME,
    "torch._C._cuda_getDeviceCount()": BOTH,
    "torch.backends.cudnn.version()": BOTH,
    "torch.cuda.current_device()": BOTH,
    "torch.ones(1, device='cuda')": BOTH,
    "torch.cuda.device_count()": NEITHER,
    "torch.accelerator.device_count()": NEITHER,
    "torch.accelerator.current_accelerator()": NEITHER,
    "torch.manual_seed(0)": NEITHER,
    "torch.cuda.memory_allocated()": NEITHER,
}
PROGRAM = """
import os, sys, torch
import forebay.interop.torch
with forebay.interop.torch.patch():
    for query in sys.argv[1:]:
        if parent := os.fork():
            os.waitpid(parent, 0)
            continue
        exec(query)
        if child := os.fork():
            os.waitpid(child, 0)
            os._exit(0)
        try:
            torch.ones(1, device="cuda")
            text = "works"
        except RuntimeError as error:
            text = str(error).splitlines()[0]
        print(torch.cuda._is_in_bad_fork(), torch.cuda.is_available(), torch.cuda.device_count(), text)
        sys.stdout.flush()
        os._exit(0)
"""
ERROR = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(("check", "failing"), [("0", (BOTH, RUNTIME)), ("1", (BOTH,))])
def test_child_fails_after_queries_that_initialise_the_driver(check, failing):
    environment = {**os.environ, "FOREBAY_EMULATE": "cuda:1@h100", "PYTORCH_NVML_BASED_CUDA_CHECK": check}
    command = [sys.executable, "-c", PROGRAM, *QUERIES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    fails = [when in failing for when in QUERIES.values()]
    assert done.stdout.splitlines() == [f"{each} True 1 {ERROR if each else 'works'}" for each in fails]
