"""Every public name on a machine without a driver."""

from __future__ import annotations

from support.every_call import Names, lines, play

DRIVER = False
DIFFERING_KEYS = {
    "they need no device": """
cuda.Stream.priority_range()
cuda.CUDAGraph(False)
cuda.CUDAGraph.get_currently_capturing_graph()
cuda.is_current_stream_capturing()
""",
    "a table of zeros": """
~cuda.memory_summary(device, True)
""",
    "an int is an index of the accelerator, which no build selects in advance": """
torch.Stream(device)
torch.Generator(device)
torch.device(device)
torch.empty(4, device=device)
torch.zeros(4, device=device)
host.to(device)
host.pin_memory()
""",
}


def every_call(cuda, torch_like):
    every = lines("accelerator", "stream", "general", "graph", "generator")  # they cannot be created
    return {line: play(line, Names(cuda, torch_like, 0)) for line in every}
