"""Every public name before CUDA is initialised: the result, and whether the call initialises."""

from __future__ import annotations

from support.every_call import lines, play_uninitialised

FRESH_PROCESS = True
DIFFERING_KEYS = {
    "a stream initialises CUDA": """
torch.Stream(device)
graph.capture_begin(None, "global")
""",
    "PyTorch prints a variable without a value": """
graph.capture_end()
graph.capture_end_pre()
""",
    "PyTorch writes the warning to the standard error stream": """
graph.register_generator_state(generator)
""",
    "a table of zeros": """
~cuda.memory_summary(device, True)
""",
    "queries open no device": """
~accelerator.get_device_capability(device)
""",
}


def every_call(cuda, torch_like):
    return play_uninitialised(cuda, torch_like, lines("stream"))  # a stream initialises CUDA here
