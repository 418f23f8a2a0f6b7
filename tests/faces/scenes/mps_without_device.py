"""torch.mps where there is no MPS device: what its names say then, which is all of it that the oracle can tell."""

from __future__ import annotations

import pathlib

from support.on_oracle import outcome

DIFFERS = {
    "streams": "PyTorch misses functions of its own, which is no answer: AttributeError, a dummy class",
    "a_host_alias": "PyTorch misses a function of its own, which is no answer: AttributeError",
    "a_state_that_is_none": "forebay looks for the device first",
}


def said(cuda, call, *arguments, **named):
    """The first line alone: forebay says why on the next."""
    found = outcome(cuda, call, *arguments, **named)
    return found | ({"says": found["says"].partition("\n")[0]} if "says" in found else {})


def what_there_is(cuda, torch_like):
    mps = torch_like.mps
    return mps.device_count(), mps.is_available(), mps._is_in_bad_fork(), mps._default_mps_generator


def every_function_that_asks_the_backend(cuda, torch_like):
    mps = torch_like.mps
    uses = (
        mps.synchronize, mps.empty_cache, mps.seed, mps.get_rng_state, mps._get_default_mps_generator,
        mps.current_allocated_memory, mps.driver_allocated_memory, mps.recommended_max_memory,
    )  # fmt: skip
    return [said(cuda, use) for use in uses]


def states(cuda, torch_like):
    mps, zeros = torch_like.mps, torch_like.zeros
    there = [said(cuda, mps.get_rng_state, device) for device in ("cpu", "nonsense", 7, None)]
    state = zeros(44, dtype=torch_like.uint8)
    return there, [said(cuda, mps.set_rng_state, each) for each in (state, state[:3], state[::2])]


def a_state_that_is_none(cuda, torch_like):
    return said(cuda, torch_like.mps.set_rng_state, None)


def seeding_says_nothing(cuda, torch_like):
    return [said(cuda, torch_like.mps.manual_seed, seed) for seed in (3, -1, 1 << 70, "x", None)]


def fractions(cuda, torch_like):
    """What is wrong with the number comes first."""
    numbers = (0.5, 0.0, 2.0, float("nan"), 2.1, -0.1, float("inf"), 1, 0, True, "0.5", None)
    return [said(cuda, torch_like.mps.set_per_process_memory_fraction, number) for number in numbers]


def events(cuda, torch_like):
    return [said(cuda, torch_like.mps.Event, *arguments) for arguments in ((), (True,), (False,))]


def shaders(cuda, torch_like):
    mps = torch_like.mps
    libraries = (b"", b"MTLB", bytearray(3), "x.metallib", pathlib.Path("x.metallib"), 3, None, ["x"])
    return [said(cuda, mps.compile_shader, "kernel")] + [said(cuda, mps.load_metallib, each) for each in libraries]


def no_stream_is_no_stream(cuda, torch_like):
    return said(cuda, torch_like.mps.set_stream, None)


def streams(cuda, torch_like):
    mps = torch_like.mps

    def enter(stream):
        with mps.stream(stream):
            pass

    uses = (mps.Stream, mps.current_stream, mps.default_stream, lambda: enter(None))
    return [said(cuda, use)["error"] for use in uses]


def a_host_alias(cuda, torch_like):
    return said(cuda, torch_like.mps._host_alias_storage, torch_like.zeros(3))["error"]


def profiler(cuda, torch_like):
    """What is wrong with the arguments comes first; of an error in `start`, `profile` tells what `stop` makes of it."""
    profiler = torch_like.mps.profiler

    def profile(*arguments):
        with profiler.profile(*arguments):
            pass

    modes = ("interval", "event", "interval,event", "", "nonsense", 3, None)
    starts = [said(cuda, profiler.start, mode) for mode in modes]
    starts += [said(cuda, profiler.start, "interval", wait) for wait in (True, 1, "x", None)]
    profiles = [said(cuda, profile, *arguments) for arguments in ((), ("nonsense",), (3,))]
    return starts, profiles, said(cuda, profiler.stop), profiler.is_metal_capture_enabled()
