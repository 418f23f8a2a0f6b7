"""Conversions under PyTorch's older names: `Tensor.float`, `type`, `type_as`, `new`. No element is computed."""

from __future__ import annotations

import warnings

from support.on_oracle import outcome

FRESH_PROCESS = True  # deprecation warnings appear once per process
METHODS = ["double", "float", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool", "cfloat", "cdouble"]


def described(tensor):
    return str(tensor.dtype).split(".")[-1], str(tensor.device), list(tensor.shape)


def warn_once(cuda, module):
    """Use what warns at its first use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cuda.FloatTensor(1)
        module.empty(1).storage()


def conversions(cuda, torch_like):
    def rows(tensor):
        made = [getattr(tensor, name)() for name in METHODS]
        return [(*described(each), each is tensor) for each in made]

    return rows(torch_like.empty(3)), rows(torch_like.empty(2, device="cuda:1", dtype=torch_like.int64))


def memory_formats_of_conversions(cuda, torch_like):
    tensor = torch_like.empty(3, device="cuda")
    return (
        tensor.float(memory_format=torch_like.contiguous_format) is tensor,
        tensor.half(memory_format=torch_like.preserve_format).is_contiguous(),
        outcome(cuda, lambda: tensor.float(memory_format=3)),
        outcome(cuda, lambda: tensor.long(memory_format="contiguous_format")),
    )


def names_of_types(cuda, torch_like):
    names = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16"]
    names += ["complex64", "complex128"]
    return [
        torch_like.empty(1, dtype=getattr(torch_like, name), device=device).type()
        for name in names
        for device in ("cpu", "cuda:1")
    ]


def conversions_by_type(cuda, torch_like):
    library = torch_like.empty(1).type().partition(".")[0]
    host, near = torch_like.empty(3), torch_like.empty(3, device="cuda:1")
    types = [torch_like.half, torch_like.float32, torch_like.DoubleTensor, torch_like.FloatTensor]
    types += [cuda.FloatTensor, cuda.HalfTensor, None]
    types += [f"{library}.{name}" for name in ("ByteTensor", "FloatTensor", "cuda.FloatTensor", "cuda.LongTensor")]
    rows = []
    for tensor in (host, near):
        for each in types:
            made = tensor.type(each)
            rows.append(made if isinstance(made, str) else (*described(made), made is tensor))
    return rows, described(host.type(dtype=torch_like.int8, non_blocking=True))


def invalid_types(cuda, torch_like):
    wrong = ["foo", "float32", float, 3, 1.5, "", "cuda.FloatTensor", torch_like.empty(1)]
    tensor = torch_like.empty(3, device="cuda")
    library = tensor.type().partition(".")[0]
    wrong += [f"{library}.cuda.Foo", f"{library}.FooTensor", f"{library}.foo.FloatTensor", f"{library}.cuda.Tensor2"]
    return [outcome(cuda, tensor.type, each) for each in wrong]


def types_of_other_tensors(cuda, torch_like):
    host, near = torch_like.empty(3), torch_like.empty(3, device="cuda:1", dtype=torch_like.int16)
    return (
        [described(host.type_as(near)), described(near.type_as(host)), host.type_as(torch_like.empty(1)) is host],
        [outcome(cuda, host.type_as, each) for each in (3, torch_like.half, "x", None)],
    )


def new_tensors(cuda, torch_like):
    warn_once(cuda, torch_like)
    rows = []
    for tensor in (torch_like.empty(3), torch_like.empty(3, device="cuda:1", dtype=torch_like.float16)):
        made = [tensor.new(), tensor.new(2, 3), tensor.new([1, 2]), tensor.new((1, 2)), tensor.new([[1, 2], [3, 4]])]
        made += [
            tensor.new(torch_like.Size([2, 2])),
            tensor.new(0),
            tensor.new(()),
            tensor.new(range(3)),
            tensor.new([]),
        ]
        rows += [described(each) for each in made]
        for source in (tensor, tensor.untyped_storage(), tensor.storage()):
            shared = tensor.new(source)
            rows.append((described(shared), shared is tensor, shared.data_ptr() == tensor.data_ptr()))
    near = torch_like.empty(3, device="cuda:1")
    rows += [
        described(near.new(2, device="cuda:0")),
        described(near.new(device="cuda")),
        described(near.new([1], device=0)),
    ]
    return rows, torch_like.tensor([1, 2]).new([3.7, 4]).tolist(), described(torch_like.empty(2).new(near.cpu()[1:]))


def invalid_new_tensors(cuda, torch_like):
    warn_once(cuda, torch_like)
    host, near = torch_like.empty(3), torch_like.empty(3, device="cuda")
    number = torch_like.empty(2, dtype=torch_like.int32, device="cuda:1")
    wrong = ["a", b"a", 1.5, None, {1}, True, -1, host, host.untyped_storage(), host.storage()]
    return (
        [outcome(cuda, near.new, each) for each in (*wrong, number, number.storage())],
        [outcome(cuda, host.new, *each) for each in ((2, -1), (2, "a"), (near,))],
        [outcome(cuda, lambda each=each: near.new(each, device="cpu")) for each in (2, [1])],
        outcome(cuda, lambda: near.new(near, device="cuda:1")),
    )


def constructors_of_legacy_types(cuda, torch_like):
    host, near = torch_like.empty(3), torch_like.empty(3, device="cuda")
    warn_once(cuda, torch_like)
    shared = torch_like.FloatTensor(host), cuda.FloatTensor(near), torch_like.FloatTensor(host.untyped_storage())
    wrong = [outcome(cuda, torch_like.FloatTensor, each) for each in ("a", 1.5, torch_like.empty(2).int(), near)]
    return [each.data_ptr() in (host.data_ptr(), near.data_ptr()) for each in shared], shared[0] is host, wrong


def typed_storages_warn_once(cuda, torch_like):
    tensor = torch_like.empty(4, 3, device="cuda")
    return [outcome(cuda, lambda: tensor[1:].storage().size()) for _ in range(2)]
