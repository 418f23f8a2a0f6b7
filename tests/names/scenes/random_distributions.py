"""Random distributions: signatures, dtypes, errors, and the offset behind each call. Other tests compare numbers."""

from __future__ import annotations

from support.on_oracle import outcome

DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool", "complex64", "uint16")


def described(result):
    """Return the tensor as plain data."""
    return [str(result.dtype).split(".")[-1], list(result.shape), list(result.stride()), str(result.device)]


def called(cuda, torch_like, call, *arguments, **options):
    """Return the outcome of a call that returns a tensor, and the offset behind it."""
    cuda.manual_seed(1)
    result = outcome(cuda, lambda: described(call(*arguments, **options)))
    return [result, cuda.default_generators[0].get_offset()]


def zeros(torch_like, *shape, dtype="float32"):
    return torch_like.zeros(*shape, dtype=getattr(torch_like, dtype), device="cuda")


def dtypes(cuda, torch_like):
    cuda.init()
    results = {}
    for name, arguments in {"cauchy_": (), "log_normal_": (), "geometric_": (0.5,), "exponential_": ()}.items():
        for count in (10, 0):
            for dtype in DTYPES:
                fill = getattr(zeros(torch_like, count, dtype=dtype), name)
                results[f"{name} {count} {dtype}"] = called(cuda, torch_like, fill, *arguments)
    for count in (10, 0):
        for dtype in DTYPES:
            rates = zeros(torch_like, count, dtype=dtype)
            results[f"poisson {count} {dtype}"] = called(cuda, torch_like, torch_like.poisson, rates)
    return results


def parameters(cuda, torch_like):
    cuda.init()
    tensor, nan = zeros(torch_like, 10), float("nan")
    pairs = ((1,), (1, 2), (1, 0), (1, -1), (1, nan), ("x",), (None,), (1j,), (tensor,), (True,), (float("inf"), 1))
    numbers = ((0,), (1,), (-1,), (nan,), (0.25,), ("x",), (tensor,), (None,))
    return {
        "cauchy_": [called(cuda, torch_like, tensor.cauchy_, *each) for each in pairs],
        "log_normal_": [called(cuda, torch_like, tensor.log_normal_, *each) for each in pairs],
        "geometric_": [called(cuda, torch_like, tensor.geometric_, *each) for each in numbers],
        "exponential_": [called(cuda, torch_like, tensor.exponential_, *each) for each in numbers[1:]],
        "normal_": [called(cuda, torch_like, tensor.normal_, *each) for each in pairs],
        "named": [
            called(cuda, torch_like, tensor.cauchy_, median=1, sigma=2),
            called(cuda, torch_like, tensor.log_normal_, mean=1, std=2),
            called(cuda, torch_like, tensor.geometric_, p=0.25),
        ],
    }


def generators(cuda, torch_like):
    cuda.init()
    tensor, own, other = zeros(torch_like, 10), torch_like.Generator("cuda"), torch_like.Generator("cpu")
    calls = {
        "cauchy_": tensor.cauchy_,
        "log_normal_": tensor.log_normal_,
        "geometric_": lambda generator: tensor.geometric_(0.5, generator=generator),
        "exponential_": tensor.exponential_,
        "poisson": lambda generator: torch_like.poisson(tensor, generator),
        "normal": lambda generator: torch_like.normal(tensor, 1.0, generator=generator),
    }
    results = {
        name: [called(cuda, torch_like, call, generator=each) for each in (own, other, 3)]
        for name, call in calls.items()
    }
    return results, own.get_offset()


def offsets_of_large_tensors(cuda, torch_like):
    cuda.init()
    count = 1 << 20
    return [
        called(cuda, torch_like, zeros(torch_like, count).geometric_, 0.5),
        called(cuda, torch_like, zeros(torch_like, count, dtype="int64").geometric_, 0.5),
        called(cuda, torch_like, zeros(torch_like, count, dtype="float64").cauchy_),
        called(cuda, torch_like, zeros(torch_like, count, dtype="float64").log_normal_),
        called(cuda, torch_like, torch_like.poisson, zeros(torch_like, count)),
    ]


