"""Functions that Dynamo knows as replaced, and those that it does not trace."""

from __future__ import annotations

import subprocess
import sys

import pytest

import forebay

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- as above

# Deprecated functions that PyTorch itself calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_functions_of_pytorch_are_traced(emulated):
    def function(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = x @ torch.ones(4, 4, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.device(1):
            z = torch.zeros(1, device="cuda")
        return y, z

    made, other = torch.compile(function, backend="eager")(torch.ones(1, 4, device="cuda"))
    assert (made.tolist(), made.dtype, other.device) == ([[4] * 4], torch.bfloat16, torch.device("cuda:1"))


def test_compiled_graphs_end_with_the_emulation():
    def function(x):
        return x + torch.zeros(2, device=x.device)

    for _ in range(2):
        with forebay.emulate("cuda"), patch():
            assert torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2, device="cuda")).is_cuda
            assert torch.cuda.memory_allocated() == 0
        assert torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [1, 1]


def test_kernels_are_chosen_again_after_the_emulation():
    """Graphs that AOTAutograd has traced, with kernels for the host that end with the session."""
    for mode in ("shapes", "compute"):
        with forebay.emulate("cuda", 1, profile="h100"):
            session = TorchSession(mode)
            session.start()
            try:
                net = torch.nn.Linear(4, 4).cuda()
                compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
                compiled(torch.ones(1, 4, device="cuda")).sum().backward()
            finally:
                session.stop()
    compiled = torch.compile(lambda x: x.clone() + 1, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_kernels_are_executed_not_traced(emulated):
    from forebay.interop.torch.devices.emulated_memory import adopt
    from forebay.interop.torch.kernels.generic import generic_kernel
    from forebay.runtime.streams.stream import current_stream_for

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2, device="cuda"))
    rules = torch._dynamo.trace_rules
    skipped = [adopt.__code__, generic_kernel.__code__, current_stream_for.__code__]
    assert all(rules.check_file(each.co_filename, is_inlined_call=True).skipped for each in skipped)
    assert not rules.check_file(forebay.cuda.__file__, is_inlined_call=True).skipped  # replaces what is traced
    assert not rules.check_file(__file__).skipped


CALLS = """
import forebay, torch
from forebay.interop.torch.session import TorchSession

def is_known():
    from torch._dynamo.variables import nn_module
    return nn_module.unpatched_nn_module_call is torch.nn.Module.__call__

original = torch.nn.Module.__call__
with forebay.emulate("cuda"):
    session = TorchSession("shapes")
    session.start()
    if early:
        import torch._dynamo
    replaced = torch.nn.Module.__call__
    torch.compile(torch.nn.Linear(2, 2), backend="eager", fullgraph=True)(torch.ones(2))
    print(is_known(), replaced is not original)
    session.stop()
print(is_known(), torch.nn.Module.__call__ is original)
"""


@pytest.mark.parametrize("early", [False, True])
def test_call_of_modules_is_known_to_dynamo_and_restored(early):
    code = f"early = {early}\n{CALLS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True"] * 4


def test_ledger_sees_calls_around_compiled_code_and_calls_of_compiled_modules():
    with forebay.emulate("cuda", 1, profile="h100"):
        session = TorchSession("shapes")
        session.start()
        try:
            net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).cuda()
            compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
            optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
            step = torch.compile(optimizer.step, backend="eager")
            for _ in range(2):
                compiled(torch.ones(1, 64, device="cuda")).sum().backward()
                step()
            (use,) = session.results()
            phases = session._ledger.phases
            calls = phases.calls, phases.backwards, [type(each).__name__ for each in phases.roots]
        finally:
            session.stop()
    assert calls == (2, 2, ["Sequential"])
    sizes = {each.name: each.nbytes for each in use.categories}
    assert sizes["optimizer state"] >= 2 * sizes["parameters"] > 0
    assert not any("_orig_mod" in each.name or "OptimizedModule" in each.name for each in use.modules)
