"""Import and export through DLPack."""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import gc
import weakref

import numpy as np
import pytest
from support.dlpack_capsules import Produced, consume

import forebay
from forebay import memory

pytestmark = pytest.mark.usefixtures("clean")


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_round_trip_shares_memory(dtype):
    made = forebay.tensor(np.arange(12).reshape(3, 4).astype(dtype))
    for view in (made, made[::2, 1:], made.transpose(0, 1), made[0, 0], made[:0]):
        array = np.from_dlpack(view)
        assert array.dtype == view.dtype
        np.testing.assert_array_equal(array, view.numpy())
        again = forebay.from_dlpack(view)
        assert again.shape == view.shape
        assert again.data_ptr() == view.data_ptr()
        assert again.tolist() == view.tolist()


def test_from_dlpack_shares_the_array():
    array = np.arange(4)
    shared = forebay.from_dlpack(array)
    array[0] = 9
    assert shared.tolist() == [9, 1, 2, 3]
    assert shared.device == forebay.device("cpu")


def test_exported_array_keeps_the_memory_alive():
    before = memory.memory_allocated()
    made = forebay.tensor([1, 2, 3])
    array = np.from_dlpack(made)
    del made
    gc.collect()
    assert memory.memory_allocated() > before
    assert array.tolist() == [1, 2, 3]
    del array
    gc.collect()
    assert memory.memory_allocated() == before


def test_imported_tensor_keeps_the_array_alive():
    array = np.ones(3)
    reference = weakref.ref(array)
    shared = forebay.from_dlpack(array)
    del array
    gc.collect()
    assert shared.tolist() == [1, 1, 1]
    del shared
    gc.collect()
    assert reference() is None


def test_deleted_capsule_frees_its_memory():
    before = memory.memory_allocated()
    capsule = forebay.tensor([1, 2]).__dlpack__()
    assert memory.memory_allocated() > before
    del capsule
    gc.collect()
    assert memory.memory_allocated() == before


def test_dlpack_accepts_the_consumers_options():
    made = forebay.tensor([1, 2])
    assert made.__dlpack_device__() == (1, 0)
    for options in ({"stream": None}, {"stream": -1}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}, {"copy": True}):
        assert "dltensor" in repr(made.__dlpack__(**options))
    assert np.from_dlpack(made, copy=True).__array_interface__["data"][0] != made.data_ptr()


def test_dlpack_copies_to_no_emulated_or_unsupported_device():
    made = forebay.tensor([1, 2])
    with forebay.emulate("cuda"):
        with pytest.raises(BufferError, match="cuda:0 is emulated"):
            made.__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError, match="Unsupported device_type: 10"):
            made.__dlpack__(dl_device=(10, 0))


def test_export_waits_for_the_stream():
    with forebay.Stream():
        made = forebay.empty(1 << 22, dtype=np.uint8)
        for byte in range(10):
            made.fill_(byte)
        assert np.from_dlpack(made)[-1] == 9


def test_unsupported_dtypes_and_objects_are_rejected():
    for dtype in ("S3", [("x", "f4")]):
        with pytest.raises(BufferError):
            forebay.zeros(2, dtype=dtype).__dlpack__()
    for other in (7, [1], "x", dt.datetime_CAPI):
        with pytest.raises(RuntimeError, match="received an invalid capsule"):
            forebay.from_dlpack(other)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_bfloat16_is_shared_although_numpy_does_not_exchange_it(version):
    class Other:  # an array of another library
        def __init__(self, made):
            self.__dlpack__ = made.__dlpack__

    made = forebay.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=forebay.bfloat16)
    for exported in (made, made[:, 1:], made[1], forebay.empty(0, 3, dtype=forebay.bfloat16)):
        back = forebay.from_dlpack(exported.__dlpack__(max_version=version))
        assert back.dtype is forebay.bfloat16
        assert (back.data_ptr(), back.stride()) == (exported.data_ptr(), exported.stride()) or not back.numel()
        assert back.tolist() == exported.tolist()
        assert forebay.from_dlpack(Other(exported)).tolist() == exported.tolist()
    copied = forebay.from_dlpack(made.__dlpack__(max_version=version, copy=True))
    assert copied.tolist() == made.tolist()
    assert copied.data_ptr() != made.data_ptr()
    address = made.data_ptr()
    shared = forebay.from_dlpack(Other(made))
    del made
    assert (shared.data_ptr(), shared[1, 2].item()) == (address, 6.0)


def test_bfloat16_that_is_read_only_warns():
    made = forebay.ones(2, dtype=forebay.bfloat16)
    capsule = forebay.runtime.tensors.dlpack_export.dlpack_capsule(made, None, (1, 0), None, None, read_only=True)
    with pytest.warns(UserWarning, match="the array is read-only"):
        assert forebay.from_dlpack(capsule).tolist() == [1.0, 1.0]


def test_capsule_is_taken_once():
    made = forebay.tensor([1, 2])
    capsule = made.__dlpack__()
    assert forebay.from_dlpack(capsule).data_ptr() == made.data_ptr()
    with pytest.raises(RuntimeError, match="consumed only once"):
        forebay.from_dlpack(capsule)


