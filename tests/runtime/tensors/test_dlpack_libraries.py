"""Memory of the CPU device is shared with the real PyTorch, JAX and NumPy through DLPack, without a copy."""

from __future__ import annotations

import pytest
from support.beside import lines_with_torch, needs_torch

pytestmark = needs_torch

BEGIN = """
import gc, warnings, weakref
import numpy as np
import forebay

NAMES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"]
NAMES += ["float64", "complex64", "complex128", "bfloat16"]

def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error).partition(chr(10))[0]
"""


def lines_of(program: str) -> list[str]:
    return lines_with_torch(BEGIN + program, JAX_PLATFORMS="cpu", JAX_ENABLE_X64="1")


def test_torch_tensors_are_exchanged_without_copies():
    program = """
import torch

def same(tensor, other):
    assert (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) == (
        other.data_ptr(), tuple(other.shape), other.stride()
    )

for name in NAMES:
    one = torch.tensor(1, dtype=getattr(torch, name))
    theirs = torch.zeros(2, 3, dtype=getattr(torch, name)).t()
    imported = forebay.from_dlpack(theirs)
    same(imported, theirs)
    imported[1, 0] = 1
    forebay.synchronize("cpu")
    assert theirs.tolist() == [[0, 0], [1, 0], [0, 0]] and str(imported.dtype) == f"forebay.{name}", name
    ours = forebay.zeros(2, 3, dtype=getattr(forebay, name))
    exported = torch.from_dlpack(ours)
    same(ours, exported)
    exported[0, 2] = 1
    assert ours.tolist() == [[0, 0, 1], [0, 0, 0]] and exported.dtype == getattr(torch, name), name
    same(torch.from_dlpack(ours[:, 1:]), ours[:, 1:])
    assert forebay.from_dlpack(one).item() == 1
    assert tuple(forebay.from_dlpack(torch.empty(0, 3, dtype=theirs.dtype)).shape) == (0, 3)
print(error_of(lambda: forebay.from_dlpack(torch.ones(2, requires_grad=True))))
"""
    (refused,) = lines_of(program)
    assert refused.startswith("BufferError: Can't export tensors that require gradient")


def test_jax_arrays_are_exchanged_without_copies():
    program = """
import jax, jax.numpy as jnp

warnings.simplefilter("ignore", UserWarning)  # of read-only memory
for name in NAMES:
    theirs = jnp.arange(6).reshape(2, 3).astype(name)
    imported = forebay.from_dlpack(theirs)
    assert imported.data_ptr() == theirs.unsafe_buffer_pointer() and imported.tolist() == theirs.tolist()
    ours = forebay.ones(2, 3, dtype=getattr(forebay, name))
    exported = jnp.from_dlpack(ours)
    assert exported.unsafe_buffer_pointer() == ours.data_ptr() and exported.dtype == name
    assert exported.sum() == 6
doubled = jax.jit(lambda x: 2 * x)(jnp.from_dlpack(forebay.full((3,), 4.0)))
print(forebay.from_dlpack(doubled).tolist())
warnings.simplefilter("error")
print(error_of(lambda: forebay.from_dlpack(doubled)).partition(",")[0])
print(forebay.from_dlpack(doubled, copy=True).tolist())
"""
    assert lines_of(program) == [
        "[8.0, 8.0, 8.0]",
        "UserWarning: the array is read-only",
        "[8.0, 8.0, 8.0]",
    ]


@pytest.mark.parametrize("library", ["torch", "jax.numpy", "numpy"])
def test_either_side_keeps_the_memory_alive(library):
    program = f"""
import {library} as library

warnings.simplefilter("ignore", UserWarning)
before = forebay.memory.memory_allocated("cpu")
ours = forebay.full((1 << 16,), 3.0)
theirs = library.from_dlpack(ours)
del ours
gc.collect()
print(forebay.memory.memory_allocated("cpu") - before, float(theirs[-1]))
del theirs
gc.collect()
print(forebay.memory.memory_allocated("cpu") - before)
theirs = library.ones(1 << 16)
imported = forebay.from_dlpack(theirs)
del theirs
gc.collect()
print(imported[-1].item())
"""
    assert lines_of(program) == ["262144 3.0", "0", "1.0"]


def test_export_waits_for_the_work_of_the_stream():
    program = """
import torch, jax.numpy as jnp

for library in (torch, jnp):
    with forebay.Stream("cpu"):
        made = forebay.empty(1 << 22, dtype=forebay.uint8)
        for byte in range(10):
            made.fill_(byte)
        print(int(library.from_dlpack(made)[-1]))
"""
    assert lines_of(program) == ["9", "9"]
