"""Tensors: properties, conversion to arrays, and lifetime of their memory."""

from __future__ import annotations

import copy
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import forebay
from forebay import Stream, memory
from forebay.runtime.memory.storage import Storage

pytestmark = pytest.mark.usefixtures("clean")
MIB = 1 << 20


def test_properties_describe_the_memory():
    made = forebay.zeros(2, 3, 4, dtype=np.int16)
    assert made.shape == made.size() == (2, 3, 4)
    assert made.size(1) == made.size(-2) == 3
    assert (made.stride(), made.stride(0), made.stride(-1)) == ((12, 4, 1), 12, 1)
    assert (made.ndim, made.numel(), made.nbytes, len(made)) == (3, 24, 48, 2)
    assert made[1, 2:].storage_offset() == 20
    assert made[1, 2:].data_ptr() == made.data_ptr() + 40
    assert made.is_contiguous()
    assert not made[:, :, :2].is_contiguous()
    assert hash(made) != hash(made[:])


def test_iteration_and_truth_value():
    made = forebay.tensor([[1, 2], [3, 4]])
    assert [row.tolist() for row in made] == [[1, 2], [3, 4]]
    scalar = forebay.tensor(0)
    for use in (len, iter, list):
        with pytest.raises(TypeError, match="0-d tensor"):
            use(scalar)
    assert not scalar
    assert forebay.tensor([5.0])
    for many in (made, forebay.empty(0)):
        with pytest.raises(RuntimeError, match=r"^Boolean value of Tensor with (more than one value|no values) is amb"):
            bool(many)


def test_item_returns_the_only_element():
    assert forebay.full((1, 1), 2.5).item() == 2.5
    assert type(forebay.tensor([7]).item()) is int
    for many in (forebay.zeros(2), forebay.zeros(0)):
        with pytest.raises(RuntimeError, match="elements cannot be converted to Scalar"):
            many.item()
        with pytest.raises(ValueError, match="only one element tensors can be converted to Python scalars"):
            int(many)


def test_numpy_shares_the_memory_and_keeps_it_alive():
    made = forebay.tensor([1, 2, 3])
    array = made.numpy()
    assert array.__array_interface__["data"][0] == made.data_ptr()
    array[0] = 9
    assert made.tolist() == [9, 2, 3]
    before = memory.memory_allocated()
    part = array[1:]
    del made, array
    gc.collect()
    assert memory.memory_allocated() == before
    forebay.full((3,), 0)
    assert part.tolist() == [2, 3]
    del part
    assert memory.memory_allocated() < before


