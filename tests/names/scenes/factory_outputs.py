"""Factories that write to an existing tensor (`out=`): its shape, its type, and what does not match."""

from __future__ import annotations

from support.on_oracle import outcome


def factories(torch_like):
    return {
        "empty": torch_like.empty,
        "zeros": torch_like.zeros,
        "ones": torch_like.ones,
        "full": lambda *size, **more: torch_like.full(size, 7, **more),
        "randperm": lambda *size, **more: torch_like.randperm(size[0] if size else 0, **more),
    }


def described(found, out):
    return found is out, list(found.shape), list(found.stride()), str(found.dtype).split(".")[-1], str(found.device)


def outputs_get_the_shape(cuda, torch_like):
    rows = {}
    for name, factory in factories(torch_like).items():
        for shape in ((4,), (2,), (2, 2), (0,), (6,)):
            out = torch_like.empty(shape, dtype=torch_like.int32)
            rows[f"{name} {shape}"] = described(factory(4, out=out), out)
    return rows


def outputs_keep_their_memory_if_it_suffices(cuda, torch_like):
    out = torch_like.empty(8)
    address = out.data_ptr()
    torch_like.zeros(2, 3, out=out)
    return out.data_ptr() == address, out.untyped_storage().nbytes(), out.tolist()


def outputs_with_strides(cuda, torch_like):
    whole = torch_like.ones(6)
    same, other = whole[::2], whole[1::2]
    results = torch_like.zeros(3, out=same), torch_like.zeros(2, out=other)
    return described(results[0], same), described(results[1], other), whole.tolist()


def permutations_have_the_type_of_the_output(cuda, torch_like):
    rows = []
    for dtype in (torch_like.uint8, torch_like.int16, torch_like.int64, torch_like.float32, torch_like.float64):
        out = torch_like.empty(0, dtype=dtype)
        rows.append((described(torch_like.randperm(5, out=out), out), sorted(out.tolist())))
    return rows


def ranges(cuda, torch_like):
    def tried(*arguments, shape=(0,), dtype=torch_like.int64, **more):
        out = torch_like.empty(shape, dtype=dtype)

        def call():
            found = torch_like.arange(*arguments, out=out, **more)
            return found is out, list(found.shape), str(found.dtype).split(".")[-1], found.tolist()

        return outcome(cuda, call)

    return [
        tried(3),
        tried(3, dtype=torch_like.float32),
        tried(3, dtype=torch_like.int32),
        tried(1.5, 4, 0.5, dtype=torch_like.float64),
        tried(6, shape=(2, 3)),
        tried(0, shape=(0, 2)),
        tried(3, shape=(5,)),
        tried(5, shape=(2, 2)),
        tried(3, dtype=torch_like.int32)["value"],
    ]


def random_outputs(cuda, torch_like):
    floats, ints = torch_like.empty(2), torch_like.empty(0, dtype=torch_like.int32)
    return {
        "rand": described(torch_like.rand(3, out=floats), floats),
        "randn": described(torch_like.randn(2, 2, out=floats), floats),
        "randint": described(torch_like.randint(5, (4,), out=ints), ints),
        "bernoulli": described(torch_like.bernoulli(torch_like.ones(5), out=floats), floats),
        "bernoulli of integers": described(torch_like.bernoulli(torch_like.ones(3), out=ints), ints),
        "values": (floats.tolist(), ints.tolist()),
        "types": [
            outcome(cuda, lambda: torch_like.rand(3, out=ints)),
            outcome(cuda, lambda: torch_like.randint(5, (4,), out=ints, dtype=torch_like.int64)),
        ],
    }


def other_options_with_outputs(cuda, torch_like):
    out = torch_like.empty(2)
    return [
        outcome(cuda, lambda: torch_like.empty(1, 2, 2, 2, out=out, memory_format=torch_like.channels_last)),
        outcome(cuda, lambda: torch_like.empty(2, out=out, pin_memory="x"))["error"],
        outcome(cuda, lambda: torch_like.zeros(2, out=out, pin_memory="x"))["error"],
    ]


def outputs_that_do_not_match(cuda, torch_like):
    def tried(factory, *arguments, **more):
        return outcome(cuda, lambda: factory(*arguments, **more) is more["out"])

    rows = {}
    for name, factory in factories(torch_like).items():
        ints = torch_like.empty(4, dtype=torch_like.int32)
        rows[name] = [
            tried(factory, 4, out=ints, dtype=torch_like.int32),
            tried(factory, 4, out=ints, dtype=torch_like.int64),
            tried(factory, 4, out=ints, dtype=torch_like.float32),
            tried(factory, 4, out=ints, device="cpu"),
            tried(factory, 4, out=ints, device="cuda"),
            tried(factory, 4, out=ints, device="cuda:1", dtype=torch_like.int32),
            tried(factory, 4, out=ints, pin_memory=True),
            tried(factory, 4, out="a")["error"],
        ]
    for name in ("empty", "randperm"):
        rows[f"negative {name}"] = tried(factories(torch_like)[name], -1, out=torch_like.empty(1))
    rows["range"] = tried(torch_like.randperm, 300, out=torch_like.empty(0, dtype=torch_like.uint8))
    return rows
