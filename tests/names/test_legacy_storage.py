"""Legacy storages and tensor types, beyond the comparison with PyTorch in tests/names/scenes/storages.py."""

from __future__ import annotations

import re

import numpy as np
import pytest

import forebay
from forebay import ForebayError, cuda
from forebay.names import tensor_types
from forebay.runtime.tensors import typed_storage

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(autouse=True)
def without_deprecation_warnings(monkeypatch):
    monkeypatch.setattr(typed_storage, "_warned", True)
    monkeypatch.setattr(tensor_types, "_warned", {"cuda"})


def test_constructors_raise_without_a_device():
    for make in (cuda.FloatStorage, cuda.FloatTensor, cuda._CudaBase):
        with pytest.raises(ForebayError, match="Found no NVIDIA driver"):
            make()


def test_conversions_copy_and_convert(emulated):
    storage = cuda.FloatStorage([0, 1.5, -2])
    assert storage.int().tolist() == [0, 1, -2]
    assert storage.bool().tolist() == [False, True, True]
    assert storage.complex_float()[1] == 1.5
    assert storage.type("forebay.cuda.LongStorage").tolist() == storage.type(cuda.LongStorage).tolist() == [0, 1, -2]
    with pytest.raises(ForebayError, match="'nonsense' is not a storage type of cuda"):
        storage.type("nonsense")


def test_bfloat16_storage(emulated):
    pytest.importorskip("ml_dtypes", reason="the extra for bfloat16")
    assert cuda.FloatStorage([1.5]).bfloat16().tolist() == [1.5]
    assert cuda.BFloat16Storage(3).nbytes() == 6


def test_elements_can_be_set(emulated):
    storage = cuda.IntStorage(4).fill_(7)
    storage[1] = 5
    storage[2:] = 0
    assert (storage.tolist(), storage[-3], list(storage)) == ([7, 5, 0, 0], 5, [7, 5, 0, 0])


def test_repr_shows_the_elements(emulated):
    text = repr(cuda.IntStorage([1, 2]))
    assert text == " 1\n 2\n[forebay.cuda.IntStorage(dtype=forebay.int32, device=cuda:0) of size 2]"


def test_copies_on_other_kinds_are_general_storages(emulated):
    storage = cuda.IntStorage([1, 2])
    assert storage.cpu().tolist() == [1, 2]
    assert (storage.cpu().device, storage.cpu().type()) == (forebay.device("cpu"), "forebay.IntStorage")
    assert storage.to(device="cuda:0") is storage.cuda() is storage
    assert isinstance(storage.to(device="cuda:1"), cuda.IntStorage)
    with pytest.raises(forebay.Unsupported, match="no devices of kind 'hpu'"):
        storage.hpu()


def test_wrap_storage_rejects_another_kind(emulated):
    on_cpu = forebay.zeros(3, device="cpu").untyped_storage()
    with pytest.raises(ForebayError, match="Device of 'wrap_storage' must be cuda, but got cpu"):
        cuda.FloatStorage(wrap_storage=on_cpu)


@pytest.mark.parametrize(
    ("size", "error"), [("x", TypeError), (b"x", TypeError), (-1, forebay.OutOfMemory), (1 << 62, ValueError)]
)
def test_invalid_sizes_are_rejected(emulated, size, error):
    with pytest.raises(error):
        cuda.FloatStorage(size)


def test_from_file_is_not_available():
    with pytest.raises(ForebayError, match="from_file: Not available for CUDA storage"):
        cuda.FloatStorage.from_file("x", False, 3)


def test_other_constructors_of_device_storages_are_not_available(emulated):
    for name in ("from_buffer", "_new_with_weak_ptr"):
        with pytest.raises(ForebayError, match=f"^{name}: Not available for CUDA storage$"):
            getattr(cuda.FloatStorage, name)(b"1234")
    with pytest.raises(ForebayError, match=r"^_new_shared_filename: Not available for CUDA storage$"):
        cuda.FloatStorage._new_shared_filename("manager", "object", 4)


def test_wrapped_storage_shares_its_memory(emulated):
    owner = forebay.zeros(4, device="cuda").untyped_storage()
    storage = cuda.IntStorage(wrap_storage=owner)
    assert (storage.data_ptr(), storage.type()) == (owner.data_ptr(), "forebay.cuda.IntStorage")
    storage[1] = 7
    assert owner.elements.tolist()[4:8] == [7, 0, 0, 0]
    assert storage.share_memory_() is storage


FORMS = """received an invalid combination of arguments. Expected one of:
 * no arguments
 * (int size)
 * (Sequence data)
 * (*, UntypedStorage wrap_storage)
"""


@pytest.mark.parametrize(
    ("arguments", "named", "error", "reason"),
    [
        ((1, 2), {}, ForebayError, "Too many positional arguments"),
        ((object(),), {}, TypeError, "Argument type not recognized: <class 'object'>"),
        ((), {"dtype": "float32"}, ForebayError, "Keyword argument 'dtype' cannot be specified"),
        ((), {"device": "cuda"}, ForebayError, "Keyword argument 'device' cannot be specified"),
        ((), {"wrap_storage": 5}, TypeError, "Argument 'wrap_storage' must be UntypedStorage, but got <class 'int'>"),
        ((3,), {"wrap_storage": 5}, ForebayError, "No positional arguments should be given when using 'wrap_storage'"),
    ],
)
def test_invalid_arguments_are_explained(emulated, arguments, named, error, reason):
    with pytest.raises(error) as caught:
        cuda.FloatStorage(*arguments, **named)
    assert str(caught.value) == f"<class 'forebay.cuda.FloatStorage'>.__new__ {FORMS}{reason}"


def test_instances_have_the_kind_and_the_element_type_of_their_class(emulated):
    storage = cuda.FloatStorage(2)
    of_tensor = forebay.zeros(2, device="cuda").storage()
    for each in (storage, of_tensor):
        assert isinstance(each, cuda.FloatStorage)
        assert not isinstance(each, cuda.IntStorage)
        assert not isinstance(each, forebay.FloatStorage)
    assert isinstance(of_tensor, typed_storage.TypedStorage)
    assert not isinstance(3, cuda.FloatStorage)


def test_element_type_of_a_class_warns_once(monkeypatch):
    monkeypatch.setattr(typed_storage, "_warned", False)
    assert cuda.FloatStorage._dtype is forebay.float32
    with pytest.warns(UserWarning, match="TypedStorage is deprecated"):
        assert cuda.FloatStorage.dtype is forebay.float32
    assert cuda.FloatStorage.dtype is forebay.float32


def test_cuda_base_is_a_mixin(emulated):
    class Other:
        def type(self, name):
            return name

    class Mixed(cuda._CudaBase, Other):
        pass

    assert Mixed().type("x") == "x"
    assert cuda.is_initialized()


def test_tensor_types_construct_tensors(emulated):
    tensor = forebay.zeros(3, device="cuda")
    assert cuda.FloatTensor(tensor).data_ptr() == tensor.data_ptr()
    assert cuda.FloatTensor(np.ones((2, 2))).tolist() == [[1, 1], [1, 1]]
    assert cuda.FloatTensor(2, device=1).device == forebay.device("cuda:1")
    with pytest.raises(TypeError, match=re.escape("expected TensorOptions(dtype=float, device=cuda")):
        cuda.FloatTensor(forebay.zeros(3, device="cpu"))
