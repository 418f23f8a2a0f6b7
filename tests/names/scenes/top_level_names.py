"""Names of `torch` besides devices, streams and tensors: limits of types, modes, settings, builds, modules."""

from __future__ import annotations

import contextlib
import os
import threading
import types

from support.on_oracle import outcome

DIFFERS = {
    "process_groups": "there are no process groups, as in a build without them",
    "cudnn_is_missing": "there is no cuDNN",
}


def _limits(torch_like, name):
    found = torch_like.finfo(getattr(torch_like, name))
    numbers = [found.eps, found.max, found.min, found.tiny, found.smallest_normal, found.resolution]
    return repr(found), found.bits, found.dtype, numbers


def limits_of_floating_point_types(cuda, torch_like):
    same = torch_like.finfo(torch_like.float) == torch_like.finfo(torch_like.float32), torch_like.finfo().bits
    return [_limits(torch_like, name) for name in ("half", "float", "double", "complex64", "complex128")], same


def limits_of_integer_types(cuda, torch_like):
    names = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    found = [torch_like.iinfo(getattr(torch_like, name)) for name in names]
    same = torch_like.iinfo(torch_like.long) == found[3], found[0] == found[1], found[0] == found[0]
    return [[repr(each), each.bits, each.max, each.min, each.dtype] for each in found], same


def limits_of_other_types_are_refused(cuda, torch_like):
    finfo, iinfo = torch_like.finfo, torch_like.iinfo
    wrong = [
        (finfo, torch_like.int8),
        (finfo, 3),
        (finfo, "float32"),
        (iinfo, torch_like.float),
        (iinfo, torch_like.bool),
    ]
    return [outcome(cuda, function, argument) for function, argument in wrong]


def _modes(torch_like):
    return torch_like.is_grad_enabled(), torch_like.is_inference_mode_enabled()


def modes_of_gradients(cuda, torch_like):
    seen = [_modes(torch_like)]
    with torch_like.no_grad():
        seen.append(_modes(torch_like))
        with torch_like.enable_grad():
            seen.append(_modes(torch_like))
        with torch_like.inference_mode():
            seen.append(_modes(torch_like))
        with torch_like.inference_mode(False):
            seen.append(_modes(torch_like))
        seen.append(_modes(torch_like))
    with contextlib.suppress(KeyError), torch_like.inference_mode():
        {}["missing"]
    seen.append(_modes(torch_like))
    twice = torch_like.no_grad()
    with twice, twice:
        pass
    seen.append(_modes(torch_like))
    torch_like.set_grad_enabled(True)
    return seen


def gradients_are_enabled_by_a_function(cuda, torch_like):
    seen = []
    switch = torch_like.set_grad_enabled(False)
    seen.append(_modes(torch_like))
    torch_like.set_grad_enabled(True)
    with switch:
        seen.append(_modes(torch_like))
    seen.append(_modes(torch_like))
    with torch_like.set_grad_enabled(False):
        seen.append(_modes(torch_like))
    seen.append(_modes(torch_like))
    decorated = torch_like.set_grad_enabled(False)(lambda: _modes(torch_like))
    return seen, _modes(torch_like), decorated(), _modes(torch_like), outcome(cuda, torch_like.set_grad_enabled, 1)


def modes_decorate_functions_and_generators(cuda, torch_like):
    decorators = [torch_like.no_grad(), torch_like.no_grad, torch_like.inference_mode(), torch_like.inference_mode]

    def function():
        return _modes(torch_like)

    def generator():
        received = yield _modes(torch_like)
        try:
            yield received, _modes(torch_like)
        except KeyError:
            yield "caught", _modes(torch_like)
        return "end"

    rows = []
    for decorator in decorators:
        running = decorator(generator)()
        steps = [next(running), _modes(torch_like), running.send("sent"), running.throw(KeyError()), _modes(torch_like)]
        try:
            next(running)
        except StopIteration as end:
            steps.append(end.value)
        rows.append([decorator(function)(), decorator(function).__name__, steps])
    return rows, _modes(torch_like)


def modes_belong_to_a_thread(cuda, torch_like):
    seen = []
    with torch_like.no_grad():
        thread = threading.Thread(target=lambda: seen.append(_modes(torch_like)))
        thread.start()
        thread.join()
    return seen


def precision_of_products_is_stored(cuda, torch_like):
    seen, products = [], torch_like.backends.cuda.matmul
    for precision in ("highest", "high", "medium", "highest"):
        torch_like.set_float32_matmul_precision(precision)
        seen.append([torch_like.get_float32_matmul_precision(), products.allow_tf32])
    for allowed in (True, False):
        products.allow_tf32 = allowed
        seen.append([torch_like.get_float32_matmul_precision(), products.allow_tf32])
    return seen


def settings_of_cudnn_are_stored(cuda, torch_like):
    cudnn = torch_like.backends.cudnn
    names = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
    before = [getattr(cudnn, name) for name in names]
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = True, True, False
    after = [getattr(cudnn, name) for name in names]
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = False, False, True
    return before, after