def test_tensor_of_an_emulated_device_is_shared_with_forebay_only():
    with forebay.emulate("cuda", count=2):
        made = forebay.full((4,), 3, device="cuda")
        shared = forebay.from_dlpack(made[1:])
        shared.fill_(5)
        assert made.tolist() == [3, 5, 5, 5]
        with pytest.raises(BufferError):
            np.from_dlpack(made)
        with pytest.raises(BufferError, match="can't convert cuda:0 device type tensor"):
            made.__dlpack__(stream=1)
        for theirs in (Produced(0x1000), Produced(0x1000).capsule):
            with pytest.raises(BufferError, match="cannot be used: cuda:0 is emulated"):
                forebay.from_dlpack(theirs)


def test_memory_without_a_device_is_rejected():
    with pytest.raises(BufferError, match="Unsupported device_type: 77"):
        forebay.from_dlpack(Produced(0x1000, device=(77, 0)))
    if not forebay.device_count("cuda"):
        with pytest.raises(BufferError, match="the memory cannot be used"):
            forebay.from_dlpack(Produced(0x1000, device=(2, 0)))


def test_memory_of_the_host_is_imported_by_its_type():
    array = np.arange(4, dtype=np.float32)
    for number in (1, 3, 13):
        made = Produced(array.ctypes.data, device=(number, 0), version=(1, 0))
        for source in (made, Produced(array.ctypes.data, device=(number, 0), version=(1, 0)).capsule):
            assert forebay.from_dlpack(source).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"stream": 1}, AssertionError, "stream should be None on cpu"),
        ({"stream": 0}, AssertionError, "stream should be None on cpu"),
        ({"stream": "x"}, TypeError, "stream must be ``int`` or ``none``"),
        ({"stream": True}, TypeError, "stream must be ``int`` or ``none``"),
        ({"read_only": True}, BufferError, "requires the versioned DLPack protocol"),
    ],
)
def test_export_checks_its_options(options, error, text):
    with pytest.raises(error, match=text):
        forebay.tensor([1, 2]).__dlpack__(**options)


def test_read_only_export_has_the_flag():
    fields, delete = consume(forebay.tensor([1, 2]).__dlpack__(read_only=True, max_version=(1, 0)))
    assert fields["version"][2] & 1
    delete()


def test_read_only_array_warns():
    frozen = np.arange(3)
    frozen.flags.writeable = False
    with pytest.warns(UserWarning, match="read-only"):
        assert forebay.from_dlpack(frozen).tolist() == [0, 1, 2]


class Exporter:
    """An array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", [np.asarray, Exporter])
def test_arrays_that_only_numpy_2_1_says_are_read_only_do_not_warn(monkeypatch, kind):
    array, import_array = np.arange(3), np.from_dlpack

    def from_dlpack(source):
        found = import_array(source)
        found.flags.writeable = False
        return found

    monkeypatch.setattr(np, "from_dlpack", from_dlpack)
    monkeypatch.setattr("forebay.runtime.tensors.dlpack._SHOWS_READ_ONLY", False)
    forebay.from_dlpack(kind(array)).fill_(7)
    forebay.synchronize()
    assert array.tolist() == [7, 7, 7]


def test_read_only_array_of_another_library_warns_if_numpy_shows_it():
    frozen = np.arange(3)
    frozen.flags.writeable = False
    shown = np.from_dlpack(np.arange(3)).flags.writeable  # not by NumPy 2.1
    with pytest.warns(UserWarning, match="read-only") if shown else contextlib.nullcontext():
        assert forebay.from_dlpack(Exporter(frozen)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("asked", [(1, 0), (1, 1), (1, 3), (2, 0)])
def test_consumers_of_later_minor_versions_get_a_capsule_with_a_version(asked):
    tensor = forebay.ones(3)
    capsule = tensor.__dlpack__(max_version=asked, read_only=True)
    name, pointer = _pointer(capsule)
    assert (name, ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint32))[0]) == (b"dltensor_versioned", 1)


def test_capsule_of_version_1_1_is_imported_with_its_flags():
    tensor = forebay.ones(3)
    capsule = tensor.__dlpack__(max_version=(1, 1))
    _, pointer = _pointer(capsule)
    version = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint32))
    version[1] = 1
    imported = forebay.from_dlpack(_Exported(capsule))
    assert imported.tolist() == [1.0, 1.0, 1.0]
    assert imported.data_ptr() == tensor.data_ptr()


def test_numpy_obeys_the_flag_of_read_only_memory():
    tensor = forebay.ones(3)
    writable = np.from_dlpack(tensor)
    read_only = np.from_dlpack(_Exported(tensor.__dlpack__(max_version=(1, 1), read_only=True)))
    assert (writable.flags.writeable, read_only.flags.writeable) == (True, False)
    assert tensor.fill_(2).tolist() == [2.0, 2.0, 2.0]  # which waits for the queue
    assert writable.tolist() == read_only.tolist() == [2.0, 2.0, 2.0]


class _Exported:
    """A producer of one capsule in the memory of the host."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **options):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0


def _pointer(capsule):
    """Return the name and the address of a capsule."""
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = get_name(capsule)
    return name, get_pointer(capsule, name)
