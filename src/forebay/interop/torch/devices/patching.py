"""`patch()`: PyTorch's CUDA devices are forebay's emulated ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from typing import Any

import torch
import torch.autograd.graph
import torch.cuda
import torch.cuda.graphs
import torch.cuda.memory
import torch.cuda.nvtx
import torch.cuda.profiler
import torch.cuda.random
import torch.cuda.streams
import torch.cuda.tunable
import torch.utils._device

import forebay.accelerator
import forebay.cuda
import forebay.cuda.graphs
import forebay.cuda.memory
import forebay.cuda.nvtx
import forebay.cuda.profiler
import forebay.cuda.streams
import forebay.cuda.tunable
from forebay._base.device_spec import Device
from forebay.errors import WrongState
from forebay.interop.torch.assumptions import endless_loops
from forebay.interop.torch.compile import dynamo
from forebay.interop.torch.compile.inductor import replace_compilation
from forebay.interop.torch.devices import host_values, values
from forebay.interop.torch.devices.accelerator_functions import replace_accelerator_functions
from forebay.interop.torch.devices.build_information import describe_build, replace_build_information
from forebay.interop.torch.devices.card_questions import note_questions
from forebay.interop.torch.devices.cudnn import replace_cudnn
from forebay.interop.torch.devices.device_communication import replace_communication
from forebay.interop.torch.devices.driver_queries import replace_queries
from forebay.interop.torch.devices.ended_tensors import EndedTensors
from forebay.interop.torch.devices.generators import EmulatedGenerator, GeneratorFactory, to_bytes, to_tensor
from forebay.interop.torch.devices.gpu_trace import replace_gpu_trace
from forebay.interop.torch.devices.graph_capture import TorchGraph
from forebay.interop.torch.devices.host_methods import replace_host_methods
from forebay.interop.torch.devices.legacy_types import replace_legacy_types
from forebay.interop.torch.devices.profiling import replace_profiler
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.devices.reducer_timers import replace_reducer_timers
from forebay.interop.torch.devices.saved_files import replace_saving
from forebay.interop.torch.devices.shared_storages import replace_sharing
from forebay.interop.torch.devices.stream_types import replace_stream_types
from forebay.interop.torch.devices.streams_of_engine import connect_streams, disconnect_streams
from forebay.interop.torch.devices.tensor_methods import replace_methods
from forebay.interop.torch.devices.torch_internals import CudaInterfaces
from forebay.interop.torch.extensions.bitsandbytes_library import replace_bitsandbytes
from forebay.interop.torch.extensions.cuda_extensions import refuse_cuda_extensions
from forebay.interop.torch.extensions.stand_in_modules import install_stand_ins
from forebay.interop.torch.kernels import workspaces
from forebay.interop.torch.kernels.attention_choice import replace_questions
from forebay.interop.torch.kernels.collectives import replace_process_groups
from forebay.interop.torch.kernels.registration import Kernels
from forebay.interop.torch.kernels.special import COMPOSITES, special_kernels
from forebay.interop.torch.kernels.synchronized_normalization import replace_synchronization
from forebay.interop.torch.processes import assumed_values
from forebay.interop.torch.program_versions import CUDA_VERSION
from forebay.interop.torch.triton.kernels import replace_kernels
from forebay.interop.torch.triton.target import replace_target
from forebay.runtime.lifecycle.emulation import observe_ends
from forebay.runtime.random.generator import default_generator

__all__ = ["Patch", "is_patched", "patch", "set_default"]

_lock = threading.Lock()
_patched = False
# Names that stay PyTorch's: above all the types of its tensors.
_SKIPPED = (
    "OutOfMemoryError", "AcceleratorError", "amp", "get_rng_state", "get_rng_state_all", "set_rng_state",
    "set_rng_state_all", "_get_generator", "_CudaBase", "_lazy_new", "graph", "make_graphed_callables",
    *(name for name in dir(torch.cuda) if name.endswith(("Storage", "Tensor"))),
)  # fmt: skip


def is_patched() -> bool:
    """Return True while PyTorch's CUDA devices are emulated ones."""
    return _patched


