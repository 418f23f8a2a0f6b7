"""Every public name, with an object of a wrong type in place of each argument."""

from __future__ import annotations

import ast
import contextlib
import tempfile

from support.every_call import Names, expression, lines, play

FRESH_PROCESS = True
WRONG = ("None", "3", "1.5", "'x'", "[]", "anything")
DIFFERING_KEYS = {
    "a stream of a missing device is refused when it is created, not when it is used": """
cuda.get_stream_from_external(0, 3)
""",
    "PyTorch writes the warning to the standard error stream": """
graph.register_generator_state(None)
graph.register_generator_state(3)
graph.register_generator_state(1.5)
graph.register_generator_state('x')
graph.register_generator_state([])
graph.register_generator_state(anything)
""",
    "no device has capabilities": """
~accelerator.get_device_capability([])
""",
    "the same error as of cuda.get_rng_state": """
accelerator.random.get_rng_state(3)
~accelerator.random.initial_seed(3)
""",
    "PyTorch converts a number to a tensor": """
host.to(1.5)
""",
    "the missing device is reported first": """
mps.set_rng_state(None, "mps")
mps.set_rng_state(3, "mps")
mps.set_rng_state(1.5, "mps")
mps.set_rng_state('x', "mps")
mps.set_rng_state([], "mps")
mps.set_rng_state(anything, "mps")
mtia.set_rng_state(None, "mtia")
mtia.set_rng_state(3, "mtia")
mtia.set_rng_state(1.5, "mtia")
mtia.set_rng_state('x', "mtia")
mtia.set_rng_state([], "mtia")
mtia.set_rng_state(anything, "mtia")
mtia.MTIAGraph('x')
mtia.MTIAGraph([])
mtia.MTIAGraph(anything)
""",
}


def variants(line):
    """Return the line with each of its arguments replaced by each wrong one."""
    whole = expression(line)
    prefix = line.removesuffix(whole)
    source, colon, body = whole.partition(": ")
    call = ast.parse(source, mode="eval").body
    if not isinstance(call, ast.Call):
        return
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for wrong in WRONG:
            yield prefix + source[: argument.col_offset] + wrong + source[argument.end_col_offset :] + colon + body


def every_call(cuda, torch_like):
    cuda.init()
    results = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # some calls write a file
        for line in lines():
            for variant in variants(line):
                results[variant] = play(variant, Names(cuda, torch_like, 0))
                cuda.set_device(0)
                cuda.set_stream(cuda.default_stream(0))
    return results
