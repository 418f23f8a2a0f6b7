"""Random numbers of the runtime: seeds, states and fills, whose numbers are the same on every kind of device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import Device, Generator, Tensor, random
from forebay.runtime.random.generator_states import form_of
from forebay.runtime.random.launch_geometry import geometry_of
from forebay.testing.conformance.scenes import in_new_process, not_imaginary, port_of

__all__ = [
    "test_a_device_draws_by_its_own_geometry",
    "test_a_fill_is_in_the_order_of_its_stream",
    "test_a_generator_is_of_a_kind",
    "test_a_generator_of_its_own_leaves_the_devices_alone",
    "test_a_state_is_where_it_goes_on",
    "test_drawing_moves_the_offset",
    "test_every_kind_draws_the_same",
    "test_nothing_is_drawn_for_nothing",
    "test_seeds_of_before_the_first_use",
    "test_the_offset_moves_in_whole_calls",
    "test_the_published_numbers",
    "test_the_same_seed_gives_the_same",
    "test_two_threads_share_no_numbers",
    "test_what_is_between_the_elements_stays",
]

_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")


def _chance_of(target: Tensor) -> str:
    """In which nothing needs to be converted."""
    return "float64" if target.dtype == np.float64 else "float32"


_LAWS: dict[str, tuple[Callable[[Tensor, Generator], Tensor], tuple[str, ...]]] = {
    "uniform": (lambda target, generator: target.uniform_(-1, 3, generator=generator), _FLOATS),
    "normal": (
        lambda target, generator: target.normal_(1, 2, generator=generator),
        (*_FLOATS, "complex64", "complex128"),
    ),
    "exponential": (lambda target, generator: target.exponential_(2, generator=generator), _FLOATS),
    "coins": (lambda target, generator: target.bernoulli_(0.3, generator=generator), (*_FLOATS, *_INTEGERS)),
    "integers": (lambda target, generator: target.random_(generator=generator), (*_FLOATS, *_INTEGERS)),
    "a range": (lambda target, generator: target.random_(0, 2, generator=generator), (*_FLOATS, *_INTEGERS)),
    "all bits": (lambda target, generator: target.random_(-(1 << 63), None, generator=generator), ("int64",)),
    "chances": (
        lambda target, generator: target.bernoulli_(
            forebay.full(target.shape, 0.3, dtype=_chance_of(target), device=target.device), generator=generator
        ),
        (*_FLOATS, *_INTEGERS),
    ),
}
_FILLS = [pytest.param(law, dtype, id=f"{law}-{dtype}") for law, (_, dtypes) in _LAWS.items() for dtype in dtypes]


def _drawn(device: Device, generator: Generator | None = None, count: int = 40) -> list[float]:
    found: list[float] = forebay.rand(count, device=device, generator=generator).tolist()
    return found


# ---- Seeds, states and offsets


@not_imaginary
def test_the_same_seed_gives_the_same(device: Device) -> None:
    random.manual_seed(11, device)
    assert random.initial_seed(device) == 11
    first, second = _drawn(device), _drawn(device)
    random.manual_seed(11, device)
    assert [_drawn(device), _drawn(device)] == [first, second]
    assert first != second
    random.manual_seed(12, device)
    assert _drawn(device) != first
    assert _drawn(device, Generator(device).manual_seed(11)) == first


def test_drawing_moves_the_offset(device: Device) -> None:
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


@not_imaginary
def test_the_offset_moves_in_whole_calls(device: Device) -> None:
    """Where each element has a chance of its own ten words are taken: three calls of four."""
    generator, target = Generator(device), forebay.zeros(5, device=device)
    target.bernoulli_(forebay.full((5,), 0.5, device=device), generator=generator)
    assert generator.get_offset() == 12


@not_imaginary
def test_a_state_is_where_it_goes_on(device: Device) -> None:
    random.manual_seed(-1, device)
    _drawn(device)
    state = random.get_rng_state(device)
    assert state.dtype == np.uint8
    assert state.tobytes() == form_of(device.kind).pack((1 << 64) - 1, 4)
    expected = _drawn(device)
    _drawn(device)
    random.set_rng_state(state, device)
    assert _drawn(device) == expected
    own = Generator(device).set_state(state)
    assert _drawn(device, own) == expected
    assert _drawn(device, own.set_offset(4)) == expected
    with pytest.raises(RuntimeError, match="wrong size"):
        random.set_rng_state(state[:15], device)


@not_imaginary
def test_a_generator_of_its_own_leaves_the_devices_alone(device: Device) -> None:
    state, own = random.get_rng_state(device), Generator(device)
    first = _drawn(device, own)
    assert _drawn(device, own) != first
    np.testing.assert_array_equal(random.get_rng_state(device), state)
    assert _drawn(device, Generator(device)) == first  # a new one's seed is always the same


def test_a_generator_is_of_a_kind(device: Device) -> None:
    target, other = forebay.empty(3, device=device), Generator("elsewhere:0")
    words = f"Expected a '{device.kind}' device type for generator but found 'elsewhere'"
    with pytest.raises(RuntimeError, match=words):
        target.uniform_(generator=other)
    with pytest.raises(TypeError, match="generator must be"):
        target.uniform_(generator=7)  # type: ignore[arg-type]  # that is the test
    assert other.get_offset() == 0


@not_imaginary
def test_seeds_of_before_the_first_use(device: Device) -> None:
    program = "{}; print(forebay.rand(40, device=name).tolist())"
    expected = f"{_drawn(device, Generator(device).manual_seed(7))}\n"
    for seed in ("manual_seed(7)", "random.manual_seed(7, name)", "random.manual_seed_all(7, name.split(':')[0])"):
        assert in_new_process(device, program.format(f"forebay.{seed}")) == expected, seed


# ---- Numbers


@not_imaginary
def test_the_published_numbers(device: Device) -> None:
    """The first ones on every GPU for seed 0, as PyTorch's users print them (pytorch#47347, and many)."""
    found = forebay.rand(8, device=device, generator=Generator(device).manual_seed(0)).tolist()
    assert found == pytest.approx([0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203], abs=5e-5)


