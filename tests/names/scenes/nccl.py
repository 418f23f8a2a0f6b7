"""torch.cuda.nccl: errors of collective operations. The stand-in cannot run any."""

from __future__ import annotations

import warnings
from importlib import import_module

from support.on_oracle import outcome


def tensor_factory(torch_like):
    def make(*size, device="cuda:0", dtype="float32"):
        return torch_like.empty(*size, device=device, dtype=getattr(torch_like, dtype))

    return make


def nccl_of(cuda):
    return import_module(f"{cuda.__name__}.nccl")


def invalid_inputs(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    four = make(4)
    inputs = {
        "none": [],
        "not contiguous": [make(4, 4)[:, 1]],
        "a device twice": [four, four],
        "a tensor": four,
        "nothing": None,
        "a text": "ab",
        "ints": [5, 6],
        "a generator": (each for each in [four]),
        "other dtypes": [four, make(4, device="cuda:1", dtype="float64")],
        "other sizes": [four, make(6, device="cuda:1")],
    }
    calls = nccl.all_reduce, nccl.broadcast, lambda each: nccl.all_gather(each, each)
    return {name: [outcome(cuda, call, each) for call in calls] for name, each in inputs.items()}


def invalid_inputs_of_reduce(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    return [outcome(cuda, nccl.reduce, each) for each in ([], [make(4), make(4)], make(4), [5], [make(4)[::2]])]


def host_memory(cuda, torch_like):
    host = torch_like.tensor([1.0], device="cpu")
    return [outcome(cuda, nccl_of(cuda).all_reduce, [host]), nccl_of(cuda).is_available([host])]


def availability(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    four = make(4)
    inputs = [], [four], (four,), [four, four], [make(4, 4)[:, 1]], [four, make(9, device="cuda:1", dtype="int16")]
    return [outcome(cuda, nccl.is_available, each) for each in inputs] + [
        outcome(cuda, nccl.is_available, None)["error"]
    ]


def invalid_outputs(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    four, six, there, wide = make(4), make(6), make(4, device="cuda:1"), make(4, dtype="float64")
    return [
        outcome(cuda, nccl.all_reduce, [four], [four, there]),
        outcome(cuda, nccl.all_reduce, [four], [six]),
        outcome(cuda, nccl.all_reduce, [four], [wide]),
        outcome(cuda, nccl.all_reduce, [four], [there]),
        outcome(cuda, nccl.all_gather, [four], [six]),
        outcome(cuda, nccl.all_gather, [four], four),
        outcome(cuda, nccl.reduce_scatter, [four], [six]),
        outcome(cuda, nccl.reduce_scatter, [four], []),
        outcome(cuda, nccl.reduce, [four], six),
        outcome(cuda, nccl.reduce, [four], there),
        outcome(cuda, nccl.reduce, [four], 5),
    ]


def invalid_roots(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    four = make(4)
    roots = [outcome(cuda, nccl.reduce, [four], four, root) for root in (-1, 1, 5)]
    return [*roots, outcome(cuda, nccl.reduce, [four], root=1), outcome(cuda, nccl.broadcast, [four], root=1)]


def deprecated_arguments_of_reduce(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    four = make(4)
    both = outcome(cuda, nccl.reduce, [four], output=four, outputs=[four])
    with warnings.catch_warnings(record=True):
        lists = [
            outcome(cuda, nccl.reduce, [make(6)], [four]),
            outcome(cuda, nccl.reduce, [make(6)], outputs=[four]),
        ]
    return [both, lists]


def unsupported_types(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    kinds = ("int16", "uint16", "uint32", "uint64", "complex64", "complex128")
    return [outcome(cuda, nccl.all_reduce, [make(4, dtype=kind)]) for kind in kinds]


def invalid_streams(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    return [outcome(cuda, nccl.all_reduce, [make(4)], streams=each) for each in ([], [None, None], [5])]


def invalid_communicators(cuda, torch_like):
    make, nccl = tensor_factory(torch_like), nccl_of(cuda)
    first = [outcome(cuda, nccl.all_reduce, [make(4)], comms=each) for each in ([], 5)]
    return [first, outcome(cuda, nccl.all_reduce, [make(4)], comms=[5])["error"]]


def version_and_unique_ids(cuda, torch_like):
    nccl = nccl_of(cuda)
    return [nccl.version(), len(nccl.unique_id()), nccl.unique_id() == nccl.unique_id(), nccl.SUM]
