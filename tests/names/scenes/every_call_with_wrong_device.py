"""Every public name that takes a device, with a device that does not exist or is of another kind."""

from __future__ import annotations

from support.every_call import Names, lines, names_in, play

FRESH_PROCESS = True
DEVICES = (2, 99, -1, -2, "cpu", "mps", "cuda:2", "cuda:-1", "foo", "", "cuda", True)
DIFFERING_KEYS = {
    "a stream of a missing device is refused when it is created, not when it is used": """
cuda.get_stream_from_external(0, device) 2
cuda.get_stream_from_external(0, device) 99
cuda.get_stream_from_external(0, device) -1
cuda.get_stream_from_external(0, device) -2
cuda.get_stream_from_external(0, device) 'cuda:2'
""",
    "the error names the next step; a generator needs no device": """
torch.Stream(device) 'mps'
torch.Generator(device) 'mps'
torch.empty(4, device=device) 'mps'
torch.zeros(4, device=device) 'mps'
host.to(device) 'mps'
""",
    "the same error as of cuda.get_rng_state": """
accelerator.random.get_rng_state(device) 2
accelerator.random.get_rng_state(device) 99
accelerator.random.get_rng_state(device) -2
accelerator.random.get_rng_state(device) 'cuda:2'
~accelerator.random.initial_seed(device) 2
~accelerator.random.initial_seed(device) 99
~accelerator.random.initial_seed(device) -2
~accelerator.random.initial_seed(device) 'cuda:2'
""",
    "PyTorch converts a number to a tensor": """
host.to(device) True
""",
}


def every_call(cuda, torch_like):
    cuda.init()
    results = {}
    for line in lines():
        for device in DEVICES if "device" in names_in(line) else ():
            results[f"{line} {device!r}"] = play(line, Names(cuda, torch_like, device))
            cuda.set_device(0)
    return results
