"""A call of every public function, method and class of torch's runtime modules, for scenes that play all of them.

tests/data/every_call.txt has a line for each call, a Python expression over the names of `Names`. `with` enters the
context that the expression returns, and executes the expression after a colon in it. `~` compares only the type of the
value, which depends on the machine or the moment. `device` is the device under test. tests/names/test_every_name.py
checks that every public name is called.
"""

from __future__ import annotations

import ast
import json
import os
import re
from functools import partial
from importlib import import_module
from pathlib import Path

from support.on_oracle import outcome

CALLS = Path(__file__).parents[1] / "data" / "every_call.txt"


MISSING_DEVICE = ("Invalid device argument", "Allocator not initialized for device")


class Names(dict):
    """The names in the calls. Objects that need a device are created at their first use."""

    def __init__(self, cuda, torch_like, device) -> None:
        super().__init__(
            cuda=cuda,
            torch=torch_like,
            accelerator=torch_like.accelerator,
            mps=torch_like.mps,
            mtia=torch_like.mtia,
            device=device,
            nothing=lambda *_: None,
            work=lambda value: value.zero_(),
        )
        for name in ("comm", "graph_annotations", "nccl", "profiler", "_gpu_trace"):
            import_module(f"{cuda.__name__}.{name}")

    def __missing__(self, name: str):
        self[name] = made = self.make(name)
        return made

    def make(self, name: str):
        cuda, torch_like = self["cuda"], self["torch"]
        make = {
            "tensor": lambda: torch_like.empty(4, device="cuda"),
            "host": lambda: torch_like.empty(4),
            "stream": cuda.Stream,
            "general": lambda: torch_like.Stream("cuda"),
            "event": cuda.Event,
            "graph": cuda.CUDAGraph,
            "accelerator_graph": torch_like.accelerator.Graph,
            "pool": cuda.MemPool,
            "state": lambda: torch_like.zeros(16, dtype=torch_like.uint8),
            "generator": lambda: torch_like.Generator("cuda"),
            "anything": object,
        }
        if name not in make:
            raise NameError(name)
        return make[name]()


def lines(*without: str) -> list[str]:
    """Return the lines that use none of these names."""
    return [line for line in CALLS.read_text().splitlines() if line and not names_in(line).intersection(without)]


def names_in(line: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(expression(line).partition(": ")[0])) if isinstance(node, ast.Name)}


def expression(line: str) -> str:
    return line.removeprefix("with ").removeprefix("~")


def play(line: str, names: Names):
    """Return the outcome of a line."""

    def call():
        source, _, body = expression(line).partition(": ")
        value = eval(source, {}, names)
        if line.startswith("with "):
            with value:
                return "entered" if not body else type(eval(body, {}, names)).__name__
        if line.startswith("~"):
            return "callable" if callable(value) else type(value).__name__
        return summary(value)

    found = outcome(names["cuda"], call)
    if "message" in found:
        found |= shortened(found)
    return found


def shortened(found: dict) -> dict[str, str]:
    """Return the error with the first line of its text, without what docs/differences.md excepts for all functions.

    These are the texts of errors that an argument of a wrong type causes, and the number of a missing device.
    """
    if found["error"] in ("TypeError", "AttributeError", "SystemError"):
        return {"error": "TypeError", "message": ""}
    if any(text in found["message"] for text in MISSING_DEVICE) or found["error"] == "UnicodeDecodeError":
        return {"error": "RuntimeError", "message": "Invalid device argument"}
    text = re.split(r"\n|(?<=backend\.) |(?<=enabled)\. ", found["message"])[0]
    return {"error": found["error"], "message": text}


def summary(value):
    """Return a plain value, shortened, or the type and the device of an object."""
    if isinstance(value, dict) and len(value) > 6:
        return f"{len(value)} items"
    if type(value).__name__ == "Tensor":
        return f"Tensor {value.device} {list(value.shape)}"
    if type(value).__name__ in ("Stream", "Event", "ExternalStream", "Generator"):
        return f"{type(value).__name__} {value.device}"
    if isinstance(value, (list, tuple)):
        return [summary(item) for item in value]
    return value


def in_child(work):
    """Return the result of `work` in a forked child, or how the child ended."""
    read_end, write_end = os.pipe()
    if not (child := os.fork()):
        try:
            with os.fdopen(write_end, "w") as pipe:
                pipe.write(json.dumps(work()))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if text else f"wait status {status}"


def play_uninitialised(cuda, torch_like, every: list[str]) -> dict:
    """Return the outcomes before CUDA is initialised. A child plays lines until one of them initialises."""

    def play_some(rest):
        results = {}
        for line in rest:
            names = Names(cuda, torch_like, 0)
            results[line] = play(line, names) | {"initialised": cuda.is_initialized()}
            if cuda.is_initialized():
                break
        return results

    results = {}
    while len(results) < len(every):
        results |= in_child(partial(play_some, every[len(results) :]))
    return results
