"""Generators, their states and geometries. Error texts are PyTorch 2.15's."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pytest

import forebay
from forebay import backends, random
from forebay.backends.host.driver import HostPort
from forebay.runtime.random import generator as generators
from forebay.runtime.random import philox_state
from forebay.runtime.random.launch_geometry import REFERENCE, Geometry, launches
from forebay.spi import DeviceProps

pytestmark = pytest.mark.usefixtures("untouched_seeds")

HOST = "cpu"


# ---- Generators


def test_new_generator_has_pytorchs_state():
    made = forebay.Generator("cpu")
    assert (made.initial_seed(), made.get_offset()) == (67280421310721, 0)
    assert made.get_state().tolist() == [1, 209, 156, 241, 48, 61] + [0] * 10
    assert str(made.device) == "cpu"
    assert repr(made) == "<forebay.Generator device=cpu seed=67280421310721 offset=0>"
    assert forebay.Generator().device == forebay.current_device()


def test_state_matches_published_bytes():  # pytorch#98965
    made = forebay.Generator("cpu").manual_seed(123).set_offset(40)
    assert made.get_state().tolist() == [123] + [0] * 7 + [40] + [0] * 7


@pytest.mark.parametrize(
    ("seed", "stored"),
    [(0, 0), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (-(2**63), 2**63), (np.int64(-1), 2**64 - 1), (np.uint8(3), 3)],
)
def test_manual_seed_stores_seed_modulo_64_bits(generator, seed, stored):
    assert generator.manual_seed(seed).initial_seed() == stored
    assert type(generator.initial_seed()) is int


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_seed_and_offset_reject_out_of_range_numbers(generator, number):
    for use in (generator.manual_seed, generator.set_offset, random.manual_seed, random.manual_seed_all):
        with pytest.raises(ValueError, match="Overflow when unpacking long long"):
            use(number)


@pytest.mark.parametrize("number", [1.5, True, "3", None, np.float32(1)])
def test_seed_and_offset_reject_non_ints(generator, number):
    name = type(number).__name__
    with pytest.raises(RuntimeError, match=f"^manual_seed expected a long, but got {name}$"):
        generator.manual_seed(number)
    with pytest.raises(RuntimeError, match=f"^manual_offset expected a long, but got {name}$"):
        generator.set_offset(number)


def test_set_offset_and_take_wrap_at_64_bits(generator):
    assert generator.set_offset(2**63).get_offset() == 2**63
    assert generator.set_offset(-4).get_offset() == 2**64 - 4
    for offset in (1, 2, 3, 5, -1):
        with pytest.raises(RuntimeError, match=r"^offset must be a multiple of 4$"):
            generator.set_offset(offset)
    assert generator.advance(5) == (7, 2**64 - 4)
    assert generator.get_offset() == 4  # wrapped; 5 is rounded up to 8
    assert generator.manual_seed(7).get_offset() == 0


def test_state_continues_the_sequence(generator):
    forebay.rand(1000, device=HOST, generator=generator)
    state = generator.get_state()
    assert (state.dtype, state.shape) == (np.uint8, (16,))
    first = forebay.randn(1000, device=HOST, generator=generator).numpy()
    state_after = generator.get_state()
    again = forebay.Generator("cpu").set_state(state)
    np.testing.assert_array_equal(forebay.randn(1000, device=HOST, generator=again).numpy(), first)
    np.testing.assert_array_equal(again.get_state(), state_after)
    state[:] = 0  # `state` is a copy
    assert generator.initial_seed() == 7


def test_set_state_accepts_pytorchs_forms(generator):
    assert generator.set_state(np.full(8, 1, np.uint8)).get_state().tolist() == [1] * 8 + [0] * 8
    assert generator.set_state(np.full((4, 4), 4, np.uint8)).get_offset() == 0x0404040404040404
    assert generator.set_state(forebay.zeros(16, dtype="uint8", device=HOST)).initial_seed() == 0


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        (np.zeros(15, np.uint8), RuntimeError, "^RNG state is wrong size$"),
        (np.zeros(0, np.uint8), RuntimeError, "^RNG state is wrong size$"),
        (np.zeros(816, np.uint8), RuntimeError, "^RNG state is wrong size$"),
        (np.ones(16, np.uint8), RuntimeError, "^offset must be a multiple of 4$"),
        (np.zeros(16, np.int8), TypeError, "^RNG state must be a torch.ByteTensor$"),
        (np.zeros(32, np.uint8)[::2], RuntimeError, "^RNG state must be contiguous$"),
        (b"0" * 16, TypeError, "^expected a torch.ByteTensor, but got bytes$"),
        (None, TypeError, "^expected a torch.ByteTensor, but got NoneType$"),
    ],
)
def test_set_state_rejects_invalid_states(generator, state, error, text):
    with pytest.raises(error, match=text):
        generator.set_state(state)
    assert (generator.initial_seed(), generator.get_offset()) == (7, 0)


def test_generator_clones_are_independent(generator):
    generator.geometry = "t4"
    generator.set_offset(8)
    for copied in (generator.clone_state(), copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        np.testing.assert_array_equal(copied.get_state(), generator.get_state())
        assert (copied.device, copied.geometry) == (generator.device, generator.geometry)
        copied.advance(4)
        assert generator.get_offset() == 8


def test_random_seeds_differ(generator):
    seeds = {generator.seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(seed < 1 << 53 for seed in seeds)
    assert generator.initial_seed() in seeds


def test_threads_draw_different_numbers():
    shared, offsets = forebay.Generator("cpu").manual_seed(0), []

    def draw():
        for _ in range(500):
            offsets.append(shared.advance(4)[1])  # noqa: PERF401 -- the threads interleave

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(0, 8000, 4))


# ---- Default generators


def test_manual_seed_all_covers_later_generators():
    random.manual_seed_all(5, "xpu")
    assert random.default_generator("xpu:3").initial_seed() == 5
    assert random.manual_seed(6) is random.default_generator()
    assert random.default_generator("xpu:3").initial_seed() == random.initial_seed("hpu:0") == 6
    random.manual_seed_all(7, "xpu")
    assert [random.initial_seed(device) for device in ("xpu:3", "xpu:4", "hpu:0")] == [7, 7, 6]
    random.manual_seed(8, "xpu:4")
    assert [random.initial_seed(device) for device in ("xpu:3", "xpu:4", "xpu:5")] == [7, 8, 7]
    both = random.seed_all("xpu")
    assert random.initial_seed("xpu:3") == random.initial_seed("xpu:9") == both != 7
    assert random.seed("xpu:3") == random.initial_seed("xpu:3") != both
    assert random.manual_seed(1.9).initial_seed() == 1  # as PyTorch


def test_default_generators_are_seeded_at_random():
    assert len({random.initial_seed(f"xpu:{index}") for index in range(10)}) == 10


def test_rng_state_functions_use_default_generators():
    random.manual_seed(3)
    forebay.rand(5, device=HOST)
    state, (same,) = random.get_rng_state(HOST), random.get_rng_state_all("cpu")
    assert state.tolist() == same.tolist() == [3] + [0] * 7 + [4] + [0] * 7
    random.set_rng_state(np.zeros(8, np.uint8), HOST)
    assert random.get_rng_state(HOST).tolist() == [0] * 16
    random.set_rng_state_all([state], "cpu")
    assert random.default_generator(HOST).get_offset() == 4
    assert random.get_rng_state_all("xpu") == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_has_own_lock_and_state(generator):
    locked, release = threading.Event(), threading.Event()

    def hold_lock():
        with generators._lock, philox_state._lock:
            locked.set()
            release.wait(20)

    thread = threading.Thread(target=hold_lock)
    thread.start()
    locked.wait(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking a multithreaded process
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for a lock
        generators.reset_kind("none")
        os._exit(0 if generator.advance(4) == (7, 0) else 1)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert generator.get_offset() == 0


# ---- Geometries


def test_unknown_profile_raises():
    with pytest.raises(ValueError, match="there is no profile 'h900', the nearest is 'h200'; there are a10, "):
        forebay.Generator("cpu", geometry="h900")


def test_geometry_of_names_and_pairs():
    assert Geometry.of("reference") == REFERENCE == Geometry.of("h200") == Geometry.of((132, 2048))
    assert Geometry(1, 1000).threads == 768
    for invalid in ((0, 2048), (1, 255), (-1, -2048), (1 << 30, 2048)):
        with pytest.raises(ValueError, match="invalid GPU geometry"):
            Geometry(*invalid)


def test_device_with_gpu_properties_draws_as_that_gpu(generator):
    class Emulated:
        kind = "emulated"

        def count(self):
            return 1

        def why_not(self):
            return ""

        def open(self, index):
            props = DeviceProps(
                self.kind,
                index,
                "a small GPU",
                1 << 30,
                host_visible=True,
                multi_processor_count=1,
                max_threads_per_multi_processor=1024,
            )
            return HostPort(props)

    def drawn(device, geometry):
        own = forebay.Generator(device, geometry=geometry).manual_seed(7)
        return forebay.rand(5000, device=device, generator=own).numpy().copy()

    with backends.override_driver(Emulated()):
        small = drawn("emulated:0", None)
        np.testing.assert_array_equal(small, drawn(HOST, (1, 1024)))
        np.testing.assert_array_equal(drawn("emulated:0", "reference"), drawn(HOST, None))
        assert not np.array_equal(small, drawn(HOST, None))
        forebay.synchronize("emulated:0")


@pytest.mark.parametrize(  # offsets of PyTorch 2.15's generator after the fill
    ("shape", "strides", "itemsize", "skipped"),
    [
        ((10**7,), (4,), 4, 40),
        ((10**7,), (8,), 8, 76),
        ((2**29,), (4,), 4, 1988),
        ((2**29 + 1,), (4,), 4, 3980),
        ((2**30,), (4,), 4, 7948),
        ((2**30,), (2,), 2, 3972),
        ((2**28,), (8,), 4, 996),
        ((2**28 + 1,), (8,), 4, 1996),
        ((2**29,), (8,), 4, 3980),
        ((3, 2**28 + 5), (4 * (2**28 + 5), 4), 4, 5964),
        ((3, 2**28 + 5), (4 * (2**28 + 6), 4), 4, 5968),
        ((2**28 + 5, 5), (4, 4 * (2**28 + 6)), 4, 9948),
    ],
)
def test_large_tensors_are_filled_by_several_launches(shape, strides, itemsize, skipped):
    found = list(launches(shape, strides, itemsize, 2 if itemsize == 8 else 4, REFERENCE))
    assert sum(launch.skipped for launch in found) == skipped
    assert sum(launch.count for launch in found) == np.prod(shape)
    starts = [launch.start for launch in found if launch.count]
    assert starts == sorted(starts)
