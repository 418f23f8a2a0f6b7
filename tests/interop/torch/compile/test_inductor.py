"""torch.compile() on emulated devices."""

from __future__ import annotations

import warnings

import pytest

import forebay

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch import nn  # noqa: E402 -- as above

from forebay.errors import ForebayWarning  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above

# Deprecated functions that PyTorch itself calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
BACKENDS = [{"backend": "eager"}, {"backend": "aot_eager"}, {"backend": "inductor"}, {"mode": "reduce-overhead"}]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).cuda()


def step(function, parameters):
    """Return the loss and the gradients; without values their shapes."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4).cuda()
    loss = function(x).square().sum()
    loss.backward()
    return [loss.detach(), *(each.grad for each in parameters)]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForebayWarning)
        yield


@pytest.mark.parametrize("options", BACKENDS, ids=str)
def test_compiled_model_trains_as_the_original(emulated, options):
    plain, compiled = model(), model()
    expected = step(plain, plain.parameters())
    found = step(torch.compile(compiled, **options), compiled.parameters())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("options", BACKENDS, ids=str)
def test_memory_does_not_depend_on_the_mode(options):
    peaks = []
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="h100"), patch(mode):
            plain = model()
            found = step(torch.compile(plain, fullgraph=True, **options), plain.parameters())
            assert all(each.is_cuda for each in found)
            peaks.append(torch.cuda.max_memory_allocated())
            del plain, found
    assert peaks[0] == peaks[1] > 0


def test_graphs_of_inductor_run_uncompiled_with_a_warning(emulated):
    compiled = torch.compile(lambda x: x * 2)
    with pytest.warns(ForebayWarning, match=r"torch\.compile\(\) cannot compile for emulated devices"):
        assert compiled(torch.ones(2, device="cuda")).tolist() == [2, 2]
