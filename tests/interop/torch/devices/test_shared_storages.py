"""Tensors of emulated devices that PyTorch's programs send to other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay.interop.torch import on_import

MIB = 1 << 20
SHARING = """
    import torch, torch.multiprocessing as multiprocessing

    def receive(queue, back, resume):
        tensor, part, again = queue.get(), queue.get(), queue.get()
        tensor += 1
        print(tensor.untyped_storage().data_ptr() == part.untyped_storage().data_ptr(), part.storage_offset())
        print(tensor.device, again.shape, tensor.requires_grad, torch.cuda.memory_allocated())
        try:
            torch.multiprocessing.reductions.reduce_tensor(tensor)
        except RuntimeError as error:
            print(error, flush=True)
        for text in ("held", "returned"):
            back.put(text)
            resume.get()
            tensor = part = again = None
            torch.cuda.ipc_collect()

    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        queue, back, resume = (context.SimpleQueue() for _ in range(3))
        process = context.Process(target=receive, args=(queue, back, resume))
        process.start()
        tensor = torch.nn.Parameter(torch.zeros(1 << 18, device="cuda"), requires_grad=False)
        for each in (tensor, tensor[5:], tensor):
            queue.put(each)
        assert back.get() == "held"
        SHOW
        del tensor, each
        torch.cuda.ipc_collect()
        print("held", torch.cuda.memory_allocated())
        resume.put(None)
        assert back.get() == "returned"
        torch.cuda.ipc_collect()
        print("returned", torch.cuda.memory_allocated())
        resume.put(None)
        process.join()
"""
LOADER = """
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, index): return torch.full((2,), float(index), device="cuda")

    def use(rank, tensor):
        tensor[rank] = rank + 1

    if __name__ == "__main__":
        for start in ("fork", "spawn"):
            loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context=start)
            try:
                print([(each.device, each.sum().item()) for each in loader])
            except RuntimeError as error:
                print("Cannot re-initialize CUDA in forked subprocess" in str(error))
            torch.cuda.init()
        loader = torch.utils.data.DataLoader(torch.arange(4), 2, num_workers=1, pin_memory=True)
        print([each.is_pinned() for each in loader])
        shared = torch.zeros(2, device="cuda")
        torch.multiprocessing.spawn(use, (shared,), nprocs=2)
        print(shared.tolist())
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        try:
            torch.multiprocessing.reductions.reduce_tensor(torch.zeros(1 << 22, device="cuda"))
        except RuntimeError as error:
            print(error)
"""


def run(tmp_path, source, mode="compute"):
    (tmp_path / "program.py").write_text(dedent(source))
    environment = {**os.environ, "FOREBAY_EMULATE": "cuda:1@h100", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    on_import.set_environment(mode, environment)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize(
    ("mode", "show", "shown"), [("compute", "print(tensor[7].item())", "1.0\n"), ("shapes", "", "")]
)
def test_processes_share_a_tensor_until_the_receiver_returns_it(tmp_path, mode, show, shown):
    """In the mode without values, too, in which the number that the receiver has written is not known."""
    printed = run(tmp_path, SHARING.replace("SHOW", show), mode)
    assert printed == (
        "True 5\ncuda:0 torch.Size([262144]) False 0\n"
        "Attempted to send CUDA tensor received from another process; this is not currently supported. "
        f"Consider cloning before sending.\n{shown}held {MIB}\nreturned 0\n"
    )


def test_workers_and_ranks_use_tensors_as_far_as_a_gpu_allows_it(tmp_path):
    """Workers that are forked before their parent uses CUDA may use it."""
    forked, spawned, pinned, ranks, expandable = run(tmp_path, LOADER).splitlines()
    assert forked == "[(device(type='cuda', index=0), 2.0), (device(type='cuda', index=0), 10.0)]"
    assert spawned == forked
    assert (pinned, ranks) == ("[True, True]", "[1.0, 2.0]")
    assert expandable == (
        "Tensors allocated with expandable_segments:True cannot be shared between processes. Consider using "
        "expandable_segments:False in data loading workers via "
        "torch.cuda.memory._set_allocator_settings('expandable_segments:False')"
    )
