"""Programs that start their workers with launchers: each worker is part of the answer."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay._base.verdicts import Verdict
from forebay.interop.torch.fit.tasks import FitTask, run_task

MIB = 1 << 20
WORKER = """
    import os
    import torch
    import torch.distributed

    def work(rank, *_):
        torch.cuda.set_device(rank % torch.cuda.device_count())
        kept = torch.empty(24 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        return kept

    if __name__ == "__main__":
        torch.distributed.init_process_group("nccl")
        kept = work(torch.distributed.get_rank())
        torch.distributed.barrier()  # both have their memory at one time
        torch.distributed.destroy_process_group()
"""
START = "import subprocess, sys, os\nsubprocess.run(COMMAND, check=True)\n"
FORMS = {
    "torchrun in a shell script": START.replace("COMMAND", "['sh', 'launch.sh']"),
    "accelerate launch": START.replace(
        "COMMAND",
        "[sys.executable, '-m', 'accelerate.commands.launch', '--num_processes', '2', '--multi_gpu', 'worker.py']",
    ),
    "torch.multiprocessing.spawn": (
        "import torch.multiprocessing, worker\n"
        "if __name__ == '__main__': torch.multiprocessing.spawn(worker.work, nprocs=2)\n"
    ),
}


@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS)
def test_workers_of_a_launcher_are_part_of_the_answer(tmp_path, source):
    if "accelerate" in source and subprocess.run([sys.executable, "-c", "import accelerate"], check=False).returncode:
        pytest.skip("accelerate is not found by child processes: the environment has it on sys.path only")
    (tmp_path / "worker.py").write_text(dedent(WORKER))
    (tmp_path / "launch.sh").write_text(f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 worker.py\n")
    (tmp_path / "program.py").write_text(source)
    task = FitTask("h100", "compute", script=(str(tmp_path / "program.py"),), folder=str(tmp_path), timeout=120)
    found = run_task(task)
    assert (found.verdict, found.processes) == (Verdict.FITS, 2), found
    if "spawn" not in source:  # otherwise their times are their own
        assert (found.peak_allocated, found.peak_reserved) == (48 * MIB, 48 * MIB)
