"""Collective operations of a Gloo backend that a program has made itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import torch.distributed as dist  # noqa: E402 -- as above

OPERATIONS = {
    "allreduce": lambda group, x, out: group.allreduce([x]),
    "allreduce by name": lambda group, x, out: group.allreduce(tensors=[x]),
    "allreduce of one": lambda group, x, out: group.allreduce(x, dist.ReduceOp.SUM),
    "allreduce_coalesced": lambda group, x, out: group.allreduce_coalesced([x]),
    "broadcast": lambda group, x, out: group.broadcast(x, 0),
    "reduce": lambda group, x, out: group.reduce(x, 0),
    "allgather": lambda group, x, out: group.allgather([[out]], [x]),
    "_allgather_base": lambda group, x, out: group._allgather_base(out, x),
    "allgather_coalesced": lambda group, x, out: group.allgather_coalesced([[out]], [x]),
    "gather": lambda group, x, out: group.gather([out], x, 0),
    "scatter": lambda group, x, out: group.scatter(out, [x], 0),
    "reduce_scatter": lambda group, x, out: group.reduce_scatter(out, [x]),
    "_reduce_scatter_base": lambda group, x, out: group._reduce_scatter_base(out, x),
    "alltoall": lambda group, x, out: group.alltoall([out], [x]),
    "alltoall_base": lambda group, x, out: group.alltoall_base(out, x, [], []),
}


def backend():
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_are_those_of_the_cpu(emulated, name):
    group, results = backend(), []
    for device in ("cuda", "cpu"):
        x, out = torch.tensor([1.0, 2.0], device=device), torch.zeros(2, device=device)
        assert OPERATIONS[name](group, x, out).wait()
        results.append((x.tolist(), out.tolist()))
    assert results[0] == results[1]


def test_work_returns_tensors_of_the_device(emulated):
    x = torch.ones(2, device="cuda")
    assert backend().allreduce([x]).get_future().wait()[0] is x


@pytest.mark.parametrize("name", OPERATIONS)
def test_without_values_the_work_is_done_and_what_is_received_is_unknown(shapes_only, name):
    x, out = torch.tensor([1.0, 2.0]).cuda(), torch.zeros(2, device="cuda")
    assert OPERATIONS[name](backend(), x, out).wait()
