"""Generators of emulated devices: copies have the state, and PyTorch's functions accept the default ones."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

COPIES = {
    "clone_state": lambda generator: generator.clone_state(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda generator: pickle.loads(pickle.dumps(generator)),
}


def draw(generator):
    return torch.rand(3, device=generator.device, generator=generator).tolist()


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_draws_the_same_numbers(emulated, name):
    generator = torch.Generator("cuda:1").manual_seed(3)
    draw(generator)
    other = COPIES[name](generator)
    assert (other.device, other.initial_seed()) == (generator.device, 3)
    assert draw(other) == draw(generator)


def test_a_shared_state_advances_once(emulated):
    generator = torch.Generator("cuda").manual_seed(3)
    other = generator.graphsafe_get_state()
    draw(other)
    assert generator.get_offset() == other.get_offset() > 0
    third = torch.Generator("cuda").graphsafe_set_state(generator)
    assert third.initial_seed() == 3


def test_default_generators_are_those_of_the_devices(emulated):
    torch.cuda.manual_seed_all(5)
    expected = torch.rand(3, device="cuda:1").tolist()
    assert len(torch.cuda.default_generators) == 2
    generator = torch.cuda.default_generators[1].manual_seed(5)
    assert draw(generator) == expected
    assert torch.cuda.initial_seed() == 5
