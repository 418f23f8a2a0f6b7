"""Values taken for exact equal those of the CPU, and integers lie in the assumed ranges."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from support.operator_samples import samples_of  # noqa: E402 -- needs torch
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402 -- after the check

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.assumptions.elements import assumed  # noqa: E402 -- needs torch
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above
from forebay.interop.torch.kernels import known_memory, known_values, recorded_calls  # noqa: E402 -- as above

SAMPLES = 3  # of each operator and type
SLOW = ("linalg", "svd", "lu", "pca", "cholesky", "lstsq", "geqrf", "ormqr", "fft", "stft", "nn.functional.scaled_dot")
OF_STORAGE = ("as_strided",)  # it reads what is not copied to the device
RANDOM = ("rand", "normal", "bernoulli", "dropout", "multinomial", "cauchy", "exponential", "geometric", "uniform",
          "empty", "rrelu", "poisson", "new_empty")  # fmt: skip
DTYPES = (torch.float32, torch.int64, torch.bool)


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for one in value for each in tensors(one)] if isinstance(value, (list, tuple)) else []


def convert(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(convert(each, change) for each in value) if type(value) in (list, tuple) else value
    return value


@cache  # making the arguments takes longer than all else here
def samples(dtype):
    """Return calls of all operators as the CPU computes them: the operator and its arguments, which none changes."""
    found = []
    for operator in op_db:
        if operator.name.startswith((*SLOW, *RANDOM, *OF_STORAGE)) or dtype not in operator.supported_dtypes("cpu"):
            continue
        with suppress(Exception):
            found += [
                (operator, (each.input, *each.args), each.kwargs) for each in samples_of(operator, dtype, SAMPLES)
            ]
    return found


def filled(number):
    """Return a function that fills a tensor of values with a number; indices stay as they are."""

    def change(tensor):
        dense = tensor.layout is torch.strided and not tensor.is_nested
        return torch.full_like(tensor.detach(), number) if dense and tensor.numel() else tensor.detach()

    return change


@pytest.fixture
def without_small_values(monkeypatch, dtype):
    """Rules decide everything: nothing is kept as values, however small."""
    samples(dtype)  # before the emulation, which takes part in each operator of the CPU
    for module in (known_values, recorded_calls):
        monkeypatch.setattr(module, "captured", lambda *_: None)
    for module in (known_values, known_memory):
        monkeypatch.setattr(module, "SMALL", -1)
    with forebay.emulate("cuda", profile="h100"), patch("strict"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def with_records(monkeypatch, dtype):
    """All values are computed when they are read, however small."""
    samples(dtype)  # as above
    for module in (known_values, known_memory):
        monkeypatch.setattr(module, "SMALL", -1)
    with forebay.emulate("cuda", profile="h100"), patch("strict"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run_both(operator, arguments, keywords):
    """Return the results of the CPU and of the device, or nothing if one refuses the arguments."""
    with torch.no_grad():
        try:
            expected = operator(*arguments, **keywords)
            given = convert(tuple(arguments), lambda tensor: tensor.cuda())
            named = {key: convert(each, lambda tensor: tensor.cuda()) for key, each in keywords.items()}
            return tensors(expected), tensors(operator(*given, **named))
        except Exception:  # noqa: BLE001 -- of samples that another test is about
            return [], []


def compare_known(operator, arguments, keywords):
    """Compare the results that can be read with those of the CPU, and return their number."""
    compared = 0
    for expected, found in zip(*run_both(operator, arguments, keywords), strict=False):
        if not found.is_cuda or found.layout is not torch.strided or found.is_nested or not found.numel():
            continue
        try:
            read = found.cpu()
        except DataDependent:
            continue
        compared += 1
        torch.testing.assert_close(read, expected, equal_nan=True, rtol=1e-3, atol=1e-5, msg=operator.name)
    return compared


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "dtype"),
    [(1, torch.float32), (3, torch.float32), (1, torch.int64), (3, torch.int64), (True, torch.bool)],
)
def test_what_is_exact_is_what_the_cpu_computes(without_small_values, dtype, number):
    compared = 0
    for operator, given, keywords in samples(dtype):
        compared += compare_known(operator, convert(given, filled(number)), keywords)
    assert compared > 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_integers_are_in_the_assumed_range(without_small_values, dtype):
    compared = 0
    for operator, arguments, keywords in samples(dtype):
        for expected, found in zip(*run_both(operator, arguments, keywords), strict=False):
            if not found.is_cuda or found.layout is not torch.strided or not found.numel() or found.is_nested:
                continue
            elements = assumed(found)
            if elements.low is None or elements.high is None:
                continue
            compared += 1
            assert elements.low <= int(expected.min()), (operator.name, elements)
            assert int(expected.max()) <= elements.high, (operator.name, elements)
    assert compared > 100


ERRORS = {
    "dimension of argmax": lambda x: x.argmax(5),
    "dimension of sort": lambda x: x.sort(dim=-9),
    "dimension of unique": lambda x: x.unique(dim=4),
    "shape of a mask": lambda x: x[torch.ones(3, dtype=torch.bool, device=x.device)],
    "bins of a matrix": lambda x: x.long().bincount(),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_pytorchs(with_assumptions, name):
    with pytest.raises(Exception) as expected:  # noqa: PT011 -- whichever PyTorch raises on the CPU
        ERRORS[name](torch.rand(4, 5))
    with pytest.raises((type(expected.value), DataDependent)) as found:
        ERRORS[name](torch.randn(4, 5, device="cuda"))
    if not isinstance(found.value, DataDependent):
        assert str(found.value).splitlines()[0][:40] == str(expected.value).splitlines()[0][:40]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_recorded_calls_are_what_the_cpu_computes(with_records, dtype):
    compared = 0
    for operator, arguments, keywords in samples(dtype):
        compared += compare_known(operator, arguments, keywords)
    assert compared > 100