class Patch:
    """A replacement of PyTorch's CUDA devices by emulated ones, which runs from `start` to `stop`.

    Parameters
    ----------
    mode : {"compute", "shapes", "strict"}, default "compute"
        As for `patch`.
    """

    def __init__(self, mode: values.Mode = "compute") -> None:
        self._mode = mode
        self._undo = ExitStack()

    def start(self) -> None:
        """Let PyTorch use the emulated devices.

        Raises
        ------
        WrongState
            If PyTorch uses them already, or no CUDA device is emulated.
        Unsupported
            If this version of PyTorch lacks the interfaces.
        """
        global _patched  # noqa: PLW0603 -- guarded by the lock
        with _lock:
            if _patched:
                raise WrongState("patch() is active already: leave its with block first")
            if not forebay.cuda.is_available():
                raise WrongState("there is no CUDA device: call forebay.emulate('cuda') before patch()")
            interfaces = CudaInterfaces()  # Note [Patched interfaces of PyTorch]
            names = NameReplacements()
            kernels = Kernels(special_kernels(), values.device, COMPOSITES)
            values.set_mode(self._mode)
            assumed_values.clear()
            endless_loops.clear()
            undo = self._undo
            try:
                undo.callback(_set_unpatched)
                _patched = True
                undo.callback(dynamo.forget_compiled)
                undo.callback(_end, interfaces)
                undo.callback(workspaces.clear)
                undo.callback(kernels.remove)
                undo.callback(names.restore)
                _ended.stop()  # after what may fail, and then starts it again
                described = describe_build()
                connect_streams()
                interfaces.install()
                kernels.register()
                replace_cudnn(names, undo)  # whose version() then notes the driver
                _replace_names(names, undo)
                replace_compilation(names, undo)
                kernels.replace_loading(names)
                replace_build_information(names, described)
                replace_gpu_trace(names, undo)
                replace_reducer_timers(undo)
                replace_bitsandbytes(undo)
                install_stand_ins(undo)  # Note [Stand-ins of packages]
                replace_target(undo)  # Note [Triton's driver]
                replace_kernels(undo)  # Note [Launches of kernels]
                refuse_cuda_extensions(undo)  # Note [CUDA extensions are not compiled]
                dynamo.forget_functions()
                undo.callback(_ended.stop)
                _ended.refuse_methods()
                undo.callback(observe_ends(_ended.end_kind))
            except BaseException:
                undo.close()
                raise

    def stop(self) -> None:
        """Restore PyTorch. Calling it again does nothing."""
        self._undo.close()


class _PatchedBlock(ContextDecorator):
    """The context manager of `patch`. Unlike a generator, it does nothing when it is deleted, as at the exit."""

    def __init__(self, mode: values.Mode) -> None:
        self._mode = mode
        self._running: list[Patch] = []

    def __enter__(self) -> None:
        _stop_default()
        self._running.append(running := Patch(self._mode))
        try:
            running.start()
        except BaseException:
            self._running.pop().stop()
            raise

    def __exit__(self, *_: object) -> None:
        host_values.make_all_real()
        self._running.pop().stop()


def patch(mode: values.Mode = "compute") -> AbstractContextManager[None]:
    """Let PyTorch use forebay's emulated CUDA devices.

    Affects the whole process. Call it before the program creates CUDA tensors.

    Parameters
    ----------
    mode : {"compute", "shapes", "strict"}, default "compute"
        Compute the values on the CPU, or compute only shapes: then no memory is used, and a program that reads a value
        gets an assumed one ("shapes"), or raises DataDependent with the line ("strict").

    Returns
    -------
    context manager
        PyTorch is restored at the end of the `with` block. Tensors of the emulated devices raise WrongState when they
        are used then. A patch that is entered without a block lasts until the process ends.

    Raises
    ------
    WrongState
        If it is active already, or no CUDA device is emulated.
    Unsupported
        If this version of PyTorch lacks the interfaces.

    Examples
    --------
    >>> import forebay, forebay.interop.torch
    >>> import torch  # doctest: +SKIP
    >>> with forebay.emulate("cuda", profile="h100"), forebay.interop.torch.patch():  # doctest: +SKIP
    ...     weights = torch.ones(1000, 1000, device="cuda")
    ...     print(weights.device, torch.cuda.memory_allocated())
    cuda:0 4000256
    """
    return _PatchedBlock(mode)


_stop: Callable[[], None] | None = None  # ends a patch that the program has not made itself


def set_default(stop: Callable[[], None]) -> None:
    """Let `patch` replace the present patch, which `stop` ends, instead of raising WrongState."""
    global _stop  # noqa: PLW0603 -- one patch per process
    _stop = stop


