"""Launches of kernels: arguments, sizes, failures, handles."""

from __future__ import annotations

import sys

import pytest
from support.kernel_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

KERNELS = r'''
PROGRAM = Program(r"""
struct Pair { double x; signed char y; };
extern "C" __global__ void store(double* to, bool a, signed char b, unsigned short c, int d, unsigned long long e,
                                 float f, double g, Pair h) {
  const double all[] = {double(a), double(b), double(c), double(d), double(e), f, g, h.x, double(h.y)};
  to[threadIdx.x] = all[threadIdx.x];
}
extern "C" __global__ void count(unsigned* to) {
  atomicAdd(to + blockIdx.z * 2 + threadIdx.y, blockIdx.x * gridDim.y + blockIdx.y + 1);
}
extern "C" __global__ void fail(int how) {
  if (how == 1) __trap();
  assert(how != 2);
}
""", "test.cu")
PAIR = np.dtype([("x", "f8"), ("y", "i1")], align=True)
STORE = ("pointer", "bool", "int8", "uint16", "int32", "uint64", "float32", "float64", PAIR)
port = CudaDriver().open(0)
port.queue()
queue = port.queue()
memory = port.reserve(2 * MIB)
'''


def test_arguments_are_packed_by_type():
    program = (
        KERNELS
        + """
store = load_kernel(queue, PROGRAM, "store", STORE)
pair = np.zeros((), PAIR)
pair["x"], pair["y"] = 8.5, -9
launch(store, 1, 9, (memory, True, -2, 3, -4, 2**64 - 2**12, 6.5, 7, pair), queue)
print(read(queue, memory, "f8", 9).tolist())

class Array:
    __cuda_array_interface__ = {"data": (memory, False)}

given = (Array(), np.bool_(True), np.int8(-2), ctypes.c_uint16(3), np.int64(-4), 5, np.float32(0.1), 1, pair.tobytes())
launch(store, (1, 1, 1), (9,), given, queue)
print(read(queue, memory, "f8", 9).tolist())
launch(store, 1, 9, (ctypes.c_void_p(memory), False, *[0] * 6, pair[()]), queue)
print(read(queue, memory, "f8", 9).tolist())
port.close()
print(live())
"""
    )
    assert output_of(program) == [
        "[1.0, -2.0, 3.0, -4.0, 1.8446744073709548e+19, 6.5, 7.0, 8.5, -9.0]",
        "[1.0, -2.0, 3.0, -4.0, 5.0, 0.10000000149011612, 1.0, 8.5, -9.0]",
        "[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.5, -9.0]",
        "{}",
    ]


def test_example_of_the_documentation(root):
    page = (root / "docs/how-to/cuda.md").read_text().partition("## Launch kernels")[2]
    example = page.partition("```python")[2].partition("```")[0]
    assert output_of(example) == ["2.5"]


def test_wrong_arguments_are_refused():
    program = (
        KERNELS
        + """
store = load_kernel(queue, PROGRAM, "store", STORE)
right = [memory, True, 1, 2, 3, 4, 5.0, 6.0, bytes(16)]

def attempt(arguments, kernel=store):
    try:
        launch(kernel, 1, 1, arguments, queue)
        print("accepted")
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)

attempt(right[:-1])
WRONG = [(0, "x"), (0, -1), (0, np.array(1)), (1, 1), (2, 128), (3, -1), (4, 1.5), (5, True)]
for number, wrong in [*WRONG, (6, "x"), (7, 1j), (8, b"x"), (8, 3)]:
    attempt([*right[:number], wrong, *right[number + 1:]])
SWAPPED = [("x", ">f8"), ("y", "i1")]
TYPES = [("pointer",), (*STORE[:-1], "f8"), ("pointer", "no type"), (">i4",), (SWAPPED,), ("O",), ("S8",)]
for wrong in TYPES:
    try:
        load_kernel(queue, PROGRAM, "store", wrong)
    except TypeError as error:
        print(error)
port.close()
"""
    )
    lines = output_of(program)
    assert lines[0] == "TypeError kernel store has 9 parameters, not 8"
    assert lines[1] == (
        "TypeError argument 0 of kernel store, of type pointer: not an address or an array of a device, but str"
    )
    assert lines[5] == "ValueError argument 2 of kernel store, of type int8: 128 is not from -128 to 127"
    assert lines[7] == "TypeError argument 4 of kernel store, of type int32: cannot be made of float"
    assert "accepted" not in lines
    assert lines[13].startswith("kernel store has parameters of [8, 1, 1, 2, 4, 8, 4, 8, 16] bytes; the declared types")
    assert lines[16] == "a kernel cannot have a parameter of type >i4, which is not in the machine's byte order"
    assert [line.rpartition("which ")[2] for line in lines[17:]] == [
        "is not in the machine's byte order",
        "is no number",
        "is no number",
    ]


