"""torch.mps without an MPS device, the only part of it that the oracle can record."""

from __future__ import annotations

import pathlib

from support.on_oracle import outcome

DIFFERS = {
    "streams": "PyTorch raises AttributeError for functions missing from its build, or has a dummy class",
    "host_alias": "PyTorch raises AttributeError for a function missing from its build",
    "invalid_state": "forebay checks for the device first",
}


def first_line(cuda, call, *arguments, **named):
    """Return the outcome with the first line of the message; forebay adds the reason on the next line."""
    found = outcome(cuda, call, *arguments, **named)
    return found | ({"message": found["message"].partition("\n")[0]} if "message" in found else {})


def availability(cuda, torch_like):
    mps = torch_like.mps
    return mps.device_count(), mps.is_available(), mps._is_in_bad_fork(), mps._default_mps_generator


def functions_that_need_the_backend(cuda, torch_like):
    mps = torch_like.mps
    uses = (
        mps.synchronize, mps.empty_cache, mps.seed, mps.get_rng_state, mps._get_default_mps_generator,
        mps.current_allocated_memory, mps.driver_allocated_memory, mps.recommended_max_memory,
    )  # fmt: skip
    return [first_line(cuda, use) for use in uses]


def states(cuda, torch_like):
    mps, zeros = torch_like.mps, torch_like.zeros
    there = [first_line(cuda, mps.get_rng_state, device) for device in ("cpu", "nonsense", 7, None)]
    state = zeros(44, dtype=torch_like.uint8)
    return there, [first_line(cuda, mps.set_rng_state, each) for each in (state, state[:3], state[::2])]


def invalid_state(cuda, torch_like):
    return first_line(cuda, torch_like.mps.set_rng_state, None)


def seeding_is_silent(cuda, torch_like):
    return [first_line(cuda, torch_like.mps.manual_seed, seed) for seed in (3, -1, 1 << 70, "x", None)]


def fractions(cuda, torch_like):
    """The number is checked before the device."""
    numbers = (0.5, 0.0, 2.0, float("nan"), 2.1, -0.1, float("inf"), 1, 0, True, "0.5", None)
    return [first_line(cuda, torch_like.mps.set_per_process_memory_fraction, number) for number in numbers]


def events(cuda, torch_like):
    return [first_line(cuda, torch_like.mps.Event, *arguments) for arguments in ((), (True,), (False,))]


def shaders(cuda, torch_like):
    mps = torch_like.mps
    libraries = (b"", b"MTLB", bytearray(3), "x.metallib", pathlib.Path("x.metallib"), 3, None, ["x"])
    return [first_line(cuda, mps.compile_shader, "kernel")] + [
        first_line(cuda, mps.load_metallib, each) for each in libraries
    ]


def stream_of_none(cuda, torch_like):
    return first_line(cuda, torch_like.mps.set_stream, None)


def streams(cuda, torch_like):
    mps = torch_like.mps

    def enter(stream):
        with mps.stream(stream):
            pass

    uses = (mps.Stream, mps.current_stream, mps.default_stream, lambda: enter(None))
    return [first_line(cuda, use)["error"] for use in uses]


def host_alias(cuda, torch_like):
    return first_line(cuda, torch_like.mps._host_alias_storage, torch_like.zeros(3))["error"]


def profiler(cuda, torch_like):
    """The arguments are checked before the device. After an error in `start`, `profile` raises the error of `stop`."""
    profiler = torch_like.mps.profiler

    def profile(*arguments):
        with profiler.profile(*arguments):
            pass

    modes = ("interval", "event", "interval,event", "", "nonsense", 3, None)
    starts = [first_line(cuda, profiler.start, mode) for mode in modes]
    starts += [first_line(cuda, profiler.start, "interval", wait) for wait in (True, 1, "x", None)]
    profiles = [first_line(cuda, profile, *arguments) for arguments in ((), ("nonsense",), (3,))]
    return starts, profiles, first_line(cuda, profiler.stop), profiler.is_metal_capture_enabled()
