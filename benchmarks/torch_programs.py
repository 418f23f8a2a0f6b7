"""Training steps of bench_torch.py: `torch_programs.py DEVICE MODEL BATCH LENGTH STEPS DTYPE` prints JSON."""

from __future__ import annotations

import json
import resource
import sys
import time

import torch
from torch_models import MODELS


def train(device: str, name: str, batch: int, length: int, steps: int, dtype: str) -> dict[str, object]:
    """Train a model, and return the seconds of each step, of the clock and of the processor."""
    torch.manual_seed(0)
    begun = time.perf_counter()
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device(device):
        model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    created = time.perf_counter() - begun
    vocabulary = model.tokens.num_embeddings
    seconds, processor = [], []
    for _ in range(steps):
        started, used = time.perf_counter(), time.process_time()
        ids = torch.randint(0, vocabulary, (batch, length + 1)).to(device)
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
    return {
        "seconds": seconds,
        "processor": processor,
        "created": created,
        "parameters": sum(each.numel() for each in model.parameters()),
    }


if __name__ == "__main__":
    device, name, *numbers, dtype = sys.argv[1:]
    result = train(device, name, *map(int, numbers), dtype)
    if device == "cuda":
        result["allocated"], result["reserved"] = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    result["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps(result))