@pytest.mark.parametrize("function", ["cuModuleUnload", "cuCtxPushCurrent"])
def test_failing_unload_does_not_keep_the_context(function):
    program = (
        KERNELS
        + f"""
load_kernel(queue, PROGRAM, "count", ["pointer"])
soft.softcuda_fail(b"{function}", ctypes.c_uint64(0), 999, 0)
port.context.release()
print(live().get("contexts"))
"""
    )
    assert output_of(program) == ["None"]


def test_grids_and_blocks():
    program = (
        KERNELS
        + """
count = load_kernel(queue, PROGRAM, "count", ["pointer"])
queue.fill(memory, 0, 64)
launch(count, (2, 3, 2), (1, 2), [memory], queue)
print(read(queue, memory, "u4", 6).tolist())
GRIDS = [(0, 1), ((1, 65536), 1), ((), 1), ((1, 1, 1, 1), 1)]
for grid, block in [*GRIDS, (1, 0), (1, 1025), (1, (32, 32, 2)), (1, (1, 1, 65))]:
    try:
        launch(count, grid, block, [memory], queue)
        print("accepted")
    except ValueError as error:
        pass
port.close()
"""
    )
    assert output_of(program) == ["[21, 21, 21, 21, 0, 0]"]


def test_numbers_have_the_bytes_of_numpy():
    program = (
        KERNELS
        + """
store = load_kernel(queue, PROGRAM, "store", STORE)
NUMBERS = [0.1, -0.0, 1e300, -1e300, 1e-46, float("inf"), 2**24 + 1, 2**53 + 2**24 + 1, np.float64(0.1)]
for number in NUMBERS:
    packed = store.pack([0, True, 1, 2, 3, 4, number, number, bytes(16)])
    with np.errstate(over="ignore"):
        assert packed[6] == np.array(number).astype("f4").tobytes(), (number, packed)
    assert packed[7] == np.array(number).astype("f8").tobytes(), (number, packed)
assert np.isnan(np.frombuffer(store.pack([0, True, 1, 2, 3, 4, float("nan"), 0, bytes(16)])[6], "f4")[0])
port.close()
"""
    )
    assert output_of(program) == []


def test_dynamic_shared_memory_is_limited_by_the_device():
    program = (
        KERNELS
        + """
count = load_kernel(queue, PROGRAM, "count", ["pointer"])
queue.fill(memory, 0, 64)
for shared in (0, 48 << 10, 96 << 10, 64 << 10, (96 << 10) + 1, 2**40, -1):
    try:
        launch(count, 1, 1, [memory], queue, shared=shared)
        print(soft.softcuda_calls(b"cuFuncSetAttribute"))
    except ValueError as error:
        print(error)
print(read(queue, memory, "u4", 1).tolist())
port.close()
"""
    )
    message = "kernel count can have 0 to 98304 bytes of dynamic shared memory, not"
    refused = [f"{message} {shared}" for shared in (98305, 2**40, -1)]
    assert output_of(program) == ["0", "0", "1", "1", *refused, "[4]"]


@pytest.mark.parametrize(("how", "code"), [(1, 719), (2, 710)])
def test_failing_kernel_is_raised_by_the_wait(how, code):
    program = (
        KERNELS
        + f"""
launch(load_kernel(queue, PROGRAM, "fail", ["int32"]), 1, 1, [{how}], queue)
for _ in range(2):
    try:
        queue.wait(queue.signal())
    except DeviceError as error:
        print(error.code)
port.close()
"""
    )
    assert output_of(program) == [str(code)] * 2


def test_kernel_belongs_to_its_device():
    program = (
        KERNELS
        + """
count = load_kernel(queue, PROGRAM, "count", ["pointer"])
other = CudaDriver().open(1)
for where in (other.queue(),):
    try:
        launch(count, 1, 1, [memory], where)
    except WrongState as error:
        print(error)
try:
    load_kernel(queue, PROGRAM, "missing", [])
except DeviceError as error:
    print(error.code)
queue.close()
try:
    launch(count, 1, 1, [memory], queue)
except WrongState as error:
    print("closed")
port.close()
other.close()
print(live())
"""
    )
    assert output_of(program) == ["kernel count was loaded for cuda:0, not for cuda:1", "500", "closed", "{}"]
