"""Tests of runtime random numbers: seeds, states, and fills, which are identical on all device kinds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import Generator, Tensor, random
from forebay._base.device_spec import Device
from forebay.runtime.random.generator_states import format_of
from forebay.runtime.random.launch_geometry import geometry_of
from forebay.spi import Launches
from forebay.testing.conformance.helpers import needs, needs_memory, port_of, run_in_new_process

__all__ = [
    "test_bernoulli_with_tensor_advances_offset_by_whole_calls",
    "test_default_launch_geometry_is_that_of_the_device",
    "test_draws_advance_the_offset",
    "test_draws_computed_from_tensors_match_the_cpu_device",
    "test_draws_match_published_values",
    "test_draws_match_the_cpu_device",
    "test_empty_tensor_does_not_advance_the_offset",
    "test_generator_must_match_device_kind",
    "test_random_fill_is_stream_ordered",
    "test_rng_state_restores_the_sequence",
    "test_same_seed_repeats_the_draws",
    "test_seed_set_before_first_use_applies",
    "test_separate_generator_does_not_advance_default_generator",
    "test_strided_fill_preserves_other_elements",
    "test_threads_draw_distinct_numbers",
]

_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")


def _probability_dtype(target: Tensor) -> str:
    """Return the dtype in which bernoulli_ takes probabilities without conversion."""
    return "float64" if target.dtype == np.float64 else "float32"


_DISTRIBUTIONS: dict[str, tuple[Callable[[Tensor, Generator], Tensor], tuple[str, ...]]] = {
    "uniform": (lambda target, generator: target.uniform_(-1, 3, generator=generator), _FLOATS),
    "normal": (
        lambda target, generator: target.normal_(1, 2, generator=generator),
        (*_FLOATS, "complex64", "complex128"),
    ),
    "exponential": (lambda target, generator: target.exponential_(2, generator=generator), _FLOATS),
    "cauchy": (lambda target, generator: target.cauchy_(1, 2, generator=generator), _FLOATS),
    "log_normal": (lambda target, generator: target.log_normal_(0, 0.5, generator=generator), _FLOATS),
    "geometric": (
        lambda target, generator: target.geometric_(0.3, generator=generator),
        (*_FLOATS, *_INTEGERS[1:]),
    ),
    "poisson": (
        lambda target, generator: target.copy_(
            forebay.poisson(forebay.full(target.shape, 2.5, dtype=target.dtype, device=target.device), generator)
        ),
        _FLOATS,
    ),
    "normal with tensors": (
        lambda target, generator: target.copy_(
            forebay.normal(
                forebay.ones(target.shape, dtype=target.dtype, device=target.device), 2.0, generator=generator
            )
        ),
        _FLOATS,
    ),
    "bernoulli": (lambda target, generator: target.bernoulli_(0.3, generator=generator), (*_FLOATS, *_INTEGERS)),
    "integers": (lambda target, generator: target.random_(generator=generator), (*_FLOATS, *_INTEGERS)),
    "integer range": (lambda target, generator: target.random_(0, 2, generator=generator), (*_FLOATS, *_INTEGERS)),
    "all bits": (lambda target, generator: target.random_(-(1 << 63), None, generator=generator), ("int64",)),
    "bernoulli with tensor": (
        lambda target, generator: target.bernoulli_(
            forebay.full(target.shape, 0.3, dtype=_probability_dtype(target), device=target.device), generator=generator
        ),
        (*_FLOATS, *_INTEGERS),
    ),
}
_COMPUTED = ("poisson", "normal with tensors")  # computed or converted by a function that the queue runs


def _fills(*, computed: bool) -> list[Any]:
    """Return the distributions that need the queue to run functions, or the others, each with its dtypes."""
    return [
        pytest.param(name, dtype, id=f"{name}-{dtype}")
        for name, (_, dtypes) in _DISTRIBUTIONS.items()
        for dtype in dtypes
        if (name in _COMPUTED) == computed
    ]


def _drawn(device: Device, generator: Generator | None = None, count: int = 40) -> list[float]:
    found: list[float] = forebay.rand(count, device=device, generator=generator).tolist()
    return found


# ---- Seeds, states and offsets


@needs_memory
def test_same_seed_repeats_the_draws(device: Device) -> None:
    random.manual_seed(11, device)
    assert random.initial_seed(device) == 11
    first, second = _drawn(device), _drawn(device)
    random.manual_seed(11, device)
    assert [_drawn(device), _drawn(device)] == [first, second]
    assert first != second
    random.manual_seed(12, device)
    assert _drawn(device) != first
    assert _drawn(device, Generator(device).manual_seed(11)) == first


def test_draws_advance_the_offset(device: Device) -> None:
    generator = random.manual_seed(5, device)
    assert (generator.initial_seed(), generator.get_offset()) == (5, 0)
    forebay.rand(10, device=device)
    assert generator.get_offset() == 4
    forebay.empty(10, dtype="float64", device=device).normal_()
    assert generator.get_offset() == 8
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(6)
    assert generator.get_offset() == 8
    assert random.manual_seed(5, device).get_offset() == 0


@needs_memory
def test_bernoulli_with_tensor_advances_offset_by_whole_calls(device: Device) -> None:
    """With a probability per element, ten random words are used: three Philox calls of four words each."""
    generator, target = Generator(device), forebay.zeros(5, device=device)
    target.bernoulli_(forebay.full((5,), 0.5, device=device), generator=generator)
    assert generator.get_offset() == 12


@needs_memory
def test_rng_state_restores_the_sequence(device: Device) -> None:
    random.manual_seed(-1, device)
    _drawn(device)
    state = random.get_rng_state(device)
    assert state.dtype == np.uint8
    assert state.numpy().tobytes() == format_of(device.kind).pack((1 << 64) - 1, 4)
    expected = _drawn(device)
    _drawn(device)
    random.set_rng_state(state, device)
    assert _drawn(device) == expected
    own = Generator(device).set_state(state)
    assert _drawn(device, own) == expected
    assert _drawn(device, own.set_offset(4)) == expected
    with pytest.raises(RuntimeError, match="wrong size"):
        random.set_rng_state(state[:15], device)


@needs_memory
def test_separate_generator_does_not_advance_default_generator(device: Device) -> None:
    state, own = random.get_rng_state(device), Generator(device)
    first = _drawn(device, own)
    assert _drawn(device, own) != first
    np.testing.assert_array_equal(random.get_rng_state(device), state)
    assert _drawn(device, Generator(device)) == first  # new generators have the same seed


def test_generator_must_match_device_kind(device: Device) -> None:
    target, other = forebay.empty(3, device=device), Generator("meta:0")
    message = f"Expected a '{device.kind}' device type for generator but found 'meta'"
    with pytest.raises(RuntimeError, match=message):
        target.uniform_(generator=other)
    with pytest.raises(TypeError, match=r"generator.* must be"):
        target.uniform_(generator=7)  # type: ignore[arg-type]  # deliberately invalid
    assert other.get_offset() == 0


@needs_memory
def test_seed_set_before_first_use_applies(device: Device) -> None:
    program = "{}; print(forebay.rand(40, device=name).tolist())"
    expected = f"{_drawn(device, Generator(device).manual_seed(7))}\n"
    for seed in ("manual_seed(7)", "random.manual_seed(7, name)", "random.manual_seed_all(7, name.split(':')[0])"):
        assert run_in_new_process(device, program.format(f"forebay.{seed}")) == expected, seed


# ---- Values


@needs_memory
def test_draws_match_published_values(device: Device) -> None:
    """The first values for seed 0 on every GPU, as users of PyTorch report them (pytorch#47347 and others)."""
    found = forebay.rand(8, device=device, generator=Generator(device).manual_seed(0)).tolist()
    assert found == pytest.approx([0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203], abs=5e-5)


@pytest.mark.parametrize(("distribution", "dtype"), _fills(computed=False))
@needs_memory
def test_draws_match_the_cpu_device(device: Device, distribution: str, dtype: str) -> None:
    """Fill more elements than a small GPU has threads, with strides, on the device and on the CPU device."""
    _check_draws_match_the_cpu_device(device, distribution, dtype)


@pytest.mark.parametrize(("distribution", "dtype"), _fills(computed=True))
@needs(Launches)
@needs_memory
def test_draws_computed_from_tensors_match_the_cpu_device(device: Device, distribution: str, dtype: str) -> None:
    _check_draws_match_the_cpu_device(device, distribution, dtype)


def _check_draws_match_the_cpu_device(device: Device, distribution: str, dtype: str) -> None:
    fill, _ = _DISTRIBUTIONS[distribution]
    found: list[np.ndarray[Any, Any]] = []
    for place in (device, Device("cpu")):
        target = forebay.zeros(3, 50, 41, dtype=dtype, device=place)
        fill(target, Generator(place, geometry=(1, 256)).manual_seed(99))
        fill(target[1:, ::2, 1:-1], Generator(place, geometry="a100").manual_seed(99).set_offset(8))
        found.append(np.array(target.cpu().numpy()))
    on_device, on_cpu = found
    np.testing.assert_array_equal(on_device, on_cpu)
    assert len(np.unique(on_device)) > 1


@needs_memory
def test_default_launch_geometry_is_that_of_the_device(device: Device) -> None:
    props = port_of(device).props
    geometry = geometry_of(props.multi_processor_count, props.max_threads_per_multi_processor)
    count = geometry.threads * 4 + 100
    found = forebay.rand(count, device=device, generator=Generator(device).manual_seed(3)).cpu().numpy()
    cpu_generator = Generator("cpu", geometry=geometry).manual_seed(3)
    np.testing.assert_array_equal(found, forebay.rand(count, device="cpu", generator=cpu_generator).numpy())


@needs_memory
def test_strided_fill_preserves_other_elements(device: Device) -> None:
    target = forebay.full((6, 8), 5.0, device=device)
    target[1::2, ::3].uniform_()
    found = target.cpu().numpy()
    assert (found[1::2, ::3] < 1).all()
    assert (found[::2] == 5).all()
    assert (found[:, 1::3] == 5).all()
    assert (found[:, 2::3] == 5).all()
    target.permute(1, 0).normal_(100)
    assert (target.cpu().numpy() > 50).all()


def test_empty_tensor_does_not_advance_the_offset(device: Device) -> None:
    generator = random.manual_seed(1, device)
    for empty in (forebay.empty(0, device=device), forebay.empty(3, 0, 2, dtype="int64", device=device)):
        assert empty.random_() is empty
        assert empty.bernoulli_() is empty
    assert generator.get_offset() == 0


@needs_memory
def test_random_fill_is_stream_ordered(device: Device) -> None:
    target = forebay.empty(1000, device=device)
    with forebay.Stream(device) as stream:
        for _ in range(20):
            target.fill_(7)
            target.uniform_()
        stream.synchronize()
    assert max(target.tolist()) < 1
    target.uniform_()
    target.fill_(7)
    assert set(target.tolist()) == {7}


@needs_memory
def test_threads_draw_distinct_numbers(device: Device) -> None:
    random.manual_seed(21, device)
    expected = sorted(tuple(_drawn(device, count=4)) for _ in range(100))
    random.manual_seed(21, device)

    def work(_: int) -> list[tuple[float, ...]]:
        return [tuple(_drawn(device, count=4)) for _ in range(50)]

    with ThreadPoolExecutor(2) as threads:
        found = sorted(draw for draws in threads.map(work, range(2)) for draw in draws)
    assert found == expected