def test_numpy_waits_for_the_stream():
    stream = Stream()
    with stream:
        made = forebay.empty(4 * MIB, dtype=np.uint8)
        for byte in range(20):
            made.fill_(byte)
        assert made.numpy()[-1] == 19


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[::2], lambda t: t.transpose(0, 1), lambda t: t[0, 0]])
def test_array_protocols_share_the_memory(view):
    made = forebay.tensor(np.arange(12.0).reshape(4, 3))
    shared = view(made)
    expected = view(made).numpy()
    for array in (
        np.asarray(shared),
        np.asarray(memoryview(shared)),
        np.array(shared, copy=False),
        np.from_dlpack(shared),
    ):
        assert array.__array_interface__["data"][0] == shared.data_ptr()
        assert array.strides == expected.strides
        np.testing.assert_array_equal(array, expected)
    assert np.array(shared).__array_interface__["data"][0] != shared.data_ptr()
    assert np.asarray(shared, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        np.array(shared, dtype=np.float32, copy=False)


def test_buffer_keeps_the_memory_alive():
    before = memory.memory_allocated()
    view = memoryview(forebay.tensor([1, 2, 3], dtype=np.uint8))
    gc.collect()
    assert (view.tolist(), view.format, view.readonly) == ([1, 2, 3], "B", False)
    view[0] = 7
    assert bytes(view) == b"\x07\x02\x03"
    assert memory.memory_allocated() > before
    view.release()
    gc.collect()
    assert memory.memory_allocated() == before


def test_dtypes_without_buffer_format_convert_to_arrays():
    made = forebay.full((2,), 1.5, dtype="bfloat16")
    assert made.numpy().dtype == np.asarray(made).dtype == ml_dtypes.bfloat16
    assert np.asarray(made).tolist() == made.tolist() == [1.5, 1.5]
    records = forebay.zeros(2, dtype=[("x", "f4"), ("y", "i8")])
    assert np.asarray(records).dtype == records.dtype
    times = forebay.from_numpy(np.array(["2020-01-01"], "M8[D]"))
    assert np.asarray(times).dtype == times.dtype


def test_empty_tensors_convert_to_empty_arrays():
    made = forebay.empty(0, 3)
    for array in (made.numpy(), np.asarray(made), np.from_dlpack(made)):
        assert array.shape == (0, 3)
    assert made.tolist() == []


def test_conversion_from_inaccessible_device_raises(fake):
    made = forebay.zeros(2, 3, device="fake:0")
    text = (
        r"^can't convert fake:0 device type tensor to numpy\. "
        r"Use Tensor\.cpu\(\) to copy the tensor to host memory first\.$"
    )
    for use in (forebay.Tensor.numpy, np.asarray, np.array, lambda t: np.ones(3) + np.asarray(t)):
        with pytest.raises(TypeError, match=text):
            use(made)
    for use in (memoryview, bytes, lambda t: t.__dlpack__(), lambda t: t.__dlpack_device__(), np.from_dlpack):
        with pytest.raises(BufferError, match=text):
            use(made)
    assert not hasattr(made, "__array_interface__")
    assert getattr(made, "__cuda_array_interface__", None) is None


def test_views_on_inaccessible_device_read_no_memory(fake):
    made = forebay.empty(4, 6, device="fake:0")
    assert made.data_ptr() >= 1 << 48
    assert made[1:, ::2].stride() == (6, 2)
    assert made.view(-1).shape == (24,)
    assert made.view(np.uint8).shape == (4, 24)
    assert made.transpose(0, 1).permute(1, 0).is_contiguous()
    assert made[None, ..., 0].expand(3, -1).data_ptr() == made.data_ptr()
    assert made[0][2].data_ptr() == made.data_ptr() + 8
    assert made.fill_(0).zero_() is made
    assert {call[0] for call in fake.ports[0].calls} <= {"queue", "reserve", "fill", "signal", "wait"}


def test_record_stream_keeps_memory_from_reuse(fake):
    stream = Stream("fake:0")
    made = forebay.empty(1000, device="fake:0")
    address = made.data_ptr()
    stream.queue.call(lambda: None)
    made[10:].record_stream(stream)
    del made
    assert forebay.empty(1000, device="fake:0").data_ptr() != address
    stream.queue.finish()
    assert forebay.empty(1000, device="fake:0").data_ptr() == address


def test_record_stream_on_another_device_raises(fake):
    made = forebay.empty(1, device="fake:0")
    with pytest.raises(ValueError, match="is not a stream of fake:0"):
        made.record_stream(Stream("fake:1"))
    forebay.from_numpy(np.ones(1)).record_stream(Stream("cpu"))
    forebay.empty(0, device="fake:0").record_stream(Stream("fake:0"))


def test_memory_is_freed_with_the_last_view():
    before = memory.memory_allocated()
    made = forebay.zeros(1000)
    reference = weakref.ref(made)
    part = made[5:][::2].view(-1)
    del made
    assert reference() is None
    assert memory.memory_allocated() > before
    del part
    assert memory.memory_allocated() == before


def test_copy_shares_and_deepcopy_copies_the_memory():
    made = forebay.tensor([1, 2])
    shallow = copy.copy(made)
    assert shallow.data_ptr() == made.data_ptr()
    deep = copy.deepcopy({"a": made, "b": made})
    assert deep["a"] is deep["b"]
    assert deep["a"].data_ptr() != made.data_ptr()
    assert deep["a"].tolist() == [1, 2]


def test_empty_storage_has_no_block():
    storage = Storage.allocate(Stream().opened, 0, 0)
    assert (storage.address, storage.block, storage.borrowed) == (0, None, False)
