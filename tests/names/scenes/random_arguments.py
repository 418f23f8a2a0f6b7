"""Generators and their functions: wrong arguments, devices, the first use, and fork_rng."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True

DIFFERS = {
    "not_devices": "the error names the expected type",
    "not_devices_before_the_first_use": "the error names the expected type",
    "not_devices_of_forks": "the error names the expected type",
    "names_of_what_is_not_a_device": "the error names the expected type",
    "wide_indices": "an index above 127 keeps its value",
    "forks_of_the_host": "the CPU has a generator of its own as every device",
}

NOT_DEVICES = (None, 1.5, [0], b"cuda")
WRONG = ("", "cuda:", "xpu:x", "cuda:-1", "abc", -1, -2, 9, 127, True)
OTHER_KINDS = ("cpu", "mps", "cuda:1", "cuda")


def positions(states):
    """Return the seed and offset of each state."""
    return [[int.from_bytes(bytes(state.tolist())[at : at + 8], "little") for at in (0, 8)] for state in states]


def uses(cuda, torch_like, devices):
    state = torch_like.zeros(16, dtype=torch_like.uint8)
    return [
        (
            str(device),
            outcome(cuda, cuda.set_rng_state, state, device),
            outcome(cuda, cuda._set_rng_state_offset, 8, device),
            cuda.is_initialized() and outcome(cuda, cuda.get_rng_state, device),
            cuda.is_initialized() and outcome(cuda, cuda._get_rng_state_offset, device),
        )
        for device in devices
    ]


def devices_of_states(cuda, torch_like):
    cuda.init()
    return uses(cuda, torch_like, (*WRONG, *OTHER_KINDS))


def devices_before_the_first_use(cuda, torch_like):
    return uses(cuda, torch_like, ("", "cuda:", "abc", -1, "cpu", "mps", "cuda:1", 1))


def not_devices(cuda, torch_like):
    cuda.init()
    return uses(cuda, torch_like, NOT_DEVICES)


def not_devices_before_the_first_use(cuda, torch_like):
    return uses(cuda, torch_like, NOT_DEVICES)


def wide_indices(cuda, torch_like):
    cuda.init()
    return uses(cuda, torch_like, (1 << 40,)), str(cuda._get_device(200))


def names(cuda, devices):
    return [(str(device), outcome(cuda, lambda device=device: str(cuda._get_device(device)))) for device in devices]


def names_of_devices(cuda, torch_like):
    return names(cuda, (*WRONG, *OTHER_KINDS))


def names_of_what_is_not_a_device(cuda, torch_like):
    return names(cuda, NOT_DEVICES)


def wrong_states(cuda, torch_like):
    cuda.init()
    device = torch_like.uint8
    wrong = (
        None,
        "x",
        b"0" * 16,
        3,
        torch_like.zeros(16, dtype=torch_like.int8),
        torch_like.zeros(4, 4, dtype=device),
        torch_like.zeros(32, dtype=device)[::2],
        torch_like.zeros(0, dtype=device),
    )
    generator = torch_like.Generator("cuda")
    return [
        (
            outcome(cuda, cuda.set_rng_state, each),
            outcome(cuda, lambda each=each: str(generator.set_state(each).device)),
        )
        for each in wrong
    ]


def lists_of_states(cuda, torch_like):
    cuda.init()
    cuda.manual_seed_all(3)
    states = cuda.get_rng_state_all()
    return (
        type(states).__name__,
        [type(state).__name__ for state in states],
        [[str(state.device), state.dtype == torch_like.uint8, list(state.shape)] for state in states],
        [outcome(cuda, cuda.set_rng_state_all, each) for each in (3, [], states[:1], (states[0], 1), None)],
    )


def seeds(cuda, torch_like):
    wrong = (1.5, True, None, "3", "x", [3], 1 << 64, -(1 << 63), -(1 << 63) - 1)
    return [
        (str(seed), outcome(cuda, cuda.manual_seed, seed), outcome(cuda, cuda.manual_seed_all, seed)) for seed in wrong
    ], cuda.is_initialized()


def seeds_of_generators(cuda, torch_like):
    def seeded(seed):
        return torch_like.Generator("cuda").manual_seed(seed).initial_seed()

    def moved(offset):
        return torch_like.Generator("cuda").set_offset(offset).get_offset()

    return (
        [outcome(cuda, seeded, seed) for seed in (3, -3, 1.5, True, None, "3", 1 << 64, -(1 << 63), -(1 << 63) - 1)],
        [outcome(cuda, moved, offset) for offset in (8, -4, 3, 1.5, True, None, "3", 1 << 64)],
    )


def devices_of_generators(cuda, torch_like):
    cuda.init()

    def made(*device):
        return str(torch_like.Generator(*device).device)

    return (
        outcome(cuda, made),
        [(str(device), outcome(cuda, made, device)) for device in ("cuda", "cuda:1", "cpu", None, 1)],
        [(str(device), outcome(cuda, made, device)["error"]) for device in ("", "cuda:", "abc", 1.5, [0])],
        outcome(cuda, setattr, torch_like.Generator("cuda"), "device", "cpu")["error"],
    )


def default_generators(cuda, torch_like):
    before = cuda.default_generators
    seen = []
    cuda._lazy_call(lambda: seen.append((len(cuda.default_generators), cuda.is_initialized())))
    first = cuda.is_initialized(), len(seen)
    cuda.init()
    after = cuda.default_generators
    return (
        list(before),
        first,
        seen,
        type(after).__name__,
        [str(each.device) for each in after],
        after is cuda.default_generators,
    )


def forked(cuda, torch_like, devices, **options):
    """Return the states inside and after a fork that seeds all generators."""
    cuda.manual_seed_all(3)
    cuda._set_rng_state_offset(8)

    def run():
        with torch_like.random.fork_rng(devices, **options):
            cuda.manual_seed_all(5)

    result = outcome(cuda, run)
    return result, positions(cuda.get_rng_state_all())


def forks(cuda, torch_like):
    cuda.init()
    return [
        forked(cuda, torch_like, devices)
        for devices in ([], [0], [1], (0, 1), range(2), ["cuda:1"], [torch_like.device("cuda")], ["cpu"], {1})
    ]


def forks_of_all_devices(cuda, torch_like):
    first, again = (forked(cuda, torch_like, None) for _ in range(2))
    return first, again, cuda.is_initialized()


def forks_of_wrong_devices(cuda, torch_like):
    cuda.init()
    return [forked(cuda, torch_like, devices)[0] for devices in (3, [9], [-1], ["abc"], [""], "cuda", ["cuda:9"])]


def not_devices_of_forks(cuda, torch_like):
    cuda.init()
    return [forked(cuda, torch_like, [device])[0] for device in NOT_DEVICES], forked(
        cuda, torch_like, [0], device_type=["cuda"]
    )


def forks_of_the_host(cuda, torch_like):
    cuda.init()
    return forked(cuda, torch_like, [0], device_type="cpu")


def options_of_forks(cuda, torch_like):
    cuda.init()
    results = [
        forked(cuda, torch_like, [0], **options)
        for options in (
            {"enabled": False},
            {"enabled": 0},
            {"device_type": "cuda"},
            {"device_type": torch_like.device("cuda:1")},
            {"device_type": ""},
            {"device_type": None},
        )
    ]
    return results, [forked(cuda, torch_like, [0], device_type=kind)[0] for kind in ("abc", 3, "cuda:x", 1.5)]


def forks_with_exceptions(cuda, torch_like):
    cuda.init()
    cuda.manual_seed_all(3)
    cuda._set_rng_state_offset(12)

    def fail():
        with torch_like.random.fork_rng([0, 1]):
            cuda.manual_seed_all(4)
            raise KeyError("inside")

    return outcome(cuda, fail), positions(cuda.get_rng_state_all())


def first_use_by_a_fork(cuda, torch_like):
    with torch_like.random.fork_rng([]):
        none = cuda.is_initialized()
    with torch_like.random.fork_rng([], enabled=False):
        disabled = cuda.is_initialized()
    with torch_like.random.fork_rng([1]):
        return none, disabled, cuda.is_initialized()


def first_uses(cuda, torch_like):
    seen = []
    for call in (
        lambda: cuda.manual_seed(3),
        lambda: cuda.manual_seed_all(3),
        cuda.seed,
        cuda.seed_all,
        lambda: torch_like.Generator("cuda"),
        lambda: torch_like.manual_seed(3),
        cuda.initial_seed,
    ):
        call()
        seen.append(cuda.is_initialized())
    return seen
