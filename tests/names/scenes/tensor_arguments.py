"""Arguments of tensor factories and views: sizes, data, element types, dimensions, shapes."""

from __future__ import annotations

import operator

import numpy as np
from support.on_oracle import outcome

FRESH_PROCESS = True

DIFFERS = {"arrays_of_other_types": "tensors can hold elements of every fixed-size type"}

DEVICES = ("cpu", "cuda")


class Odd:
    pass


class Index:
    def __index__(self):
        return 2


def described(tensor):
    return list(tensor.shape), str(tensor.dtype).rpartition(".")[2], str(tensor.device)


def sizes(cuda, torch_like):
    every = {
        "-1": (-1,), "2, -1": (2, -1), "(-1)": ((-1,),), "(2, -3)": ((2, -3),), "[]": ([],), "none": (), "()": ((),),
        "str": ("x",), "bytes": (b"x",), "float": (1.5,), "True": (True,), "None": (None,), "(float)": ((1.5,),),
        "(True)": ((True,),), "(str)": (("x",),), "2, str": (2, "x"), "2, True": (2, True), "True, 2": (True, 2),
        "[2, None]": ([2, None],), "2, [2]": (2, [2]), "[2], 2": ([2], 2), "[[2]]": ([[2]],), "int64": (np.int64(3),),
        "Size": (torch_like.Size([2, 3]),), "object": (Odd(),), "dict": ({},), "set": ({1},), "range": (range(2),),
        "index": (Index(),), "[index]": ([Index()],), "tensor": (torch_like.tensor(2),), "2**63": (1 << 63,),
        "2, 2**63": (2, 1 << 63), "2**62": (1 << 62,), "2**61": (1 << 61,), "2**40, 2**40": (1 << 40, 1 << 40),
        "0, 2**62, 4": (0, 1 << 62, 4),
    }  # fmt: skip

    def make(size, device):
        return described(torch_like.empty(*size, device=device))

    return {
        f"{name} on {device}": outcome(cuda, make, size, device) for name, size in every.items() for device in DEVICES
    }


def sizes_of_other_factories(cuda, torch_like):
    results = {}
    for name in ("zeros", "ones", "rand", "randn"):
        make = getattr(torch_like, name)
        for size in ((-1,), ("x",), (1.5,), (2, "x"), (1 << 62,), ((2.0,),)):
            results[f"{name}{size!r}"] = outcome(cuda, make, *size)
        results[f"{name}(size=)"] = outcome(cuda, lambda make=make: described(make(size=(2, 3))))
        results[f"{name}(size=2)"] = outcome(cuda, lambda make=make: described(make(size=2)))
    results["zeros()"] = outcome(cuda, torch_like.zeros)
    results["both"] = outcome(cuda, lambda: torch_like.empty(2, size=(2,)))
    return results


def full(cuda, torch_like):
    every = (("x", 1), ((-1,), 1), ((2,), "x"), ((2,), None), ((2,), [1]), ((2,), Odd()), (3, 1.0), (True, 1))
    kinds = (True, 3, 2.5, 1j, np.float32(2), torch_like.tensor(3), torch_like.tensor(2.5))
    return [outcome(cuda, torch_like.full, *arguments) for arguments in every], [
        described(torch_like.full((2,), kind)) for kind in kinds
    ]


def excessive_tensors(cuda, torch_like):
    lengths = ((1 << 60) + 1, 1 << 60, 1 << 61, (1 << 63) - 1)
    return [
        outcome(cuda, lambda n=n: torch_like.empty(n, dtype=torch_like.uint8, device="cuda").numel()) for n in lengths
    ]


