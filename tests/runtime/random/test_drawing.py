"""Draws: the functions that one enters, and the generator that it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import forebay
from forebay import WrongState, random
from forebay.runtime.devices import open_device
from forebay.runtime.random import generator as generators

pytestmark = pytest.mark.usefixtures("untouched_seeds")

_SOURCES = str(Path(forebay.__file__).parent)


def entered_functions(act) -> list[str]:
    """Return forebay's Python functions that a call enters, in order, from the second call on."""
    entered = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(_SOURCES):
            entered.append(frame.f_code.co_qualname)

    act()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("method", ["normal_", "uniform_"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_draw_enters_fewer_than_ten_functions(emulated, device, method):
    """Each rule has one function: arguments, launches, position, stream, lifetimes, the queue and its encoding."""
    tensor = forebay.empty(1000, device=device)
    entered = entered_functions(getattr(tensor, method))
    submitted = entered.index("pack_draw") + 1
    assert submitted < 10, entered
    assert entered[submitted:] == ["Tensor.count_change"]


@pytest.mark.parametrize(
    "factory", [forebay.rand, forebay.randn, lambda n, device: forebay.randint(9, (n,), device=device)]
)
def test_factory_of_random_numbers_draws_in_fewer_than_ten_functions(emulated, factory):
    kept = []  # as observers that another test has added are called for each free, too
    entered = entered_functions(lambda: kept.append(factory(1000, device="cuda")))
    allocated = entered.index("Tensor.__init__") + 1
    empty = entered_functions(lambda: kept.append(forebay.empty(1000, device="cuda")))  # in this state of the process
    assert allocated <= len(empty) + 3, " ".join(entered)
    drawn = entered_functions(forebay.empty(1000, device="cuda").uniform_)
    assert len(entered) - allocated <= len(drawn) + 2, " ".join(entered)


def test_default_generator_of_a_device_is_one_object_for_all_draws(emulated):
    tensor, other = forebay.empty(4, device="cuda:1"), random.default_generator("cuda:0").get_state()
    random.manual_seed(5, "cuda:1")
    tensor.normal_()
    assert random.default_generator("cuda:1").get_offset() == 4
    random.manual_seed(5, "cuda:1")
    first = tensor.clone()
    assert tensor.normal_().tolist() == first.tolist()
    assert random.default_generator("cuda:0").get_state().tolist() == other.tolist()


def test_generators_of_an_ended_emulation_are_forgotten(clean):
    with forebay.emulate("cuda"):
        tensor = forebay.empty(4, device="cuda").normal_()
        opened = open_device.open_device(tensor.device)
        assert generators.default_generators[opened] is random.default_generator("cuda")
    assert opened not in generators.default_generators
    with pytest.raises(WrongState, match="emulation"):
        tensor.normal_()
    assert opened not in generators.default_generators  # else it would live until the next emulation ends


def test_names_in_another_emulation_are_those_of_its_devices(clean):
    for seed in (1, 2):
        with forebay.emulate("cuda"):
            random.manual_seed(seed, "cuda")
            tensor = forebay.randn(3, device="cuda")
            assert tensor.raw_storage.opened is open_device.open_device(tensor.device)
            assert random.default_generator("cuda").initial_seed() == seed
