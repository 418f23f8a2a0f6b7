"""Inductor for emulated cards: the plan of the memory of a compiled graph, as on the card.

# Note [Compiled graphs on emulated cards]
Inductor itself compiles the graph for the card of the profile, and the code that it writes runs: each buffer that this
code allocates, reuses and frees is one of the emulated allocator, in its order. Only four things are replaced. Triton's
driver answers for the card and hands launches over (Note [Triton's driver]). The function that allocates buffers calls
CUDA directly, in C++. What Inductor would measure, it does not: it takes the first choice, as times of this machine say
nothing about the card. And it starts no worker processes, as these have no emulated devices. The answer is that of a
warm cache: on a GPU, the first run also allocates for measurements. Rejected: a backend of our own, which would choose
other fusions than Inductor.
Test: tests/interop/torch/compile/test_inductor.py::test_compiled_graph_allocates_its_plan

Triton is no requirement of PyTorch's builds for the CPU. Without it, graphs run operator by operator instead, as with
the backend "aot_eager": what the backward pass keeps is chosen as by Inductor, but operators are not fused.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from forebay.backends.common.kernel_cache import cache_folder
from forebay.errors import ForebayWarning
from forebay.interop.torch.compile.dynamo import follow_devices, skip_own_files
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import memory_of
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.triton.target import Launch, observed

__all__ = ["replace_compilation"]

_CONFIG = "torch._inductor.config"
_SETTINGS = {  # while devices are emulated
    "compile_threads": 1,  # Note [Compiled graphs on emulated cards]
    "use_static_cuda_launcher": False,  # it needs the driver of CUDA, in C++
    "fx_graph_cache": False,
    "autotune_local_cache": False,
}
_UNMEASURED = {  # choices that Inductor would measure, as it makes them without
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
}
_GRAPHS = "triton.cudagraphs"
_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_ANSWERS = (  # modules that keep what they have asked about the card
    "torch.utils._triton",
    "torch._inductor.utils",
    "torch._inductor.codecache",
    "torch._inductor.runtime.hints",
    "torch._inductor.runtime.triton_helpers",
)
_NO_TRITON = (
    "torch.compile() needs Triton to compile for emulated cards: pip install triton. Without it the graph runs "
    "operator by operator, as with backend='aot_eager': its temporaries take more memory than those of compiled code"
)
_NO_VALUES = (
    "torch.compile() computes the values of a graph operator by operator, as with backend='aot_eager': its temporaries "
    "take more memory than those of compiled code. Compute only shapes for its plan (--shapes-only, mode='shapes')"
)


def replace_compilation(names: NameReplacements, undo: ExitStack) -> None:
    """Let `torch.compile` compile programs for emulated devices. `undo` receives what ends it."""
    exchange = torch.cuda._maybe_exchange_device

    def maybe_exchange(device: int) -> int:  # Dynamo needs another function than torch.cuda._exchange_device
        return int(exchange(device))

    names.replace(torch.cuda, "_maybe_exchange_device", maybe_exchange)
    names.replace(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided)
    skip_own_files(undo)
    inductor = torch._TorchCompileInductorWrapper
    names.replace(inductor, "__call__", _compiler(inductor.__call__, _Settings(undo)))


def _empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocate a buffer of a compiled graph."""
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _compiler(compile_graph: Callable[..., Any], settings: _Settings) -> Callable[..., Any]:
    """Return Inductor's entry."""

    @functools.wraps(compile_graph)
    def run(self: Any, model_: Any, inputs_: Any, **keywords: Any) -> Any:
        if not any(each.is_cuda for each in _tensors(model_, inputs_)):
            return compile_graph(self, model_, inputs_, **keywords)
        problem = _NO_TRITON if find_spec("triton") is None else _NO_VALUES if values.is_computed() else ""
        if problem:
            warnings.warn(problem, ForebayWarning, stacklevel=2)
            return torch._dynamo.lookup_backend("aot_eager")(model_, inputs_)
        settings.apply()
        wanted = {**self.config, **(keywords.pop("config_patches", None) or {})}
        return compile_graph(self, model_, inputs_, config_patches=_without_measurements(wanted), **keywords)

    return run


