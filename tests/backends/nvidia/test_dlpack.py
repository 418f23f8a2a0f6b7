"""Exchange of GPU memory with NVIDIA's cuda.core and with hostile producers over DLPack, on the software driver."""

from __future__ import annotations

import sys

import pytest
from support.cuda_core_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
from support.dlpack_capsules import Produced, consume
floats = forebay.tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device="cuda")
"""


def test_cuda_core_reads_tensors():
    program = """
def read(tensor):
    view = StridedMemoryView.from_dlpack(tensor, stream_ptr=-1)
    shared = view.ptr == tensor.data_ptr() or not tensor.numel()
    print(shared, view.shape, view.strides, view.dtype, view.device_id, view.is_device_accessible, view.readonly)

for tensor in (floats, floats[1:, ::2], floats.transpose(0, 1), floats[0, 0], floats[:0]):
    read(tensor)
for name in ("uint8", "int64", "float16", "complex128", "bool"):
    read(forebay.zeros(2, dtype=getattr(forebay, name) if name != "bool" else bool, device="cuda"))
print(forebay.zeros(2, dtype="bfloat16", device="cuda").__dlpack__(), floats.__dlpack_device__())
print(seen(forebay.zeros(2, dtype="S3", device="cuda").__dlpack__))
"""
    lines = output_of(BEGIN + program)
    assert lines[:5] == [
        "True (3, 4) (4, 1) float32 0 True False",
        "True (2, 2) (4, 2) float32 0 True False",
        "True (4, 3) (1, 4) float32 0 True False",
        "True () () float32 0 True False",
        "True (0, 4) (4, 1) float32 0 True False",
    ]
    assert [line.split()[3] for line in lines[5:10]] == ["uint8", "int64", "float16", "complex128", "bool"]
    assert "dltensor" in lines[10]
    assert lines[11] == "BufferError: DLPack has no type for elements of type |S3"


def test_export_checks_its_options():
    program = """
export = floats.__dlpack__
for stream in (None, -1, 0, 1, 2, "x", True, cuda.Stream().cuda_stream, 12345678):
    print(seen(export, stream=stream))
for options in (
    {"dl_device": (2, 0)}, {"dl_device": (13, 0)}, {"dl_device": 3}, {"dl_device": (1, 0), "copy": False},
    {"read_only": True}, {"dl_device": (2, 99)},
):
    print(seen(export, **options))
print(seen(forebay.zeros(2, device="cuda:1").__dlpack__))
print(seen(floats.cpu().__dlpack__, stream=1), "|", seen(floats.cpu().__dlpack__, stream=1.5))
for options in (
    {"max_version": (0, 8)}, {"max_version": (1, 0)}, {"max_version": (3, 1), "read_only": True, "copy": True}
):
    fields, delete = consume(export(**options))
    print(fields["version"], fields["address"] == floats.data_ptr(), fields["shape"], fields["strides"])
    delete()
host, _ = consume(export(dl_device=(1, 0), max_version=(1, 0)))
print(host["device"], ctypes.cast(host["address"], ctypes.POINTER(ctypes.c_float))[5])
ones = forebay.ones(2)
for options in ({}, {"copy": True}, {"dl_device": (2, 1)}, {"max_version": (1, 0)}):
    copied, delete = consume(ones.__dlpack__(**{"dl_device": (2, 0)} | options))
    there = (ctypes.c_float * 2).from_address(copied["address"])
    print(copied["device"], copied["version"], list(there), copied["address"] != ones.data_ptr())
    delete()
for options in ({"dl_device": (2, 0), "copy": False}, {"dl_device": (2, 9)}, {"dl_device": (13, 0)}, {"dl_device": 3}):
    print(seen(ones.__dlpack__, **options))
for tensor in (ones, floats):  # the index of the CPU is ignored
    print(consume(tensor.__dlpack__(dl_device=(1, 5)))[0]["device"])
with cuda.device(1):
    print(seen(export))
    elsewhere = floats.to("cuda:1")
    fields, delete = consume(elsewhere.__dlpack__(stream=1))
    print(fields["device"])