def _stop_default() -> None:
    global _stop
    if _stop is not None:
        stop, _stop = _stop, None
        stop()


_ended = EndedTensors()


def _end(interfaces: CudaInterfaces) -> None:
    """Remove the C++ interfaces, and refuse the use of tensors that are alive."""
    interfaces.remove(keep_guard=_ended.begin())
    disconnect_streams()


def _set_unpatched() -> None:
    global _patched  # noqa: PLW0603 -- as above
    _patched = False


def _replace_names(names: NameReplacements, undo: ExitStack) -> None:
    torch.utils._device._device_constructors()  # it keeps the factories, which must be PyTorch's own
    for theirs, ours in (
        (torch.cuda, forebay.cuda),
        (torch.cuda.memory, forebay.cuda.memory),
        (torch.cuda.streams, forebay.cuda.streams),
        (torch.cuda.graphs, forebay.cuda.graphs),
        (torch.cuda.random, forebay.cuda.random),
        (torch.cuda.nvtx, forebay.cuda.nvtx),
        (torch.cuda.profiler, forebay.cuda.profiler),
        (torch.cuda.tunable, forebay.cuda.tunable),
        (torch.accelerator, forebay.accelerator),
    ):
        names.replace_module(theirs, ours, _SKIPPED)
    for module in (torch.cuda, torch.cuda.random):
        for name, function in _random_functions().items():
            names.replace(module, name, function)
    for module in (torch, torch.cuda):
        names.replace(module, "AcceleratorError", forebay.AcceleratorError)
    names.replace(torch, "Generator", GeneratorFactory)
    devices = (Device("cuda", index) for index in range(forebay.cuda.device_count()))
    generators = tuple(EmulatedGenerator.of(default_generator(device)) for device in devices)
    names.replace(torch.cuda, "default_generators", generators)
    names.replace(torch.cuda.graphs.graph, "default_capture_stream", None)  # of an emulation before
    names.replace(torch.cuda, "_initialized", True)  # torch.utils.checkpoint reads it, for instance
    for module in (torch.cuda, torch.cuda.graphs):
        names.replace(module, "CUDAGraph", TorchGraph)  # Note [Captured operators run once]
    names.replace(torch._C, "_has_cuda", True)
    if torch.version.cuda is None:  # a build for the CPU
        names.replace(torch.version, "cuda", CUDA_VERSION)
    for name in dir(forebay._C):
        if name.startswith(("_cuda", "_host_")):
            names.replace(torch._C, name, getattr(forebay._C, name))
    names.replace(torch._C, "_cuda_clearCublasWorkspaces", workspaces.clear)
    run_backward = torch.autograd.graph._engine_run_backward
    for module in (torch.autograd.graph, torch.autograd):
        names.replace(module, "_engine_run_backward", _in_one_thread(run_backward))
    replace_accelerator_functions(names)
    replace_queries(names)
    replace_methods(names)
    replace_host_methods(names)
    replace_communication(names)
    replace_stream_types(names, undo)
    replace_profiler(names)
    replace_legacy_types(names)
    replace_process_groups(names)
    replace_questions(names)
    replace_synchronization(names)
    replace_saving(names)
    replace_sharing(names)  # Note [Sent storages]
    note_questions(names)  # last: about the functions that are left


def _in_one_thread(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs the backward pass in the calling thread: the engine has no thread for the devices."""

    def run(*args: Any, **keywords: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **keywords)

    return run


def _random_functions() -> dict[str, Callable[..., Any]]:
    def get_rng_state(device: Any = "cuda") -> torch.Tensor:
        return to_tensor(forebay.cuda.get_rng_state(_device_argument(device)))

    def get_rng_state_all() -> list[torch.Tensor]:
        return [to_tensor(each) for each in forebay.cuda.get_rng_state_all()]

    def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        forebay.cuda.set_rng_state(to_bytes(new_state), _device_argument(device))

    def set_rng_state_all(new_states: Any) -> None:
        forebay.cuda.set_rng_state_all([to_bytes(each) for each in new_states])

    functions = (get_rng_state, get_rng_state_all, set_rng_state, set_rng_state_all)
    return {each.__name__: each for each in functions}


def _device_argument(device: Any) -> Any:
    return str(device) if isinstance(device, torch.device) else device