def data(cuda, torch_like):
    every = {
        "str": "x", "bytes": b"x", "empty str": "", "[str]": ["a"], "[bytes]": [b"a"], "[[str]]": [["a"]],
        "None": None, "[None]": [None], "object": Odd(), "[object]": [Odd()], "dict": {}, "set": {1}, "class": int,
        "generator": (i for i in range(2)), "[1, [2]]": [1, [2]], "[1.0, [2]]": [1.0, [2]], "[[1], 2]": [[1], 2],
        "ragged": [[1, 2], [3]], "ragged, longer": [[1], [1, 2]], "ragged, deep": [[[1], [2]], [[3]]],
        "[[], [1]]": [[], [1]], "[[1], []]": [[1], []], "[1, str]": [1, "a"], "[str, 1]": ["a", 1],
        "[1, None]": [1, None], "[1.5, str]": [1.5, "x"], "[1j, str]": [1j, "a"], "[1, bytes]": [1, b"a"],
        "[1, class]": [1, object], "2**63": 1 << 63, "2**64": 1 << 64, "-2**63": -(1 << 63), "[2**63]": [1 << 63],
        "-2**63 - 1": -(1 << 63) - 1, "[1.5, 2**63]": [1.5, 1 << 63], "range": range(3), "bytearray": bytearray(b"ab"),
        "memoryview": memoryview(b"ab"), "bool": True, "mixed": [1, 2.5, True], "complex": [1, 2j], "[]": [],
        "float16": [np.float16(1)], "float64": np.float64(1.5), "uint16": np.array([1], "u2"),
        "tuple": ((1, 2), (3, 4)),
        "tensors": [torch_like.tensor(1), torch_like.tensor(2)], "array of objects": np.array([None]),
    }  # fmt: skip
    make = {"tensor": torch_like.tensor, "as_tensor": torch_like.as_tensor}
    return {
        f"{name} of {kind}": outcome(cuda, lambda f=function, value=value: described(f(value)))
        for name, function in make.items()
        for kind, value in every.items()
        if kind != "generator" or name == "tensor"
    }


