"""Steps of bitsandbytes' optimizers: its operators for the CPU where both agree, and the kernels' own rules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="there is no bitsandbytes for this system")

from forebay.interop.torch.extensions.optimizer_updates import (  # noqa: E402 -- as above
    OPTIMIZERS,
    TWO_STATES,
    Hyperparameters,
    QuantizedState,
    update,
    update_quantized,
)

HYPERPARAMETERS = Hyperparameters(0.9, 0.99, 0.999, 5.0, 1e-8, 0.0, 2, 0.01, 1.0, skip_zeros=False)
COUNT = 700


def draw(seed, count=COUNT, dtype=torch.float32):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(dtype)


def states_of(name):
    """Return states after some steps: first moments, second moments, and AdEMAMix's slow ones."""
    first = draw(3).abs() if name in ("rmsprop", "adagrad") else draw(3)
    return {"adam": [first, draw(4).abs()], "ademamix": [first, draw(4).abs(), draw(5)]}.get(name, [first])


def of_bitsandbytes(name, parameter, gradient, states, numbers, **limits):
    """Take the step with bitsandbytes' operator for the CPU."""
    state1 = torch.stack([states[0], states[2]]) if name == "ademamix" else states[0]
    state2 = states[1] if name in TWO_STATES else None
    torch.ops.bitsandbytes.optimizer_update_32bit(
        name, gradient, parameter, state1, state2, limits.get("norm"), limits.get("most", 0.0),
        limits.get("parameter_norm", 0.0), *numbers[:7], numbers.learning_rate, numbers.gradient_scale,
    )  # fmt: skip
    return [state1[0], state2, state1[1]] if name == "ademamix" else [state1, *([state2] if name == "adam" else [])]


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_is_that_of_bitsandbytes(name, dtype, step, scale):
    parameter, gradient, states = draw(1, dtype=dtype), draw(2, dtype=dtype), states_of(name)
    numbers = HYPERPARAMETERS._replace(step=step, gradient_scale=scale)
    expected = parameter.clone()
    expected_states = of_bitsandbytes(name, expected, gradient, [each.clone() for each in states], numbers)
    update(name, parameter, gradient, states, numbers)
    torch.testing.assert_close(parameter, expected)
    torch.testing.assert_close(states, expected_states)


@pytest.mark.parametrize("name", ["momentum", "rmsprop", "adagrad", "lion"])
def test_weight_decay_is_that_of_bitsandbytes(name):
    parameter, states, numbers = draw(1), states_of(name), HYPERPARAMETERS._replace(weight_decay=0.1)
    expected = parameter.clone()
    of_bitsandbytes(name, expected, draw(2), [each.clone() for each in states], numbers)
    update(name, parameter, draw(2), states, numbers)
    torch.testing.assert_close(parameter, expected)


def test_adam_decays_the_new_parameter():
    parameter, plain = draw(1), draw(1)
    update("adam", parameter, draw(2), states_of("adam"), HYPERPARAMETERS._replace(weight_decay=0.1))
    update("adam", plain, draw(2), states_of("adam"), HYPERPARAMETERS)
    torch.testing.assert_close(parameter, plain * (1 - 0.01 * 0.1))


def test_update_is_limited_by_the_norm_of_the_parameter():
    """One step of LAMB from zeros: the update without its limit is the learning rate times the sign."""
    parameter, norm = torch.full((1000,), 0.5), torch.full((1,), 9.0)
    parameter_norm = parameter.norm().item()
    states = [torch.zeros(1000), torch.zeros(1000)]
    update("adam", parameter, torch.ones(1000), states, HYPERPARAMETERS._replace(step=1), norm, 0.1, parameter_norm)
    assert norm.item() == pytest.approx(1000, rel=1e-5)  # squares of ones
    torch.testing.assert_close(parameter, torch.full((1000,), 0.5 - 0.01 * 0.1 * 0.5))


@pytest.mark.parametrize("name", ["momentum", "rmsprop"])
def test_limit_of_one_state_has_a_slack(name):
    parameter, norm = draw(1), torch.zeros(1)
    numbers = HYPERPARAMETERS._replace(eps=0.5)
    expected, (state,) = parameter.clone(), states_of(name)
    update(name, parameter, draw(2), [state.clone()], numbers, norm, 0.001, 2.0)
    update(name, unlimited := draw(1), draw(2), [state], numbers)
    factor = (0.001 * 2.0 + 0.5) / norm.sqrt().item()
    torch.testing.assert_close(parameter - expected, (unlimited - expected) * factor, rtol=1e-3, atol=1e-6)


