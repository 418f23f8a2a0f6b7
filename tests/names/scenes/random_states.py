"""Generators of CUDA devices: seeds, states, offsets, errors."""

from __future__ import annotations

from support.on_oracle import outcome


def seeding(cuda, torch_like):
    cuda.manual_seed(7)
    cuda.manual_seed_all(9)
    both = [state.tolist() for state in cuda.get_rng_state_all()]
    with cuda.device(1):
        cuda.manual_seed(11)
    return both, cuda.get_rng_state("cuda:1").tolist(), cuda.initial_seed()


def unusual_seeds(cuda, torch_like):
    return [
        (outcome(cuda, cuda.manual_seed, seed), cuda.initial_seed()) for seed in (1.9, -1, True, 1 << 63, (1 << 64) - 1)
    ]


def invalid_seeds(cuda, torch_like):
    return [outcome(cuda, cuda.manual_seed, seed) for seed in ("x", 1 << 64, -(1 << 63) - 1)]


def random_seed(cuda, torch_like):
    nothing = cuda.seed(), cuda.seed_all()
    states = [state.tolist() for state in cuda.get_rng_state_all()]
    return nothing, states[0] == states[1], len(states[0]), states[0][8:]


def states(cuda, torch_like):
    cuda.manual_seed(123)
    state = cuda.get_rng_state()
    cuda.manual_seed(5)
    cuda.set_rng_state(state)
    restored = cuda.get_rng_state().tolist()
    cuda.set_rng_state_all([state, state])
    return (
        restored,
        cuda.get_rng_state(1).tolist(),
        cuda.get_rng_state("cuda").tolist(),
        str(state.dtype).split(".")[-1],
    )


def invalid_states(cuda, torch_like):
    cuda.init()
    byte = torch_like.uint8
    short, wide = torch_like.zeros(15, dtype=byte), torch_like.zeros(16, dtype=torch_like.float32)
    state = torch_like.zeros(16, dtype=byte)
    wrong = [outcome(cuda, cuda.set_rng_state, each) for each in (short, wide, [1])]
    return wrong, outcome(cuda, cuda.set_rng_state, state, 9)["error"], outcome(cuda, cuda.get_rng_state, 9)["error"]


def more_states_than_devices(cuda, torch_like):
    cuda.init()
    cuda.manual_seed_all(3)
    four = [torch_like.tensor([7] + [0] * 15, dtype=torch_like.uint8)] * 4
    return outcome(cuda, cuda.set_rng_state_all, four)["error"], cuda.get_rng_state(1).tolist()[0]


def offsets(cuda, torch_like):
    cuda.manual_seed(1)
    cuda._set_rng_state_offset(40)
    state = cuda.get_rng_state().tolist()
    wrong = outcome(cuda, cuda._set_rng_state_offset, 5)
    return state, cuda._get_rng_state_offset(), cuda._get_rng_state_offset("cuda:1"), wrong


def draw_advances_the_offset(cuda, torch_like):
    cuda.manual_seed(1)
    torch_like.rand(1000, device="cuda")
    return cuda._get_rng_state_offset()


def generators(cuda, torch_like):
    cuda.init()
    cuda.manual_seed(21)
    known = cuda.default_generators
    return len(known), known[0].initial_seed(), cuda._get_generator(torch_like.device("cuda", 0)).initial_seed()


def names_of_devices(cuda, torch_like):
    return [str(cuda._get_device(device)) for device in (1, "cuda", "cuda:1", torch_like.device("cuda:0"))]
