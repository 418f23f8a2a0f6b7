"""Legacy storages and tensor types of CUDA devices. The stand-in copies but runs no kernels."""

from __future__ import annotations

import warnings

from support.on_oracle import outcome

FRESH_PROCESS = True  # deprecation warnings appear once per process
NAMES = ["Byte", "Double", "Float", "Half", "Long", "Int", "Short", "Char", "Bool", "ComplexDouble", "ComplexFloat"]


def element_types(cuda, torch_like):
    return [str(getattr(cuda, f"{name}Storage")._dtype).split(".")[-1] for name in NAMES]


def dtype_of_a_class_warns_once(cuda, torch_like):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert cuda.FloatStorage.dtype is not None
    return [[warning.category.__name__, str(warning.message)] for warning in caught]


def storage_properties(cuda, torch_like):
    storage = cuda.FloatStorage(5)
    numbers = len(storage), storage.size(), storage.nbytes(), storage.element_size(), storage.get_device()
    flags = storage.is_cuda, storage.is_hpu, storage.is_sparse, storage.is_pinned(), storage.is_shared()
    kinds = isinstance(storage, cuda.FloatStorage), isinstance(storage, cuda.IntStorage)
    names = storage.type(), storage.pickle_storage_type(), str(storage.device), storage.filename, storage.resizable()
    return numbers, flags, kinds, names, cuda.memory_allocated()


def storage_of_a_sequence(cuda, torch_like):
    storage = cuda.IntStorage([1, 2, 3])
    return len(storage), list(storage), storage.tolist(), storage[0], storage[-1], len(cuda.FloatStorage())


def on_the_current_device(cuda, torch_like):
    with cuda.device(1):
        return str(cuda.FloatStorage(5).device)


def invalid_arguments(cuda, torch_like):
    make = cuda.FloatStorage
    wrong = [((1.5,), {}), ((1, 2), {}), ((1,), {"dtype": torch_like.float32}), ((1,), {"device": "cuda"})]
    found = [outcome(cuda, make, *arguments, **named) for arguments, named in [*wrong, ((), {"wrap_storage": 5})]]
    return [[row["error"], row["message"].partition("received")[2]] for row in found]


def storages_of_other_memory(cuda, torch_like):
    owner = cuda.ByteStorage(8)
    wrapped = cuda.FloatStorage(wrap_storage=owner.untyped())
    return (
        len(wrapped),
        wrapped.data_ptr() == owner.data_ptr(),
        outcome(cuda, lambda: cuda.FloatStorage(1, wrap_storage=owner.untyped()))["error"],
    )


def invalid_indices(cuda, torch_like):
    storage = cuda.FloatStorage([1, 2, 3])
    found = [outcome(cuda, storage.__getitem__, index) for index in (3, -4, slice(0, 2), "x")]
    found += [outcome(cuda, storage.__setitem__, index, 1.0) for index in ("x", None)]
    found += [outcome(cuda, storage.__setitem__, 0, storage)]
    return [[row["error"], row["message"].partition("<class")[0]] for row in found]


def conversions(cuda, torch_like):
    storage = cuda.FloatStorage(3)
    names = [
        "double",
        "float",
        "half",
        "long",
        "int",
        "short",
        "char",
        "byte",
        "bool",
        "complex_double",
        "complex_float",
    ]
    made = [getattr(storage, name)() for name in names]
    return [each.type() for each in made], [each.data_ptr() == storage.data_ptr() for each in made]


def copies(cuda, torch_like):
    storage, other = cuda.IntStorage([1, 2, 3]), cuda.IntStorage(3)
    copied = other.copy_(storage) is other, other.tolist()
    clone = storage.clone()
    there = storage.cuda(1)
    unequal = outcome(cuda, storage.copy_, cuda.IntStorage(2))
    return copied, clone.tolist(), clone.data_ptr() == storage.data_ptr(), str(there.device), there.tolist(), unequal


def resize(cuda, torch_like):
    storage = cuda.IntStorage([1, 2, 3])
    return storage.resize_(5), len(storage), storage.tolist()[:3], storage.resize_(1), storage.tolist()


def unsupported_on_cuda(cuda, torch_like):
    make = cuda.FloatStorage
    return [
        outcome(cuda, make.from_buffer, b"1234", "little"),
        outcome(cuda, make._new_with_weak_ptr, 1),
        outcome(cuda, make._new_shared_filename, 1, 2, 3),
        outcome(cuda, make(1).pin_memory)["error"],
    ]


def tensors(cuda, torch_like):
    made = [cuda.FloatTensor(2, 3), cuda.FloatTensor(), cuda.FloatTensor([1, 2]), cuda.FloatTensor((2, 3))]
    properties = [[list(each.shape), str(each.dtype).split(".")[-1], str(each.device)] for each in made]
    return properties, cuda.IntTensor([[1, 2], [3, 4]]).tolist(), str(cuda.FloatTensor(2, device="cuda:1").device)


def tensors_of_a_type(cuda, torch_like):
    tensor = torch_like.empty(3, dtype=torch_like.int32, device="cuda")
    types = cuda.IntTensor, cuda.LongTensor
    return [isinstance(tensor, each) for each in types], cuda.IntTensor.__name__, cuda.IntTensor.is_cuda


def tensors_of_invalid_arguments(cuda, torch_like):
    wrong = ("x", 1.5, None, -1)
    found = [outcome(cuda, cuda.FloatTensor, value) for value in wrong]
    mismatch = outcome(cuda, cuda.FloatTensor, torch_like.empty(3, dtype=torch_like.int32, device="cuda"))["error"]
    return (
        [[row["error"], row["message"]] for row in found],
        mismatch,
        outcome(cuda, cuda.FloatTensor, 2, device="cpu"),
    )


def cuda_base(cuda, torch_like):
    return cuda._CudaBase.is_cuda, cuda._CudaBase.is_sparse, type(cuda._CudaBase()).__name__, cuda.is_initialized()
