"""Training steps of two ranks with the wrappers and hooks of torch.distributed.

`python training.py PORT...` runs each program in both modes and prints, by name and mode, the value that the program
returns, None without values, and the peak of the allocated memory. With one rank, "single" is in place of the programs.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp

import forebay
from forebay.interop.torch import patch

RANK = int(os.environ.get("RANK", "0"))
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def build(*, normalized=False):
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(32) if normalized else nn.ReLU()
    return nn.Sequential(nn.Linear(16, 32), middle, nn.Linear(32, 16)).cuda()


def whole_input():
    torch.manual_seed(100)
    return torch.randn(8, 16, device="cuda")


def train(model, optimizer=None, x=None):
    """Return the loss of the last of three steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    x = whole_input().chunk(2)[RANK] if x is None else x
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


def ddp(model, **options):
    return nn.parallel.DistributedDataParallel(model, device_ids=[RANK], **options)


@program
def gradients_as_views():
    return train(ddp(build(), gradient_as_bucket_view=True))


@program
def compression():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = ddp(build())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


@program
def compression_to_bfloat16():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = ddp(build())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return train(model)


@program
def low_rank_gradients():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = ddp(build())
    state = powerSGD_hook.PowerSGDState(
        None, start_powerSGD_iter=2, matrix_approximation_rank=16, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model)


@program
def future_of_a_hook():
    def average(_, bucket):
        future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()

        def check(done):
            assert done.value()[0].is_cuda
            return done.value()[0]

        return future.then(check)

    model = ddp(build())
    model.register_comm_hook(None, average)
    return train(model)


@program
def synchronized_batch_norm():
    return train(ddp(nn.SyncBatchNorm.convert_sync_batchnorm(build(normalized=True))))


@program
def sharded_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = ddp(build())
    return train(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3))


@program
def compiled():
    return train(torch.compile(ddp(build())))


@program
def mixed_precision():
    policy = fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(fsdp.FullyShardedDataParallel(build(), device_id=RANK, mixed_precision=policy)).float()


@program
def hybrid_shards():
    mesh = dist.device_mesh.init_device_mesh("cuda", (1, 2), mesh_dim_names=("replicate", "shard"))
    model = build()
    for each in (model[0], model[2], model):
        fsdp.fully_shard(each, mesh=mesh)
    return train(model)


@program
def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
    model = parallelize_module(build(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, x=whole_input())


@program
def clipped_norm():
    model = build()
    for each in (model[0], model[2], model):
        fsdp.fully_shard(each)
    model(whole_input().chunk(2)[RANK]).square().mean().backward()
    return nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()


def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    model = build()
    stage = PipelineStage(model[:2] if RANK == 0 else model[2:], RANK, 2, torch.device("cuda", RANK))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda found, expected: (found - expected).square().mean())
    losses = []
    if RANK == 0:
        schedule.step(whole_input())
    else:
        schedule.step(target=torch.zeros(8, 16, device="cuda"), losses=losses)
    loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), device="cuda")
    dist.broadcast(loss, 1)
    return loss


def single():
    """Return the values that the programs of two ranks should return: the mean of both, by name."""
    losses = {"": train(build(), x=whole_input()).item()}
    losses["synchronized_batch_norm"] = train(build(normalized=True), x=whole_input()).item()
    model = build()
    loss = model(whole_input()).square().mean()
    losses["pipeline"] = loss.item()
    loss.backward()
    losses["clipped_norm"] = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
    return losses


def run(function, mode):
    with forebay.emulate("cuda", count=2, profile="h100"), patch(mode):
        torch.cuda.set_device(RANK)
        dist.init_process_group("nccl")
        value = function()
        found = {"value": value.item() if mode == "compute" else None, "peak": torch.cuda.max_memory_allocated()}
        dist.destroy_process_group()
    return found


def main(ports):
    if os.environ["WORLD_SIZE"] == "1":
        with forebay.emulate("cuda", profile="h100"), patch():
            return single()
    found = {}
    for name, function in PROGRAMS.items():
        for mode in ("compute", "shapes"):
            os.environ["MASTER_PORT"] = next(ports)
            found[f"{name} {mode}"] = run(function, mode)
    os.environ["MASTER_PORT"] = next(ports)
    found["pipeline compute"] = run(pipeline, "compute")  # its stages compare received values
    return found


if __name__ == "__main__":
    print(json.dumps(main(iter(sys.argv[1:]))))