def poisson_of_tensors(cuda, torch_like):
    cuda.init()
    rates = zeros(torch_like, 4, 5)
    every = (rates.permute(1, 0), zeros(torch_like, 3, 1).expand(3, 4), zeros(torch_like, ()), rates[:, 1])
    results = [called(cuda, torch_like, torch_like.poisson, each) for each in every]
    return results, called(cuda, torch_like, torch_like.poisson, 3), called(cuda, torch_like, torch_like.poisson, None)


def normal_with_tensors(cuda, torch_like):
    cuda.init()

    def of(*shape, dtype="float32"):
        return zeros(torch_like, *shape, dtype=dtype)

    ten, half, wide, ints = of(10), of(10, dtype="float16"), of(10, dtype="float64"), of(10, dtype="int64")
    parts = of(10, dtype="complex64")
    given = (
        (ten,), (ten, 2), (ten, 2.5), (ten, -1), (ten, ten), (ten, of(5, 1)), (ten, of(3)), (1, ten),
        (1.5, wide), (ten, wide), (wide, ten), (ints, 1), (ints, ten), (1.0, ints), (ten, ints), (parts, 1),
        (1.0, parts), (half, ten), (of(4, 5).permute(1, 0), 1), (0, of(4, 5).permute(1, 0)),
        (of(3, 1).expand(3, 4), 1), (of(0), 1), (of(0), of(0)), (of(()), ten), (ten, of(())),
        (ten, True), (ten, torch_like.zeros(10)), (torch_like.zeros(10), ten), (ten, torch_like.zeros(())),
    )  # fmt: skip
    return [called(cuda, torch_like, torch_like.normal, *each) for each in given]


def normal_with_a_size(cuda, torch_like):
    cuda.init()
    on, normal = {"device": "cuda"}, torch_like.normal
    return [
        called(cuda, torch_like, normal, 0.0, 1.0, (2, 3), **on),
        called(cuda, torch_like, normal, 0, 1, [3], **on),
        called(cuda, torch_like, normal, mean=0, std=1, size=(2,), **on),
        called(cuda, torch_like, normal, 0.0, 1.0, (3,), dtype=torch_like.float16, **on),
        called(cuda, torch_like, normal, 0.0, 1.0, (3,), dtype=torch_like.int64, **on),
        called(cuda, torch_like, normal, 0.0, -1.0, (3,), **on),
        called(cuda, torch_like, normal, 0.0, 1.0, (3,)),
    ]


def invalid_arguments_of_normal(cuda, torch_like):
    cuda.init()
    three, on = zeros(torch_like, 3), {"device": "cuda"}
    return [
        called(cuda, torch_like, torch_like.normal, *arguments, **options)
        for arguments, options in (
            ((0.0, 1.0, 3), on),
            ((0.0,), on),
            ((0.0, 1.0), on),
            ((0, 1), {}),
            (("x", 1), {}),
            ((three, "x"), {}),
            ((None, 1), {}),
            ((three, 1, (3,)), {}),
            ((three, 1), on),
            ((three, 1), {"generator": 3}),
            ((three, 1), {"out": zeros(torch_like, 5)}),
        )
    ]


def in_a_capture(cuda, torch_like):
    """Each can be captured, and a replay advances the generator."""
    cuda.init()
    graph, tensor = cuda.CUDAGraph(), zeros(torch_like, 10)
    cuda.manual_seed(1)
    with cuda.stream(cuda.Stream()):
        graph.capture_begin()
        results = [
            outcome(cuda, lambda call=call: described(call()))
            for call in (
                tensor.cauchy_,
                tensor.log_normal_,
                lambda: tensor.geometric_(0.5),
                tensor.exponential_,
                lambda: torch_like.poisson(tensor),
                lambda: torch_like.normal(tensor, 2.0),
            )
        ]
        results.append(cuda.get_rng_state().tolist())
        graph.capture_end()
    graph.replay()
    return [*results, cuda.default_generators[0].get_offset()]
