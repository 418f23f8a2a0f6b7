"""torch.compile() on emulated devices."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

import forebay

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch import nn  # noqa: E402 -- as above

from forebay.errors import ForebayWarning  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.compile import inductor  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above
from forebay.interop.torch.triton import target  # noqa: E402 -- as above

# Deprecated functions that PyTorch itself calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Inductor needs Triton")


def children_of_this_process():
    """Return the processes that this one has started."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


@pytest.fixture
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


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


@pytest.mark.parametrize("options", BACKENDS if find_spec("triton") is None else BACKENDS[:2], ids=str)
def test_memory_does_not_depend_on_the_mode_unless_inductor_plans_it(options):
    peaks = []
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="h100"), patch(mode):
            plain = model()
            found = step(torch.compile(plain, fullgraph=True, **options), plain.parameters())
            assert all(each.is_cuda for each in found)
            peaks.append(torch.cuda.max_memory_allocated())
            del plain, found
    assert peaks[0] == peaks[1] > 0


@pytest.mark.parametrize(
    ("installed", "text"),
    [
        (False, r"needs Triton to compile for emulated cards: pip install triton"),
        (True, r"computes the values of a graph"),
    ],
)
def test_graphs_of_inductor_run_uncompiled_with_a_warning(emulated, monkeypatch, installed, text):
    monkeypatch.setattr(inductor, "find_spec", lambda _: object() if installed else None)
    compiled = torch.compile(lambda x: x * 2)
    with pytest.warns(ForebayWarning, match=text):
        assert compiled(torch.ones(2, device="cuda")).tolist() == [2, 2]


def test_graphs_of_the_cpu_are_compiled_by_pytorch(emulated, monkeypatch):
    seen = []
    monkeypatch.setattr(inductor, "find_spec", seen.append)
    assert not inductor._compiler(lambda *_, **__: None, None)(None, torch.fx.symbolic_trace(nn.ReLU()), [])
    assert not seen


@needs_triton
def test_compiled_graph_allocates_its_plan(own_caches):
    """A chain of elementwise operators is one kernel, with one result and no temporary."""
    seen = []

    def run(x):
        return (x * 2).sin().exp() + x

    with forebay.emulate("cuda", profile="h100"), patch("shapes"), target.observed(lambda each: seen.append(each.grid)):
        x = torch.ones(1 << 20, device="cuda")
        torch.compile(run, fullgraph=True)(x)
        assert torch.cuda.max_memory_allocated() == 2 * x.nbytes
        torch.cuda.reset_peak_memory_stats()
        run(x)
        assert torch.cuda.max_memory_allocated() == 3 * x.nbytes
    assert [len(each) for each in seen] == [3]


@needs_triton
def test_compiler_starts_no_process_writes_into_own_folders_and_is_restored(own_caches):
    from torch._inductor import config

    before = config.compile_threads, os.environ.get("TRITON_CACHE_DIR"), torch._C._dynamo.guards._empty_strided_cuda
    children = children_of_this_process()
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        torch.compile(lambda x: x.cos() + 1)(torch.ones(64, device="cuda"))
        assert config.compile_threads == 1
        assert children_of_this_process() == children
    folder = own_caches / "forebay"
    assert any((folder / "inductor").rglob("*.py"))
    assert any((folder / "triton").rglob("*.llir"))
    assert not any((folder / "triton").rglob("*.ptx"))
    after = config.compile_threads, os.environ.get("TRITON_CACHE_DIR"), torch._C._dynamo.guards._empty_strided_cuda
    assert after == before


@needs_triton
@pytest.mark.parametrize(
    ("mode", "text"),
    [("max-autotune", "does not measure on emulated cards"), ("reduce-overhead", "records no CUDA graphs")],
)
def test_modes_that_measure_or_capture_take_the_plain_choice_and_say_so(own_caches, mode, text):
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        compiled = torch.compile(lambda x: (x @ x).relu(), mode=mode)
        x = torch.ones(64, 64, device="cuda")
        with pytest.warns(ForebayWarning, match=text):
            assert compiled(x).shape == (64, 64)


@needs_triton
def test_card_decides_what_is_compiled(own_caches):
    targets = []
    for profile in ("a100", "h100"):
        with (
            forebay.emulate("cuda", profile=profile),
            patch("shapes"),
            target.observed(lambda each: targets.append(each.metadata.target.arch)),
        ):
            torch.compile(lambda x: x.sin() + 1)(torch.ones(1 << 16, device="cuda"))
    assert targets == [80, 90]


@needs_triton
def test_values_that_compiled_code_writes_are_unknown(own_caches):
    with forebay.emulate("cuda", profile="h100"), patch("strict"):
        x, y = torch.zeros(1, device="cuda"), torch.ones(1, device="cuda")
        torch.compile(lambda a, b: a.add_(b))(x, y)
        assert y.item() == 1
        with pytest.raises(DataDependent):
            x.item()