@pytest.mark.parametrize(("law", "dtype"), _FILLS)
@not_imaginary
def test_every_kind_draws_the_same(device: Device, law: str, dtype: str) -> None:
    """More elements than a small GPU has threads, in steps: what the host has, the device has as well."""
    fill, _ = _LAWS[law]
    found: list[np.ndarray[Any, Any]] = []
    for place in (device, Device("host:0")):
        target = forebay.zeros(3, 50, 41, dtype=dtype, device=place)
        fill(target, Generator(place, geometry=(1, 256)).manual_seed(99))
        fill(target[1:, ::2, 1:-1], Generator(place, geometry="a100").manual_seed(99).set_offset(8))
        found.append(np.array(target.cpu().numpy()))
    ours, by_host = found
    np.testing.assert_array_equal(ours, by_host)
    assert len(np.unique(ours)) > 1


@not_imaginary
def test_a_device_draws_by_its_own_geometry(device: Device) -> None:
    own = geometry_of(port_of(device).props)
    count = own.threads * 4 + 100
    found = forebay.rand(count, device=device, generator=Generator(device).manual_seed(3)).cpu().numpy()
    by_host = Generator("host", geometry=own).manual_seed(3)
    np.testing.assert_array_equal(found, forebay.rand(count, device="host:0", generator=by_host).numpy())


@not_imaginary
def test_what_is_between_the_elements_stays(device: Device) -> None:
    target = forebay.full((6, 8), 5.0, device=device)
    target[1::2, ::3].uniform_()
    found = target.cpu().numpy()
    assert (found[1::2, ::3] < 1).all()
    assert (found[::2] == 5).all()
    assert (found[:, 1::3] == 5).all()
    assert (found[:, 2::3] == 5).all()
    target.permute(1, 0).normal_(100)
    assert (target.cpu().numpy() > 50).all()


def test_nothing_is_drawn_for_nothing(device: Device) -> None:
    generator = random.manual_seed(1, device)
    for empty in (forebay.empty(0, device=device), forebay.empty(3, 0, 2, dtype="int64", device=device)):
        assert empty.random_() is empty
        assert empty.bernoulli_() is empty
    assert generator.get_offset() == 0


@not_imaginary
def test_a_fill_is_in_the_order_of_its_stream(device: Device) -> None:
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


@not_imaginary
def test_two_threads_share_no_numbers(device: Device) -> None:
    random.manual_seed(21, device)
    expected = sorted(tuple(_drawn(device, count=4)) for _ in range(100))
    random.manual_seed(21, device)

    def work(_: int) -> list[tuple[float, ...]]:
        return [tuple(_drawn(device, count=4)) for _ in range(50)]

    with ThreadPoolExecutor(2) as threads:
        found = sorted(each for both in threads.map(work, range(2)) for each in both)
    assert found == expected
