"""Strided copies by a kernel equal NumPy's; host memory that kernels cannot access is staged."""

from __future__ import annotations

import sys

import pytest
from support.kernel_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

PREPARE = """
from forebay.spi import StridedCopy
port = CudaDriver().open(0)
queue = port.queue()
memory = port.reserve(8 * MIB)
pinned = port.pin(MIB)

def upload(address, array):
    queue.copy(address, array.ctypes.data, array.nbytes)
"""


def test_layouts_equal_numpy():
    program = (
        PREPARE
        + """
random = np.random.default_rng(3)
for dtype in ("u1", "u2", "f4", "f8", "c16", "S3", "S10"):
    size = np.dtype(dtype).itemsize
    for shift in (0, 1):
        for _ in range(12):
            shape = tuple(random.integers(1, 5, random.integers(0, 6)))
            source = np.frombuffer(random.bytes(200000), np.uint8)
            upload(memory, source)
            def layout():
                steps, step = [0] * len(shape), size
                for axis in random.permutation(len(shape)):
                    steps[axis] = int(step * random.choice([-1, 1]))
                    step *= int(shape[axis]) + int(random.integers(0, 2))
                return tuple(steps), 100000 + shift
            (to_steps, to), (steps, at) = layout(), layout()
            if random.integers(0, 3) == 0 and shape:
                steps = (0, *steps[1:])
            target = np.full(200000, 7, np.uint8)
            queue.fill(memory + MIB, 7, 200000)
            queue.copy_strided(StridedCopy(shape, memory + MIB + to, to_steps, "", size, memory + at, steps))
            view = np.ndarray(shape, f"V{size}", target, to, to_steps)
            view[...] = np.ndarray(shape, f"V{size}", source, at, steps)
            if (read(queue, memory + MIB, np.uint8, 200000) != target).any():
                print(dtype, shift, shape, to_steps, steps)
print("done")
"""
    )
    assert output_of(program) == ["done"]


@pytest.mark.parametrize("axes", [9, 64])
def test_many_axes(axes):
    program = (
        PREPARE
        + f"""
shape = (2,) * 9 + (1,) * ({axes} - 9)
values = np.arange(512, dtype="i2")
upload(memory, values)
steps = tuple(2 << (at * 5 % 9) for at in range(9)) + (2,) * ({axes} - 9)
plain = tuple(2 << (8 - at) for at in range(9)) + (2,) * ({axes} - 9)
queue.copy_strided(StridedCopy(shape, memory + MIB, plain, "", 2, memory, steps))
expected = np.ndarray((2,) * 9, "i2", values, 0, steps[:9]).reshape(-1)
print((read(queue, memory + MIB, "i2", 512) == expected).all())
"""
    )
    assert output_of(program) == ["True"]


def test_more_elements_than_threads_of_a_launch():
    program = (
        """
import forebay.backends.nvidia.kernels.strided as strided
strided._MOST_BLOCKS = 2
"""
        + PREPARE
        + """
values = np.arange(5000, dtype="f4")
upload(memory, values)
queue.copy_strided(StridedCopy((5000,), memory + MIB, (8,), "float64", 8, memory, (4,), "float32"))
print((read(queue, memory + MIB, "f8", 5000) == values).all())
"""
    )
    assert output_of(program) == ["True"]


def test_host_memory_is_staged():
    program = (
        PREPARE
        + """
host = np.arange(12, dtype="i4").reshape(3, 4)
before = soft.softcuda_live(b"device")
queue.copy_strided(StridedCopy((4, 3), memory, (12, 4), "float32", 4, host.ctypes.data, (4, 16), "int32"))
host_copy = host.copy()
host[:] = 0  # it was read at once
print((read(queue, memory, "f4", 12).reshape(4, 3) == host_copy.T).all())
target = np.zeros((3, 8), "f8")
queue.copy_strided(StridedCopy((4, 3), target.ctypes.data, (16, 64), "float64", 8, memory, (12, 4), "float32"))
print((target[:, ::2] == host_copy).all(), (target[:, 1::2] == 0).all())  # it is complete
queue.copy_strided(StridedCopy((4,), target.ctypes.data, (64,), "", 8, value=b"abcdefgh"))
other = np.zeros(3)
queue.copy_strided(StridedCopy((3,), other.ctypes.data, (8,), "", 8, target.ctypes.data, (64,)))
print(other.tobytes())
calls = soft.softcuda_calls(b"cuMemAllocAsync")
queue.copy_strided(StridedCopy((4, 3), pinned, (4, 16), "int32", 4, memory, (12, 4), "float32"))
queue.wait(queue.signal())
print(np.frombuffer(ctypes.string_at(pinned, 48), "i4").tolist(), soft.softcuda_calls(b"cuMemAllocAsync") - calls)
print(soft.softcuda_live(b"device") - before)
"""
    )
    assert output_of(program) == [
        "True",
        "True True",
        "b'abcdefghabcdefghabcdefgh'",
        f"{list(range(12))} 0",
        "0",
    ]


def test_fill_with_a_large_element():
    program = (
        PREPARE
        + """
value = bytes(range(200))
queue.fill(memory, 7, 2000)
queue.copy_strided(StridedCopy((4,), memory + 1, (300,), "", 200, value=value))
found = read(queue, memory, np.uint8, 2000).tobytes()
print(found == b"\\7" + (value + b"\\7" * 100) * 4 + b"\\7" * 799, soft.softcuda_live(b"device"))
"""
    )
    assert output_of(program) == ["True 1"]


OTHER_DEVICE = """
import forebay
other = CudaDriver().open(1)
there = other.reserve(4 << 20)
space = other.reserve_space(2 << 20, 2 << 20)
other.commit(space, 2 << 20)
upload(memory, np.arange(6, dtype="i4"))
queue.wait(queue.signal())
def attempt(to, source):
    try:
        queue.copy_strided(StridedCopy((3, 2), to, (8, 4), "float32", 4, source, (4, 12), "int32"))
        queue.wait(queue.signal())
        print(np.frombuffer(ctypes.string_at(to, 24), "f4").tolist())
    except forebay.Unsupported as error:
        print(error)
attempt(there, memory)
attempt(space, memory)
queue.copy(there, memory, 24)
attempt(memory + MIB, there)
queue.copy(space, memory, 24)
attempt(memory + MIB, space)
host = np.zeros(6, "f4")
attempt(host.ctypes.data, there)
calls = soft.softcuda_calls(b"cuDevicePrimaryCtxRetain") - soft.softcuda_calls(b"cuDevicePrimaryCtxRelease")
print(calls, soft.softcuda_live(b"contexts"))
"""


@pytest.mark.parametrize("possible", ["1", "0"])
def test_memory_of_another_device_is_used_if_the_hardware_permits_it(possible):
    copied = "[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]"
    refused = "cuda:0 cannot write elements to memory of cuda:1: copy them on that device"
    written = copied if possible == "1" else refused
    lines = output_of(PREPARE + OTHER_DEVICE, SOFTCUDA_PEERS=possible)
    assert lines == [written, refused, copied, copied, copied, "2 2"]
