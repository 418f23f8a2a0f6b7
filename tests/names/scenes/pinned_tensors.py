"""Pinned tensors: their spellings, wrong arguments, and what initialises CUDA."""

from __future__ import annotations

import warnings

from support.on_oracle import outcome

FRESH_PROCESS = True


def factories(torch_like):
    return {
        "empty": lambda **options: torch_like.empty(3, **options),
        "zeros": lambda **options: torch_like.zeros(3, **options),
        "ones": lambda **options: torch_like.ones(2, 3, **options),
        "full": lambda **options: torch_like.full((3,), 1.5, **options),
        "arange": lambda **options: torch_like.arange(3, **options),
        "tensor": lambda **options: torch_like.tensor([1, 2], **options),
        "rand": lambda **options: torch_like.rand(3, **options),
        "randn": lambda **options: torch_like.randn(3, **options),
        "randint": lambda **options: torch_like.randint(9, (3,), **options),
        "randperm": lambda **options: torch_like.randperm(3, **options),
        "empty_like": lambda **options: torch_like.empty_like(torch_like.ones(2), **options),
        "normal": lambda **options: torch_like.normal(0, 1, (3,), **options),
    }


def described(tensor):
    return [str(tensor.device), tensor.is_pinned(), list(tensor.shape), str(tensor.dtype).split(".")[-1]]


def factories_pin(cuda, torch_like):
    return {
        name: outcome(cuda, lambda make=make: described(make(pin_memory=True)))
        for name, make in factories(torch_like).items()
    }, cuda.is_initialized()


def factories_of_devices(cuda, torch_like):
    return [
        outcome(cuda, lambda device=device: described(torch_like.empty(3, device=device, pin_memory=True)))
        for device in ("cpu", "cuda", "cuda:1")
    ]


def factories_with_flags(cuda, torch_like):
    return {
        name: [
            outcome(cuda, lambda flag=flag, make=make: described(make(pin_memory=flag))) for flag in (None, True, False)
        ]
        for name, make in factories(torch_like).items()
    }


def with_wrong_flags(cuda, torch_like, *names):
    makers = factories(torch_like)
    flags = (1, 0, "x", 1.5, [True])
    return {name: [outcome(cuda, makers[name], pin_memory=flag) for flag in flags] for name in names}


def wrong_flags(cuda, torch_like):
    return with_wrong_flags(cuda, torch_like, "empty_like", "tensor", "zeros", "ones", "full")


def wrong_flags_of_several_signatures(cuda, torch_like):
    names = ("arange", "rand", "randn", "randint", "randperm", "empty", "normal")
    found = with_wrong_flags(cuda, torch_like, *names)  # PyTorch's texts list all signatures
    return {name: [each["error"] for each in results] for name, results in found.items()}


def pinning_tensors(cuda, torch_like):
    made = torch_like.ones(2, 3)
    pinned = made.pin_memory()
    return (
        described(made),
        described(pinned),
        pinned.tolist(),
        pinned.pin_memory() is pinned,
        described(pinned[1:]),
        pinned[1:].pin_memory().data_ptr() == pinned[1:].data_ptr(),
        described(pinned.clone()),
        described(torch_like.empty_like(pinned)),
        described(torch_like.empty(0).pin_memory()),
        cuda.is_initialized(),
    )


def devices(cuda, torch_like):
    made, pinned = torch_like.ones(3), torch_like.ones(3).pin_memory()
    return [
        (
            str(device),
            outcome(cuda, lambda device=device: made.pin_memory(device).is_pinned()),
            outcome(cuda, made.is_pinned, device),
            outcome(cuda, pinned.is_pinned, device),
        )
        for device in ("cuda", "cuda:1", torch_like.device("cuda:0"), "cpu", None, "abc", "")
    ]


def devices_that_do_not_exist(cuda, torch_like):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            (str(device), outcome(cuda, torch_like.ones(3).pin_memory, device)["error"])
            for device in ("mps", 1.5, [0], "cuda:x")
        ]


def tensors_of_devices(cuda, torch_like):
    there = torch_like.empty(3, device="cuda")
    half = torch_like.empty(3, device="cuda", dtype=torch_like.float16)
    return (
        there.is_pinned(),
        outcome(cuda, there.pin_memory),
        outcome(cuda, half.pin_memory),
        described(torch_like.empty(3, pin_memory=True).to("cuda", non_blocking=True)),
    )


def statistics(cuda, torch_like):
    made = torch_like.empty(1000, pin_memory=True)
    before = dict(cuda.host_memory_stats())  # empty until CUDA is initialised
    initialised = cuda.is_initialized()
    cuda.init()
    again = torch_like.empty(1000, pin_memory=True)
    numbers = [cuda.host_memory_stats()["num_host_alloc"]]
    del made, again
    third = torch_like.empty(1000, pin_memory=True)
    numbers.append(cuda.host_memory_stats()["num_host_alloc"])
    return before, initialised, numbers, third.is_pinned()


def registered_memory_is_pinned(cuda, torch_like):
    runtime, made = cuda.cudart(), torch_like.ones(20)

    def seen():
        storage = made.untyped_storage()
        return [made.is_pinned(), made[3:].is_pinned(), storage.is_pinned(), made.pin_memory() is made]

    before = made.is_pinned()
    registered = int(runtime.cudaHostRegister(made.data_ptr(), 80, 0)), seen()
    return before, registered, int(runtime.cudaHostUnregister(made.data_ptr())), seen()