def test_lion_is_limited_by_the_norm_of_the_step_before():
    parameter, norm = torch.zeros(10), torch.full((1,), 4.0)
    update("lion", parameter, torch.ones(10), [torch.zeros(10)], HYPERPARAMETERS, norm, 1.0, 1.0)
    torch.testing.assert_close(parameter, torch.full((10,), -0.01 * (1 + HYPERPARAMETERS.eps) / 2))
    state = 0.01
    assert norm.item() == pytest.approx(10 * (state * 0.99 + 0.01))


@pytest.mark.parametrize("name", ["adam", "momentum", "lion"])
def test_elements_without_gradient_are_skipped(name):
    parameter, gradient, states = draw(1), draw(2), states_of(name)
    gradient[::2] = 0
    expected, before = parameter.clone(), [each.clone() for each in states]
    update(
        name,
        parameter,
        gradient,
        states,
        HYPERPARAMETERS._replace(skip_zeros=True, weight_decay=0.1 if name == "adam" else 0.0),
    )
    for new, old in zip((parameter, *states), (expected, *before), strict=True):
        assert torch.equal(new[::2], old[::2])
        assert (new[1::2] != old[1::2]).all()


def quantized(name, numbers):
    """Return states of 8 bits for numbers."""
    made = []
    for at, each in enumerate(numbers):
        levels = bitsandbytes.functional.create_dynamic_map(signed=not (name in TWO_STATES and at == 1)).float()
        codes, state = bitsandbytes.functional.quantize_blockwise(each, levels, blocksize=256)
        made.append(QuantizedState(codes, levels, state.absmax))
    return made


def dequantized(states):
    return [each.levels[each.codes.int()] * each.absmax.repeat_interleave(256)[:COUNT] for each in states]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_of_8_bits_is_that_of_32_with_the_same_states(name):
    parameter, states = draw(1), quantized(name, states_of(name))
    expected, expected_states = parameter.clone(), dequantized(states)
    update(name, expected, draw(2), expected_states, HYPERPARAMETERS)
    update_quantized(name, parameter, draw(2), states, HYPERPARAMETERS)
    torch.testing.assert_close(parameter, expected)
    for found, new in zip(dequantized(states), expected_states, strict=True):
        assert (found - new).abs().max() <= 0.02 * new.abs().max()
        assert (found.sign() * new.sign() >= 0).all()


@pytest.mark.parametrize("name", TWO_STATES)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_elements_without_a_finite_gradient_are_reset(name, bad):
    parameter, gradient, states = draw(1), draw(2), quantized(name, states_of(name))
    gradient[7] = bad
    before = parameter[7].item()
    update_quantized(name, parameter, gradient, states, HYPERPARAMETERS._replace(weight_decay=0.5))
    assert parameter[7].item() == before
    assert [each[7].item() for each in dequantized(states)] == [0] * len(states)
    assert all(each.absmax.isfinite().all() for each in states)
    assert parameter.isfinite().all()


@pytest.mark.parametrize("name", ["rmsprop", "adagrad"])
def test_step_of_roots_has_the_gradient_without_decay(name):
    parameter, states = torch.ones(256), quantized(name, [torch.zeros(256)])
    update_quantized(name, parameter, torch.full((256,), 0.1), states, HYPERPARAMETERS._replace(weight_decay=1.0))
    squares = 1.1**2 * (0.1 if name == "rmsprop" else 1.0)
    torch.testing.assert_close(parameter, torch.full((256,), 1 - 0.01 * 0.1 / squares**0.5))


def test_gradient_that_is_no_number_spoils_one_element():
    parameter, gradient, states = draw(1), draw(2), quantized("momentum", states_of("momentum"))
    gradient[7] = float("nan")
    update_quantized("momentum", parameter, gradient, states, HYPERPARAMETERS)
    update_quantized("momentum", parameter, draw(3), states, HYPERPARAMETERS)
    assert parameter.isnan().nonzero().tolist() == [[7]]
    assert states[0].absmax.isfinite().all()


def test_step_of_quantized_lion_is_rounded_to_the_type():
    parameter = draw(1, dtype=torch.bfloat16)
    expected = (parameter.float() - torch.tensor(0.003, dtype=torch.bfloat16).float()).to(torch.bfloat16)
    states = quantized("lion", [torch.zeros(COUNT)])
    update_quantized(
        "lion", parameter, torch.ones(COUNT).bfloat16(), states, HYPERPARAMETERS._replace(learning_rate=0.003)
    )
    assert torch.equal(parameter, expected)


def test_quantized_elements_without_gradient_are_skipped():
    parameter, gradient = draw(1), draw(2)
    gradient[::2] = 0
    states, before = quantized("momentum", states_of("momentum")), draw(1)
    update_quantized("momentum", parameter, gradient, states, HYPERPARAMETERS._replace(skip_zeros=True))
    assert torch.equal(parameter[::2], before[::2])
    assert (parameter[1::2] != before[1::2]).all()
