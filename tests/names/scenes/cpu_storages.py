"""Legacy storages of CPU memory, such as torch.FloatStorage."""

from __future__ import annotations

import warnings

from support.on_oracle import outcome

FRESH_PROCESS = True  # deprecation warnings appear once per process
NAMES = ["Byte", "Double", "Float", "Half", "Long", "Int", "Short", "Char", "Bool", "ComplexDouble", "ComplexFloat"]


def first_storage_warns(cuda, torch_like):
    def make():
        return len(torch_like.FloatStorage(2))

    return outcome(cuda, make), outcome(cuda, make), cuda.is_initialized()


def element_types(cuda, torch_like):
    return [str(getattr(torch_like, f"{name}Storage")._dtype).split(".")[-1] for name in NAMES]


def storages_of_tensors_are_instances(cuda, torch_like):
    storage = torch_like.empty(5).storage()
    others = {
        "float": storage.float(),
        "int": storage.int(),
        "double on the GPU": storage.cuda().double(),
        "back on the CPU": storage.cuda().float().cpu(),
        "and as int": storage.cuda().float().cpu().int(),
    }
    places = {"CPU": torch_like, "CUDA": cuda}
    return {
        name: [
            f"{place} {element}"
            for place, module in places.items()
            for element in NAMES
            if isinstance(each, getattr(module, f"{element}Storage"))
        ]
        for name, each in others.items()
    }


def properties(cuda, torch_like):
    storage = torch_like.FloatStorage(5)
    numbers = len(storage), storage.size(), storage.nbytes(), storage.element_size()
    flags = storage.is_cuda, storage.is_hpu, storage.is_sparse, storage.is_pinned(), storage.is_shared()
    return numbers, flags, storage.type(), storage.pickle_storage_type(), str(storage.device), storage.resizable()


def elements(cuda, torch_like):
    storage = torch_like.IntStorage([1, 2, 3])
    found = [list(storage), storage.tolist(), storage[-1], len(torch_like.FloatStorage())]
    storage.fill_(7)
    return [*found, storage.tolist(), torch_like.IntTensor(storage).tolist()]


def shared_memory(cuda, torch_like):
    owner = torch_like.ByteStorage(8)
    wrapped = torch_like.FloatStorage(wrap_storage=owner.untyped())
    return len(wrapped), wrapped.data_ptr() == owner.data_ptr()


def invalid_arguments(cuda, torch_like):
    make = torch_like.FloatStorage
    wrong = [((1.5,), {}), ((1, 2), {}), ((1,), {"dtype": torch_like.float32}), ((1,), {"device": "cuda"})]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [outcome(cuda, make, *arguments, **named) for arguments, named in [*wrong, ((), {"wrap_storage": 5})]]
    on_gpu = outcome(cuda, lambda: make(wrap_storage=torch_like.UntypedStorage(4, device="cuda")))
    return [[row["error"], row["message"].partition("received")[2]] for row in [*found, on_gpu]]