def arrays_of_other_types(cuda, torch_like):
    arrays = (
        np.array(["a"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, [("a", "i4")]),
        np.array([1], np.longdouble),
    )
    return [outcome(cuda, lambda array=array: described(torch_like.tensor(array))) for array in arrays]


def numbers_that_overflow(cuda, torch_like):
    numbers = (-1, -128, -129, -255, -256, 127, 128, 255, 256, -32769, 65535, 1 << 63, 1e30, float("nan"), 1.9)
    others = ("a", None, 1j, True, [2])
    return {
        f"{name}, {number!r}": outcome(
            cuda,
            lambda name=name, number=number: str(torch_like.tensor([number], dtype=getattr(torch_like, name)).tolist()),
        )
        for name in ("uint8", "int8", "int16", "int64", "float32", "bool")
        for number in (*numbers, *others)
    }


def from_arrays(cuda, torch_like):
    wrong = (3, "x", [1], None, torch_like.empty(1), np.array([None]))
    return [outcome(cuda, torch_like.from_numpy, each) for each in wrong]


def element_types(cuda, torch_like):
    kinds = (torch_like.float16, float, int, bool, complex, None)
    return [described(torch_like.tensor([1], dtype=kind)) for kind in kinds], [
        outcome(cuda, lambda kind=kind: described(torch_like.empty(1, dtype=kind))).get("error")
        for kind in (5, [], 1.5)
    ]


def offsets_of_views(cuda, torch_like):
    row, table, nothing = torch_like.empty(6), torch_like.empty(4, 3), torch_like.empty(0, 4)
    views = {
        "2:": row[2:], "6:": row[6:], "9:": row[9:], "4:2": row[4:2], "rows 4:": table[4:], "rows 2:2": table[2:2],
        "columns 3:": table[:, 3:], "1:, 3:": table[1:, 3:], "1": table[1], "1, 2": table[1, 2],
        "1:1, 2:": table[1:1, 2:], "3:1": table[3:1], "-1:": table[-1:], "::2": table[::2], "empty": nothing[:, 2:],
        "view of a view": table[1:][3:], "transposed": table.transpose(0, 1)[2:],
    }  # fmt: skip
    return {name: (view.storage_offset(), list(view.shape)) for name, view in views.items()}


def shapes(cuda, torch_like):
    table, size = torch_like.empty(4, 3), torch_like.Size
    text = [repr(each).replace("torch", "forebay") for each in (table.size(), table.shape, size([]), table.shape[:1])]
    joined = operator.add(table.shape, (1,)), operator.add((1,), table.shape), table.shape * 2, 2 * table.shape
    kinds = [type(each).__name__ for each in joined]
    made = [outcome(cuda, lambda each=each: list(size(each))) for each in (
        "x", [1.5], [True], [-1], [None], 3, None, [torch_like.tensor(2)], table, [1 << 63], (i for i in (1, 2)),
    )]  # fmt: skip
    equal = table.size() == (4, 3), table.size() == [4, 3], hash(table.shape) == hash((4, 3)), table.shape.numel()
    return text, kinds, made, equal, outcome(cuda, operator.add, table.shape, (1.5,))


def dimensions(cuda, torch_like):
    table, scalar = torch_like.empty(4, 3), torch_like.empty(())
    wrong = (2, -3, "x", 1.5, True, [0])
    return (
        [outcome(cuda, getattr(table, name), dim) for name in ("size", "stride") for dim in (0, -1, *wrong)],
        [outcome(cuda, getattr(scalar, name), dim) for name in ("size", "stride") for dim in (0, -1, 1)],
    )


def views_of_other_shapes(cuda, torch_like):
    table, nothing = torch_like.empty(4, 3), torch_like.empty(0)
    shapes = ((5,), (-1, -1), (-2, 12), (0, -1), (5, -1), (2, -1), (-1,), (12,))
    turned = table.transpose(0, 1)
    views = [outcome(cuda, lambda s=shape: list(table.view(*s).shape)) for shape in shapes]
    views += [outcome(cuda, lambda s=shape: list(table.reshape(*s).shape)) for shape in shapes]
    views += [outcome(cuda, turned.view, 12), outcome(cuda, turned.reshape, 5), outcome(cuda, nothing.view, 0, -1)]
    sizes = ((5, 3), (2, 4, 3), (2, 4, 5), (-1, 3), (4, 3), (4, -1))
    return views, [outcome(cuda, lambda s=size: list(table.expand(*s).shape)) for size in sizes]


def conversions(cuda, torch_like):
    tensors = {"3": 3, "1.5": 1.5, "[1, 2]": [1, 2], "[]": [], "True": True, "[3]": [3]}
    return {
        f"{convert.__name__}({name})": outcome(cuda, convert, torch_like.tensor(value))
        for name, value in tensors.items()
        for convert in (int, float, bool, torch_like.Tensor.item, torch_like.Tensor.__index__, len, iter)
        if (convert, name) not in ((iter, "[1, 2]"), (iter, "[]"), (iter, "[3]"))
    }


def legacy_constructors(cuda, torch_like):
    size, results = torch_like.empty(4, 3).size(), {}
    cuda.FloatTensor()  # warns once
    for name in ("FloatTensor", "ByteTensor", "HalfTensor", "LongTensor"):
        make = getattr(cuda, name)
        for case in ((size,), (size[1:],), (2, 3), (), (-1,), ("x",), (1.5,), (None,)):
            results[f"{name}{case!r}".replace("torch", "forebay")] = outcome(
                cuda, lambda m=make, c=case: described(m(*c))
            )
    return results


def storages(cuda, torch_like):
    cuda.FloatStorage(1)  # warns once
    return [outcome(cuda, cuda.FloatStorage, size) for size in (-1, 1 << 62, 1 << 60, "x")]


def equal_tensors(cuda, torch_like):
    host, near, far = torch_like.ones(3), torch_like.empty(3, device="cuda"), torch_like.empty(3, device="cuda:1")
    others = [torch_like.ones(3, dtype=torch_like.int32), torch_like.ones(3, 1), torch_like.zeros(3), host[:2], host]
    nan, empty = torch_like.tensor([float("nan")]), torch_like.empty(0)
    return (
        [torch_like.equal(host, other) for other in others] + [host.equal(other) for other in others],
        [nan.equal(nan), nan.equal(nan.clone()), empty.equal(torch_like.empty(0)), empty.equal(torch_like.empty(0, 1))],
        [
            outcome(cuda, torch_like.equal, *pair)
            for pair in ((host, 3), (3, host), (near, host), (host, near), (near, far))
        ],
        [outcome(cuda, host.equal, other) for other in (3, None, near)],
        outcome(cuda, near.equal, near[:2]),
    )
