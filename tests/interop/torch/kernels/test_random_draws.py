"""Random numbers of emulated devices: those of the GPU."""

from __future__ import annotations

import numpy as np
import pytest

import forebay

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


def test_published_numbers_of_gpus(emulated):
    torch.manual_seed(0)
    assert torch.rand(3, device="cuda").tolist() == pytest.approx([0.3990, 0.5167, 0.0249], abs=5e-5)
    torch.manual_seed(0)
    assert torch.randn(2, device="cuda").tolist() == pytest.approx([-0.9247, -0.4253], abs=5e-5)


FILLS = {
    "uniform_": (-1.0, 3.0), "normal_": (2.0, 0.5), "exponential_": (1.5,), "random_": (5, 90), "bernoulli_": (0.3,),
    "cauchy_": (0.5, 2.0), "log_normal_": (0.1, 0.7), "geometric_": (0.2,),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", FILLS)
def test_fills_are_forebays(emulated, name, dtype):
    torch.cuda.manual_seed(7)
    ours = getattr(torch.empty(1000, dtype=getattr(torch, dtype), device="cuda"), name)(*FILLS[name]).cpu().numpy()
    forebay.cuda.manual_seed(7)
    expected = (
        getattr(forebay.empty(1000, dtype=getattr(forebay, dtype), device="cuda"), name)(*FILLS[name]).cpu().numpy()
    )
    np.testing.assert_array_equal(ours, expected)


def test_transposed_tensors_are_filled_in_the_order_of_a_gpu(emulated):
    torch.cuda.manual_seed(7)
    dense = torch.empty(50, 30, device="cuda").uniform_()
    torch.cuda.manual_seed(7)
    turned = torch.empty(30, 50, device="cuda").t().uniform_()
    assert torch.equal(dense, turned) is False
    assert sorted(dense.view(-1).tolist()) == sorted(turned.flatten().tolist())


def test_bfloat16_is_rounded_from_float32(emulated):
    torch.cuda.manual_seed(7)
    wide = torch.empty(1000, device="cuda").normal_()
    torch.cuda.manual_seed(7)
    assert torch.equal(torch.empty(1000, dtype=torch.bfloat16, device="cuda").normal_(), wide.bfloat16())


def test_bernoulli_of_tensors(emulated):
    chances = torch.linspace(0, 1, 1000, device="cuda")
    drawn = torch.bernoulli(chances)
    assert drawn[0] == 0
    assert drawn[-1] == 1
    assert 400 < drawn.sum().item() < 600
    assert torch.empty(1000, device="cuda").bernoulli_(chances).mean().item() == pytest.approx(0.5, abs=0.06)


def test_generator_of_a_device(emulated):
    generator = torch.Generator(device="cuda").manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert generator.device == torch.device("cuda:0")
    assert generator.initial_seed() == 5
    state = generator.get_state()
    first = torch.rand(4, device="cuda", generator=generator)
    assert not torch.equal(first, torch.rand(4, device="cuda", generator=generator))
    generator.set_state(state)
    assert torch.equal(first, torch.rand(4, device="cuda", generator=generator))
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(4, device="cuda", generator=torch.Generator())
    assert torch.Generator().manual_seed(1).device.type == "cpu"
    assert isinstance(torch.Generator(), torch.Generator)


def test_states_are_tensors_of_pytorch(emulated):
    torch.cuda.manual_seed_all(9)
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8
    assert len(torch.cuda.get_rng_state_all()) == 2
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device="cuda"))
    with torch.random.fork_rng(devices=[0]):
        torch.rand(3, device="cuda")
    again = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state_all([state, state])
    torch.rand(3, device="cuda")
    assert torch.equal(again, torch.rand(3, device="cuda"))


SEEDED = {
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(64, device="cuda"), 0.3),
    "randperm": lambda: torch.randperm(64, device="cuda"),
    "multinomial": lambda: torch.multinomial(torch.ones(64, device="cuda"), 20),
    "poisson": lambda: torch.poisson(torch.full((64,), 3.0, device="cuda")),
    "normal": lambda: torch.normal(torch.zeros(64, device="cuda"), torch.ones(64, device="cuda")),
    "rrelu": lambda: torch.nn.functional.rrelu(-torch.ones(64, device="cuda"), training=True),
}


@pytest.mark.parametrize("name", SEEDED)
def test_other_draws_follow_the_seed_and_leave_the_cpu_alone(emulated, name):
    torch.manual_seed(3)
    host = torch.rand(1)
    torch.manual_seed(3)
    first, second = SEEDED[name](), SEEDED[name]()
    assert torch.equal(torch.rand(1), host)
    torch.manual_seed(3)
    assert torch.equal(SEEDED[name](), first)
    assert not torch.equal(first, second)
