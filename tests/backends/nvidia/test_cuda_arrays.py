"""Exchange of GPU memory by `__cuda_array_interface__`, with NVIDIA's cuda.core and others, on the software driver."""

from __future__ import annotations

import sys

import pytest
from support.cuda_core_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
floats = forebay.tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device="cuda")
address = floats.data_ptr()

class Array:
    def __init__(self, interface):
        self.__cuda_array_interface__ = interface

def array(without=None, **entries):
    interface = {"shape": (4,), "typestr": "<f4", "data": (address, False), "version": 2} | entries
    return Array({name: value for name, value in interface.items() if name != without})

def described(function, *arguments, **options):
    found = seen(function, *arguments, **options)
    if isinstance(found, forebay.Tensor):
        name = str(found.dtype).split(".")[-1]
        return f"{found.device} {name} {tuple(found.shape)} {found.stride()} {found.data_ptr() == address}"
    return found
"""


def test_interface_of_tensors():
    program = """
for tensor in (floats, floats[1:, ::2], floats[:0], floats[0, 0]):
    interface = tensor.__cuda_array_interface__
    interface["data"] = (interface["data"][0] - address if interface["data"][0] else 0, interface["data"][1])
    print(sorted(interface.items()))
for dtype in (bool, "int8", "uint16", "float16", "complex64", "bfloat16"):
    print(forebay.zeros(1, dtype=dtype, device="cuda").__cuda_array_interface__["typestr"], end=" ")
print()
print(hasattr(floats.cpu(), "__cuda_array_interface__"))
print(described(lambda: floats.cpu().__cuda_array_interface__).partition(" If CUDA data")[0])
newer = Array(floats[1:, ::2].__cuda_array_interface__ | {"version": 3, "stream": None})  # which cuda.core needs
view = StridedMemoryView.from_cuda_array_interface(newer, stream_ptr=-1)
print(view.ptr == address + 16, view.shape, view.strides, view.dtype, view.is_device_accessible)
"""
    assert output_of(BEGIN + program) == [
        "[('data', (0, False)), ('shape', (3, 4)), ('strides', None), ('typestr', '<f4'), ('version', 2)]",
        "[('data', (16, False)), ('shape', (2, 2)), ('strides', (16, 8)), ('typestr', '<f4'), ('version', 2)]",
        "[('data', (0, False)), ('shape', (0, 4)), ('strides', None), ('typestr', '<f4'), ('version', 2)]",
        "[('data', (0, False)), ('shape', ()), ('strides', None), ('typestr', '<f4'), ('version', 2)]",
        "|b1 |i1 <u2 <f2 <c8 <V2 ",
        "False",
        "AttributeError: Can't get __cuda_array_interface__ on non-CUDA tensor type: forebay.FloatTensor",
        "True (2, 2) (4, 2) float32 True",
    ]


def test_contents_of_imported_interfaces():
    program = """
cases = [
    array(), array(shape=[2, 2]), array(shape=(2, 2), strides=(16, 4)), array(shape=(), strides=()),
    array(shape=(2,), typestr="<V2"), array(shape=(0,), data=(0, False)),
    array(strides=(-4,), data=(address + 12, False)), array(without="version"),
    array("shape"), array("typestr"), array("data"), array(typestr="zz"), array(typestr="V3"), array(typestr="|S2"),
    array(shape=4), array(shape=("a",)), array(data=(address,)), array(data=[address, False]), array(data=("a", False)),
    array(data=(address, True)), array(strides=(3,)), array(strides=(4, 4)), array(data=(0, False)),
    array(shape=(-2,)), array(version=3, stream=0), array(version=3, stream=2), Array(3),
    array(data=(np.arange(4, dtype=np.float32).ctypes.data, False)),
]
for case in cases:
    print(described(forebay.as_tensor, case).partition(" The only")[0].partition(" Make a")[0])
for options in ({"device": "cpu"}, {"dtype": "float64"}, {"device": "cuda:1"}):
    print(described(forebay.as_tensor, array(), **options), "|", described(forebay.tensor, array(), **options))
print(described(forebay.tensor, array()), described(forebay.tensor, array(), pin_memory=True))
with forebay.device("cpu"):
    print(described(forebay.as_tensor, array()))