"""
    assert output_of(BEGIN + program) == [
        "capsule",
        "capsule",
        "AssertionError: unsupported stream on CUDA: 0.",
        "capsule",
        "BufferError: per-thread default stream is not supported.",
        "TypeError: stream must be ``int`` or ``none``",
        "TypeError: stream must be ``int`` or ``none``",
        "capsule",
        "DeviceError: CUDA error: invalid resource handle",
        "capsule",
        "BufferError: Unsupported device_type: 13",
        "TypeError: __dlpack__(): argument 'dl_device' must be tuple of ints, not int",
        "ValueError: cannot move (i.e. copy=False) tensor from cuda:0 to cpu without copying.",
        "BufferError: read_only export requires the versioned DLPack protocol; pass max_version=(1, 0) or higher",
        "DeviceError: CUDA error: invalid device ordinal",
        "BufferError: Can't export tensors on a different CUDA device index. Expected: 1. Current device: 0.",
        "AssertionError: stream should be None on cpu. | TypeError: stream must be ``int`` or ``none``",
        "None True [3, 4] [4, 1]",
        "(1, 0, 0) True [3, 4] [4, 1]",
        "(1, 0, 3) False [3, 4] [4, 1]",
        "(1, 0) 5.0",
        "(2, 0) None [1.0, 1.0] True",
        "(2, 0) None [1.0, 1.0] True",
        "(2, 1) None [1.0, 1.0] True",
        "(2, 0) (1, 0, 2) [1.0, 1.0] True",
        "ValueError: cannot move (i.e. copy=False) tensor from cpu to cuda:0 without copying.",
        "DeviceError: CUDA error: invalid device ordinal",
        "BufferError: Unsupported device_type: 13",
        "TypeError: __dlpack__(): argument 'dl_device' must be tuple of ints, not int",
        "(1, 0)",
        "(1, 0)",
        "BufferError: Can't export tensors on a different CUDA device index. Expected: 0. Current device: 1.",
        "(2, 1)",
    ]


def test_consumer_stream_waits_for_the_tensor():
    program = """
theirs = device.create_stream()
target = device.allocate(16, stream=theirs)
theirs.sync()
for handle, waits in ((int(theirs.handle), True), (-1, False)):
    made = forebay.zeros(4, device="cuda")
    cuda.synchronize()
    work = cuda.Stream()
    with cuda.stream(work):
        gate = block(work.cuda_stream)
        made.fill_(3)
        made.__dlpack__(stream=handle)
        api.cuMemcpyDtoDAsync(int(target.handle), made.data_ptr(), 16, int(theirs.handle))
    if not waits:
        theirs.sync()
    gate.open()
    theirs.sync()
    work.synchronize()
    print(list((ctypes.c_float * 4).from_address(int(target.handle))))
"""
    assert output_of(BEGIN + program) == ["[3.0, 3.0, 3.0, 3.0]", "[0.0, 0.0, 0.0, 0.0]"]


def test_exported_memory_lives_until_its_consumer_deletes_it():
    program = """
del floats
for versioned in (None, (1, 0)):
    made = forebay.zeros(1000, device="cuda")
    capsule = made.__dlpack__(max_version=versioned)
    del made
    print(cuda.memory_allocated(), end=" ")
    fields, delete = consume(capsule)
    del capsule
    print(cuda.memory_allocated(), end=" ")
    thread = threading.Thread(target=delete)
    thread.start()
    thread.join(20)
    print(cuda.memory_allocated())
made = forebay.zeros(1000, device="cuda")
capsule = made.__dlpack__()
made.untyped_storage().resize_(0)
print(cuda.memory_allocated(), end=" ")
del capsule, made
print(cuda.memory_allocated())
kept = forebay.zeros(1000, device="cuda").__dlpack__()
import sys
sys.modules["kept"] = forebay.zeros(1000, device="cuda").__dlpack__()
"""
    assert output_of(BEGIN + program) == ["4096 4096 0", "4096 4096 0", "4096 0"]


def test_cuda_core_memory_is_imported():
    program = """
stream = device.create_stream()
buffer = device.allocate(64, stream=stream)
stream.sync()
found = forebay.from_dlpack(buffer)
print(found.device, found.dtype, tuple(found.shape), found.data_ptr() == int(buffer.handle), cuda.memory_allocated())
found.fill_(3)
print(found.cpu().tolist()[:2], bytes(ctypes.string_at(int(buffer.handle), 2)))
copied = forebay.from_dlpack(buffer, copy=True)
print(forebay.from_dlpack(buffer, device="cpu").device, copied.data_ptr() == found.data_ptr())
print(seen(forebay.from_dlpack, buffer, device="cpu", copy=False).partition(" Set")[0])
again = forebay.from_dlpack(floats.__dlpack__(max_version=(1, 0)))
print(again.data_ptr() == floats.data_ptr(), again.tolist() == floats.tolist())
"""
    assert output_of(BEGIN + program) == [
        "cuda:0 forebay.int8 (64,) True 512",
        "[3, 3] b'\\x03\\x03'",
        "cpu False",
        "ValueError: cannot move DLPack tensor from device (<DLDeviceType.kDLCUDA: 2>, 0) to (1, 0) without copying.",
        "True True",
    ]


def test_import_orders_the_current_stream_and_frees_after_its_work():
    program = """
class Producer(Produced):
    stream = None
    def __dlpack__(self, *, stream, **options):
        self.asked.append((stream, options))
        return super().__dlpack__(**options)

class Old(Producer):
    def __dlpack__(self, stream):
        self.asked.append(stream)
        return self.capsule

class Failing(Producer):
    def __dlpack__(self, **options):
        self.asked.append(options)
        raise TypeError("always")