def cudnn_is_missing(cuda, torch_like):
    return torch_like.backends.cudnn.is_available(), torch_like.backends.cudnn.version() is None


def builds(cuda, torch_like):
    backends, version = torch_like.backends, torch_like.version
    versions = version.cuda, version.hip, version.rocm, version.xpu, version.debug
    return (
        (backends.cuda.is_built(), backends.mps.is_built(), backends.mps.is_available()),
        (versions, version.__version__.split("+")[0]),
        (torch_like.xpu.is_available(), torch_like.xpu.device_count(), torch_like.xpu.is_initialized()),
    )


def process_groups(cuda, torch_like):
    return torch_like.distributed.is_available()


def without_a_process_group(cuda, torch_like):
    distributed = torch_like.distributed
    os.environ.pop("TORCHELASTIC_RUN_ID", None)
    found = distributed.is_initialized(), distributed.is_torchelastic_launched()
    return found, outcome(cuda, distributed.get_rank), outcome(cuda, distributed.get_world_size)


def index_of_a_device_of_any_kind(cuda, torch_like):
    index, device = torch_like._utils._get_device_index, torch_like.device
    arguments = [(0,), (-1,), ("cuda:1",), ("mps:0",), (device("cuda", 1),), (device("cuda"),), (device("cuda"), True)]
    arguments += [(None,), (None, True), ("cpu",), ("cpu", True), ("cpu", False, True), (device("cpu"), True, True)]
    arguments += [("cuda0",), (1.5,), ("mps",)]
    with cuda.device(1):
        return [outcome(cuda, index, *each) for each in arguments]


def module_of_a_device(cuda, torch_like):
    utils, module = torch_like._utils, torch_like.get_device_module
    functions = [(utils._get_device_module, each) for each in ("cuda", "mps", "mtia", "xpu", "nonsense", "npu")]
    functions += [(module, each) for each in (None, "cuda", "cuda:1", torch_like.device("mps"))]
    rows = [outcome(cuda, lambda call=call, each=each: call(each).__name__) for call, each in functions]
    return utils._get_available_device_type(), rows, module() is cuda


def registered_modules(cuda, torch_like):
    register = torch_like._register_device_module
    found = types.ModuleType("found")
    rows = []
    for device in ("nonsense", "cuda", "cuda:1", "mps", "xpu", "", 0):
        try:
            register(device, found)
        except RuntimeError as error:
            rows.append([str(device), type(error).__name__, str(error).split("<")[0].splitlines()[0][:60]])
    return rows, torch_like.cuda is found


def legacy_types_of_cpu_tensors(cuda, torch_like):
    rows = []
    for name in ("Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"):
        found = getattr(torch_like, f"{name}Tensor")
        here, there = torch_like.empty(1, dtype=found.dtype), torch_like.empty(1, dtype=found.dtype, device="cuda")
        made = found(2, 3)
        rows.append([found.__name__, str(found.dtype).split(".")[-1], found.is_cuda, isinstance(here, found)])
        rows[-1] += [isinstance(there, found), list(made.shape), str(made.device), str(made.dtype).split(".")[-1]]
    return rows


def arguments_of_legacy_types(cuda, torch_like):
    make = torch_like.FloatTensor
    wrong = [((-1,), {}), (("x",), {}), ((2,), {"device": "cuda"}), ((2,), {"device": 1})]
    with torch_like.device("cuda"):
        device = str(make(2).device)
    return (
        (device, torch_like.LongTensor([1, 2]).tolist(), list(make().shape)),
        [outcome(cuda, make, *arguments, **named) for arguments, named in wrong],
    )


def observer_of_out_of_memory(cuda, torch_like):
    """Observers are called for every device with index, request, total or limit, and free memory."""
    calls = []
    attached = torch_like._C._cuda_attach_out_of_memory_observer(lambda *arguments: calls.append(list(arguments)))
    initialised, block = cuda.is_initialized(), torch_like.empty(1 << 20, device="cuda:1")

    def fail(size, device):
        return outcome(cuda, torch_like.empty, size, dtype=torch_like.uint8, device=device)["error"]

    errors = [fail(2 << 30, "cuda"), fail(3 << 30, "cuda:1")]
    cuda.set_per_process_memory_fraction(0.5, 1)
    errors.append(fail((700 << 20) + 5, "cuda:1"))
    return attached, initialised, errors, calls, block.nbytes


def failing_observer_of_out_of_memory(cuda, torch_like):
    def fail(*arguments):
        raise ValueError(len(arguments))

    torch_like._C._cuda_attach_out_of_memory_observer(fail)
    later = outcome(cuda, torch_like.empty, 2 << 30, dtype=torch_like.uint8, device="cuda")
    return later, outcome(cuda, torch_like._C._cuda_attach_out_of_memory_observer)["error"]