there = forebay.ones(2, device="cuda:1")
print(described(forebay.as_tensor, array(shape=(2,), data=(there.data_ptr(), False))))
print(forebay.as_tensor(array(shape=(2, 3), strides=(4, 8))).tolist())
print(forebay.as_tensor(array(strides=(-4,), data=(address + 12, False))).tolist())
"""
    shared = "cuda:0 float32 (4,) (1,) True"
    assert output_of(BEGIN + program) == [
        shared,
        "cuda:0 float32 (2, 2) (2, 1) True",
        "cuda:0 float32 (2, 2) (4, 1) True",
        "cuda:0 float32 () () True",
        "cuda:0 bfloat16 (2,) (1,) True",
        "cuda:0 float32 (0,) (1,) False",
        "cuda:0 float32 (4,) (-1,) False",
        shared,
        "TypeError: attribute `shape` must exist",
        "TypeError: attribute `typestr` must exist",
        "TypeError: attribute `shape` data exist",
        "ValueError: cannot parse `typestr`",
        "TypeError: can't convert np.ndarray of type numpy.void.",
        "TypeError: can't convert np.ndarray of type numpy.bytes_.",
        "TypeError: shape and strides must be sequences",
        "TypeError: 'str' object cannot be interpreted as an integer",
        "TypeError: `data` must be a 2-tuple of (int, bool)",
        "TypeError: `data` must be a 2-tuple of (int, bool)",
        "TypeError: an integer is required",
        "TypeError: the read only flag is not supported, should always be False",
        "ValueError: given array strides not a multiple of the element byte size.",
        "TypeError: strides must be a sequence of the same length as shape",
        "RuntimeError: elements of shape [4] have no address",
        "RuntimeError: Trying to create tensor with negative dimension -2: [-2]",
        "ValueError: `stream` must be None, 1, 2 or a handle, not 0",
        "BufferError: per-thread default stream is not supported.",
        "TypeError: `__cuda_array_interface__` must be a dict",
        "RuntimeError: The specified pointer resides on host memory and is not registered with any CUDA device.",
        "cpu float32 (4,) (1,) False | cpu float32 (4,) (1,) False",
        "cuda:0 float64 (4,) (1,) False | cuda:0 float64 (4,) (1,) False",
        "cuda:1 float32 (4,) (1,) False | cuda:1 float32 (4,) (1,) False",
        "cuda:0 float32 (4,) (1,) False RuntimeError: Can't pin tensor constructed from __cuda_array_interface__",
        "cpu float32 (4,) (1,) False",
        "cuda:1 float32 (2,) (1,) False",
        "[[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]",
        "[3.0, 2.0, 1.0, 0.0]",
    ]


def test_current_stream_waits_for_the_stream_of_the_interface():
    program = """
theirs = device.create_stream()
handle = int(theirs.handle)
for entries in ({"version": 3, "stream": handle}, {"version": 3, "stream": None}, {"version": 2, "stream": handle}):
    floats.zero_()
    cuda.synchronize()
    gate = block(handle)
    api.cuMemsetD32Async(address, 0x3F800000, 4, handle)
    with cuda.stream(cuda.Stream()):
        copied = forebay.as_tensor(array(**entries)).clone()
        if entries["version"] == 2 or entries["stream"] is None:
            cuda.current_stream().synchronize()
        gate.open()
        print(copied.tolist())
    theirs.sync()
default = forebay.as_tensor(array(version=3, stream=1))
print(described(lambda: default))
"""
    assert output_of(BEGIN + program) == [
        "[1.0, 1.0, 1.0, 1.0]",
        "[0.0, 0.0, 0.0, 0.0]",
        "[0.0, 0.0, 0.0, 0.0]",
        "cuda:0 float32 (4,) (1,) True",
    ]


def test_memory_of_the_array_lives_until_the_queued_work_is_done():
    program = """
import weakref
made = array()
reference = weakref.ref(made)
found = forebay.as_tensor(made)
del made
print(reference() is not None, end=" ")
side = cuda.Stream()
with cuda.stream(side):
    gate = NativeGate()
    side.queue.call_native(gate.function, gate.argument)
    found.fill_(5)
del found
gc.collect()
print(reference() is not None, end=" ")
gate.open()
side.synchronize()
gc.collect()
print(reference() is not None, floats[0].tolist())
"""
    assert output_of(BEGIN + program) == ["True True False [5.0, 5.0, 5.0, 5.0]"]


def test_hostile_interfaces_are_rejected_with_the_documented_errors():
    program = """
for entries in (
    {"typestr": "f4,,"}, {"typestr": None}, {"typestr": "<f16"}, {"data": (-1, False)}, {"data": (1 << 70, False)},
    {"shape": (0, 1 << 70)}, {"version": 3, "stream": 3}, {"version": 3, "stream": 1 << 70},
):
    print(described(forebay.as_tensor, array(**entries)).partition(":")[0])
for stream in (3, 35, 1 << 70):
    print(described(floats.__dlpack__, stream=stream).partition(":")[0])
"""
    assert output_of(BEGIN + program) == [
        "ValueError",
        "ValueError",
        "TypeError",
        "ValueError",
        "ValueError",
        "RuntimeError",
        "DeviceError",
        "AssertionError",
        "DeviceError",
        "DeviceError",
        "AssertionError",
    ]
