"""Wrappers, hooks and optimizers of torch.distributed on two ranks: the losses of one process, the same memory."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from support.ranks import free_ports, run_ranks  # noqa: E402 -- of tests that need PyTorch

FILE = str(Path(__file__).parents[1] / "distributed_programs" / "training.py")
PROGRAMS = {  # relative difference from one process, by name
    "gradients_as_views": 1e-4, "compression": 1e-3, "compression_to_bfloat16": 1e-2, "low_rank_gradients": 1e-3,
    "future_of_a_hook": 1e-4, "synchronized_batch_norm": 1e-4, "sharded_optimizer": 1e-3, "compiled": 1e-4,
    "mixed_precision": 1e-2, "hybrid_shards": 1e-4, "tensor_parallel": 1e-4, "clipped_norm": 1e-4, "pipeline": 1e-4,
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    """The results of both ranks, and of a single process."""
    return run_ranks(FILE, *free_ports(2 * len(PROGRAMS))), run_ranks(FILE, count=1)[0]


@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_ranks_compute_the_values_of_one_process(ranks, name):
    both, alone = ranks
    mean = sum(each[f"{name} compute"]["value"] for each in both) / 2
    assert mean == pytest.approx(alone.get(name, alone[""]), rel=PROGRAMS[name])


@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", [each for each in PROGRAMS if each != "pipeline"])
def test_memory_without_values_is_that_with_values(ranks, name):
    for rank in ranks[0]:
        assert rank[f"{name} shapes"]["peak"] == rank[f"{name} compute"]["peak"] > 0