def _without_measurements(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a program without those for which Inductor would measure, or record graphs of CUDA."""
    changed = {name: value for name, value in _UNMEASURED.items() if wanted.get(name, value) != value}
    if changed:
        warnings.warn(
            f"torch.compile() does not measure on emulated cards: {', '.join(changed)} takes the choice that Inductor "
            "makes without a measurement, and the measured one may need other memory",
            ForebayWarning,
            stacklevel=3,
        )
    if wanted.get(_GRAPHS):
        changed[_GRAPHS] = False
        warnings.warn(
            "torch.compile() records no CUDA graphs on emulated cards: on a GPU, mode='reduce-overhead' keeps the "
            "memory of each recorded graph, its inputs included, in a pool of its own, and needs more",
            ForebayWarning,
            stacklevel=3,
        )
    return {**wanted, **changed}


class _Settings:
    """The state of Inductor and Triton for emulated cards, from the first graph to the end of the patch."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo
        self._applied = False

    def apply(self) -> None:
        """Prepare Inductor, which is imported. Calling it again does nothing."""
        if self._applied:
            return
        self._applied = True
        undo = self._undo
        _set_folders(undo)
        config: Any = import_module(_CONFIG)
        undo.enter_context(config.patch(_SETTINGS))
        undo.enter_context(observed(_forget_values))
        undo.enter_context(import_module("torch._functorch.config").patch(enable_autograd_cache=False))
        follow_devices()
        _forget_answers()
        undo.callback(_forget_answers)
        names = NameReplacements()
        undo.callback(names.restore)
        _replace_measurements(names)


def _forget_values(launch: Launch) -> None:
    """Forget the values that a kernel may have written. Inductor names arguments that are only read."""
    for name, each in zip(getattr(launch.source.fn, "arg_names", ()), launch.arguments, strict=False):
        if isinstance(each, torch.Tensor) and each.is_cuda and not name.startswith("in_ptr"):
            memory = memory_of(each)
            memory.known = memory.assumed = None


def _set_folders(undo: ExitStack) -> None:
    """Let Inductor and Triton write into folders of forebay: what they keep there belongs to no GPU."""
    home = cache_folder().parent
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    if not os.access(home, os.W_OK):
        home = Path(undo.enter_context(TemporaryDirectory(prefix="forebay-")))
    for name, folder in _FOLDERS.items():
        before = os.environ.get(name)
        os.environ[name] = str(home / folder)
        undo.callback(_set_variable, name, before)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _replace_measurements(names: NameReplacements) -> None:
    heuristics: Any = import_module("torch._inductor.runtime.triton_heuristics")
    benchmarking: Any = import_module("torch._inductor.runtime.benchmarking")
    padding: Any = import_module("torch._inductor.fx_passes.pad_mm")
    names.replace(heuristics.CachingAutotuner, "bench", _same_time)
    for name in ("TritonBenchmarker", "InductorBenchmarker"):
        names.replace(getattr(benchmarking, name), "benchmark_gpu", _same_time)
    names.replace(padding, "should_pad_bench", _no_padding)


def _same_time(*_: object, **__: object) -> float:
    """Return the time of a kernel, the same for each choice, so that the first one is taken."""
    return 1.0


def _no_padding(*_: object, **__: object) -> bool:
    """Return False: a product is not padded unless a measurement says so."""
    return False


def _forget_answers() -> None:
    """Forget what PyTorch's compiler has asked about cards, as it is asked again for others."""
    for name in _ANSWERS:
        module = sys.modules.get(name)
        for value in [] if module is None else [*vars(module).values()]:
            method = getattr(value, "create", None) if isinstance(value, type) else None  # of DeviceProperties
            for each in (value, getattr(method, "__func__", None)):
                if isinstance(each, functools._lru_cache_wrapper):
                    each.cache_clear()
    interface: Any = sys.modules.get("torch._dynamo.device_interface")
    if interface is not None:
        interface.caching_worker_device_properties.clear()


def _tensors(model: Any, inputs: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors of a graph: its inputs, parameters and results of its operators."""
    yield from (each for each in inputs if isinstance(each, torch.Tensor))
    yield from model.parameters()
    yield from model.buffers()
    for node in model.graph.nodes:
        if isinstance(made := node.meta.get("example_value"), torch.Tensor):
            yield made