address = floats.data_ptr()
made = Producer(address, (2, 4))
found = forebay.from_dlpack(made)
print(made.asked[0], found.tolist() == floats[:2].tolist())
side = cuda.Stream()
with cuda.stream(side):
    other, old, bad = Producer(address), Old(address), Failing(address)
    forebay.from_dlpack(other, copy=False)
    print(other.asked[0] == (side.cuda_stream, {"max_version": (1, 0), "copy": False}))
    print(forebay.from_dlpack(old).tolist() == floats[0].tolist(), old.asked == [side.cuda_stream])
    print(seen(forebay.from_dlpack, bad), len(bad.asked))
gate = block(side.cuda_stream)
with cuda.stream(side):
    found.fill_(9)
made.capsule = None
del found
gc.collect()
print(made.deleted, end=" ")
gate.open()
side.synchronize()
cuda.synchronize()
gc.collect()
print(made.deleted)
print(floats[:2].tolist() == [[9.0] * 4] * 2)
"""
    assert output_of(BEGIN + program) == [
        "(1, {'max_version': (1, 0)}) True",
        "True",
        "True True",
        "TypeError: always 2",
        "0 1",
        "True",
    ]


def test_contents_of_hostile_capsules():
    program = """
warnings.simplefilter("error")
address = floats.data_ptr()
def imported(what, **options):
    made = Produced(options.pop("at", address), **options)
    found = seen(forebay.from_dlpack, made.capsule)
    if isinstance(found, forebay.Tensor):
        name = str(found.dtype).split(".")[-1]
        offset = found.data_ptr() - address if found.numel() else "empty"
        values = found.tolist() if what == "values" else ""
        found = f"{found.device} {name} {tuple(found.shape)} {found.stride()} {offset} {values}"
    gc.collect()
    cuda.synchronize()
    made.capsule = None
    print(found, made.deleted)

imported("values", strides=(2,))
imported("values", shape=(2, 3), strides=(-4, 1), offset=16)
imported("", shape=())
imported("", shape=(0,), at=0)
imported("", shape=(2, 3), strides=(0, 1), element=(0, 64, 1))
imported("", element=(4, 16, 1))
imported("", element=(6, 8, 1))
imported("", element=(5, 64, 1))
for element in ((2, 32, 2), (77, 32, 1), (2, 128, 1), (2, 33, 1), (0, 3, 1), (4, 32, 1), (6, 32, 1), (3, 64, 1)):
    imported("", element=element)
for options in (
    {"device": (10, 0)}, {"device": (77, 0)}, {"device": (2, 99)}, {"shape": (-1,)}, {"at": 0},
    {"shape": (1 << 62, 1 << 10)}, {"version": (2, 0)}, {"ndim": 99}, {"strides": (-(1 << 61),)},
):
    imported("", **options)
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    imported("values", version=(1, 0), flags=1, shape=(2,))
    forebay.from_dlpack(Produced(address, version=(1, 0), flags=1), copy=True)
print([str(each.message) for each in caught])
print(seen(forebay.from_dlpack, Produced(address, device=(77, 0))))
"""
    overflowed = "Storage size calculation overflowed with"
    assert output_of(BEGIN + program) == [
        "cuda:0 float32 (4,) (2,) 0 [0.0, 2.0, 4.0, 6.0] 1",
        "cuda:0 float32 (2, 3) (-4, 1) 16 [[4.0, 5.0, 6.0], [0.0, 1.0, 2.0]] 1",
        "cuda:0 float32 () () 0  1",
        "cuda:0 float32 (0,) (1,) empty  1",
        "cuda:0 int64 (2, 3) (0, 1) 0  1",
        "cuda:0 bfloat16 (4,) (1,) 0  1",
        "cuda:0 bool (4,) (1,) 0  1",
        "cuda:0 complex64 (4,) (1,) 0  1",
        "BufferError: ATen does not support lanes != 1 for dtype code2 1",
        "BufferError: Unsupported code 77 1",
        "BufferError: Unsupported kFloat bits 128 1",
        "BufferError: Unsupported kFloat bits 33 1",
        "BufferError: Unsupported kInt bits 3 1",
        "BufferError: Unsupported kFloat bits 32 1",
        "BufferError: Unsupported kDLBool bits 32 1",
        "BufferError: Unsupported code 3 1",
        "BufferError: Unsupported device_type: 10 0",
        "BufferError: Unsupported device_type: 77 0",
        "DeviceError: CUDA error: invalid device ordinal 0",
        "RuntimeError: Trying to create tensor with negative dimension -1: [-1] 1",
        "RuntimeError: elements of shape [4] have no address 1",
        f"RuntimeError: {overflowed} sizes=[4611686018427387904, 1024] and strides=[1024, 1] 1",
        "RuntimeError: unsupported DLPack capsule major version: 2. Maximum supported version: 1 0",
        "BufferError: a tensor cannot have 99 dimensions 1",
        f"RuntimeError: {overflowed} sizes=[4] and strides=[-2305843009213693952] 1",
        "cuda:0 float32 (2,) (1,) 0 [0.0, 1.0] 1",
        "['the array is read-only, and a tensor is not: writing to it is undefined']",
        "BufferError: Unsupported device_type: 77",
    ]
