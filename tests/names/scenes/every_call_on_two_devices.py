"""Every public name for device 1 while device 0 is current and while it is itself current."""

from __future__ import annotations

from support.every_call import Names, lines, play

FRESH_PROCESS = True
DIFFERING_KEYS = {
    "PyTorch's graphed callables are in reference cycles, which keep their memory": """
cuda.memory_snapshot(None, False) on 0
cuda.memory_snapshot(None, False) on 1
""",
    "PyTorch prints a variable without a value": """
graph.capture_end() on 0
graph.capture_end() on 1
graph.capture_end_pre() on 0
graph.capture_end_pre() on 1
""",
    "PyTorch writes the warning to the standard error stream": """
graph.register_generator_state(generator) on 0
graph.register_generator_state(generator) on 1
""",
}


def every_call(cuda, torch_like):
    results = {}
    for line in lines():
        for current in (0, 1):
            cuda.set_device(current)
            found = play(line, Names(cuda, torch_like, 1)) | {"current": cuda.current_device()}
            results[f"{line} on {current}"] = found
            cuda.set_stream(cuda.default_stream(1))
            cuda.set_stream(cuda.default_stream(0))
    return results
