"""Every public name in a child process whose parent has used CUDA."""

from __future__ import annotations

from support.every_call import Names, in_child, lines, play

FRESH_PROCESS = True
DIFFERING_KEYS = {
    "the stand-in still works in a child process, but a GPU's driver does not": """
torch.Stream(device)
host.pin_memory()
""",
    "a table of zeros": """
~cuda.memory_summary(device, True)
""",
    "the parent's memory is not the child's": """
cuda.memory_snapshot(None, False)
""",
    "queries open no device": """
~accelerator.get_device_capability(device)
""",
}


def every_call(cuda, torch_like):
    torch_like.empty(1, device="cuda")
    every = lines("stream", "graph")  # the stand-in still works in a child process, but a GPU's driver does not
    return in_child(lambda: {line: play(line, Names(cuda, torch_like, 0)) for line in every})
