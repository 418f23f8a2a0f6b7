"""Write torch_names.json: the names and signatures of PyTorch 2.15's runtime modules, for tests/names.

Run it under the oracle, which is not part of this repository (see its README):

    ../shared/torch-oracle/run.sh tests/data/make_torch_names.py

Each line is a name with its kind and its signature without annotations. Members have names such as "Class.member"; an
inherited member is listed under its base class if that class is in the file ("bases" names it). A name that its module
imports from another of these modules is "same as" that one. "builtin" marks names implemented in C; their signature is
that of PyTorch's stub file, if it has one. "seed" marks names of 2.4 that 2.15 lacks. Not listed: private names except
those below, aliases for typing, imports. With a path, it writes there what any version of PyTorch has, for
`python3 dev.py names`.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # not installed where doctests are collected
    import torch
    from signatures import signature_text

HERE = Path(__file__).parent
MODULES = """
torch.cuda torch.cuda.memory torch.cuda.streams torch.cuda.graphs torch.cuda.random torch.cuda.nvtx torch.cuda.profiler
torch.cuda.nccl torch.cuda.comm torch.cuda.sparse torch.cuda.amp torch.cuda.amp.autocast_mode torch.cuda.amp.common
torch.cuda.amp.grad_scaler torch.cuda.jiterator torch.cuda.tunable torch.cuda.gds torch.cuda.green_contexts
torch.cuda.graph_annotations torch.cuda._utils torch.cuda._sanitizer torch.cuda._gpu_trace torch.cuda._memory_viz
torch.cuda._device_limits torch.accelerator torch.accelerator.memory torch.accelerator.random torch.accelerator.graphs
torch.accelerator._utils torch.mps torch.mps.profiler torch.mps.event torch.mps.streams torch.mtia torch.mtia.memory
torch.mtia.mtia_graph torch.mtia._utils torch.storage
"""
ONLY = {"torch.storage": {"TypedStorage", "_LegacyStorage"}}  # base classes of torch.cuda.FloatStorage and similar
# Private names that programs use: sections 1.2, 1.3, 1.5 to 1.8 and 2 of the reference.
PRIVATE = {
    "torch.cuda": """
        _AMDSMI_ERR _CompatInterval _CompatSet _CudaBase _CudaDeviceProperties _DeviceGuard _HAS_AMDSMI _HAS_PYNVML
        _LazySeedTracker _PYNVML_ERR _WrappedTritonKernel _cached_device_count _check_bf16_tensor_supported
        _check_capability _check_cubins _check_stray_context _compile_kernel _cudart _device_count_amdsmi
        _device_count_nvml _device_limits _exchange_device _extract_arch_version _get_amdsmi_clock_rate
        _get_amdsmi_device_index _get_amdsmi_device_memory_used _get_amdsmi_handler _get_amdsmi_memory_usage
        _get_amdsmi_power_draw _get_amdsmi_temperature _get_amdsmi_utilization _get_device _get_device_index
        _get_generator _get_nvml_device_index _get_pynvml_handler _get_rng_state_offset _gpu_trace _initialization_lock
        _initialized _is_compiled _is_in_bad_fork _lazy_call _lazy_init _lazy_new _lazy_seed_tracker
        _maybe_exchange_device _memory_viz _nvml_based_avail _parse_visible_devices _primary_context_devices
        _queued_calls _raw_device_count_amdsmi _raw_device_count_nvml _raw_device_uuid_amdsmi _raw_device_uuid_nvml
        _register_triton_kernels _sanitizer _set_rng_state_offset _set_stream_by_id _sleep _tls
        _transform_uuid_to_ordinals _use_uvm _utils _warn_unsupported_code""",
    "torch.cuda.memory": """
        _CUDAAllocator _allocation_traceback _annotate_tensor _dump_snapshot _get_current_allocator
        _get_memory_metadata _host_allocator _memory_metadata_supported _record_memory_history
        _record_memory_history_impl _record_memory_history_legacy _recurse_add_to_result _save_memory_usage
        _save_segment_usage _set_allocator_settings _set_memory_metadata _snapshot _use_uvm""",
    "torch.cuda.jiterator": "_create_jit_fn _create_multi_output_jit_fn",
    "torch.cuda._utils": "_get_device_index",
    "torch.cuda._memory_viz": "_format_size",
    "torch.accelerator": "_get_device_index",
    "torch.accelerator._utils": "_get_device_index",
    "torch.mps": "_default_mps_generator _get_default_mps_generator _host_alias_storage _is_in_bad_fork",
    "torch.mtia": """
        _LazySeedTracker _exchange_device _get_device_index _initialization_lock _initialized _is_compiled
        _is_in_bad_fork _lazy_call _lazy_init _lazy_seed_tracker _maybe_exchange_device _queued_calls
        _set_stream_by_id _tls""",
    "torch.mtia._utils": "_get_device_index",
}
SEED = {  # sections 1.2, 1.3 and 1.5 of the reference
    "torch.cuda": {"_device_t": {"is": "value"}},
    "torch.cuda.memory": {"_free_mutex": {"is": "context function", "signature": "()"}},
    "torch.cuda.tunable": {
        "write_file": {"is": "function", "signature": "(filename=None)"},
        "write_file_on_exit": {"is": "function", "signature": "(val)"},
    },
}
VALUES = {"builtins", "torch", "collections", "_thread"}  # modules of the types of values
MEMBERS = """
__enter__ __exit__ __call__ __eq__ __hash__ __repr__ __len__ __iter__ __getitem__ __cuda_stream__
_as_parameter_ _dtype _retain_pool _new_with_weak_ptr _new_shared_filename
"""


def own_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module defines, not those that it imports."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name) | ast.ClassDef(name) | ast.AnnAssign(target=ast.Name(name)):
                yield name
            case ast.Assign(targets=targets):
                names = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
                yield from (node.id for node in names if isinstance(node.ctx, ast.Store))
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from own_names(inner + other)


class Stub:
    """Signatures in the stub file of PyTorch's C module."""

    def __init__(self, path: Path) -> None:
        self.functions: dict[str, ast.FunctionDef] = {}
        for statement in ast.parse(path.read_text()).body:
            match statement:
                case ast.FunctionDef(name):
                    self.functions.setdefault(name, statement)
                case ast.ClassDef(name, body=body):
                    for inner in body:
                        if isinstance(inner, ast.FunctionDef):
                            self.functions.setdefault(f"{name}.{inner.name}", inner)

    def signature(self, name: str) -> str | None:
        if (found := self.functions.get(name)) is None:
            return None
        arguments = found.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            argument.annotation = None
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                rest.annotation = None
        function = ast.parse(f"def f({ast.unparse(arguments)}): ...")
        scope: dict[str, Any] = {}
        exec(compile(function, "stub", "exec"), vars(torch) | {"torch": torch}, scope)
        return signature_text(inspect.signature(scope["f"]), bound="." in name)


def signature_of(found: Any, stub: Stub, name: str, *, bound: bool = False) -> dict[str, object]:
    try:
        return {"signature": signature_text(inspect.signature(found), bound=bound)}
    except (ValueError, TypeError):
        text = stub.signature(name)
        return {"builtin": True} if text is None else {"builtin": True, "signature": text}


def is_torch(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "torch"


def is_written_in_torch(found: object) -> bool:
    """Return True for PyTorch's functions in Python and in C; the latter have no `__module__`."""
    is_function = isinstance(found, types.FunctionType | types.BuiltinFunctionType) or hasattr(found, "cache_clear")
    return is_function and (getattr(found, "__module__", None) or "torch").partition(".")[0] == "torch"


def value_line(value: object) -> dict[str, object]:
    plain = isinstance(value, bool | int | float | str)
    return {"is": "value", "type": type(value).__name__} | ({"value": value} if plain else {})


def member_line(cls: type, name: str, found: object, stub: Stub) -> dict[str, object] | None:
    full = f"{cls.__name__}.{name}"
    match found:
        case staticmethod():
            return {"is": "static method"} | signature_of(found.__func__, stub, full)
        case classmethod():
            return {"is": "class method"} | signature_of(found.__func__, stub, full, bound=True)
        case property() | types.GetSetDescriptorType() | types.MemberDescriptorType():
            return {"is": "property"}
        case types.ClassMethodDescriptorType():
            return {"is": "class method"} | signature_of(found, stub, full, bound=True)
        case types.FunctionType() | types.MethodDescriptorType() | types.WrapperDescriptorType():
            return {"is": "method"} | signature_of(found, stub, full, bound=True)
        case types.BuiltinFunctionType():
            return {"is": "static method"} | signature_of(found, stub, full)
        case None if name == "__hash__":
            return {"is": "value", "type": "NoneType"}
        case _ if type(found).__name__ == "instancemethod":  # of pybind11
            return {"is": "method"} | signature_of(found.__func__, stub, full, bound=True)
        case _ if callable(found) and hasattr(found, "__wrapped__"):
            return {"is": "method"} | signature_of(found, stub, full, bound=True)
        case _ if hasattr(type(found), "__get__"):
            return {"is": "class property"}
        case _:
            return value_line(found)


def class_lines(
    name: str, cls: type, definitions: dict[type, str], stub: Stub
) -> Iterator[tuple[str, dict[str, object]]]:
    if issubclass(cls, BaseException):
        bases = [base.__name__ for base in cls.__mro__[1:] if issubclass(base, Exception)]
        yield name, {"is": "exception", "bases": bases}
        return
    bases = [definitions[base] for base in cls.__mro__[1:] if base in definitions]
    known = {ancestor for base in cls.__mro__[1:] if base in definitions for ancestor in base.__mro__}
    line: dict[str, object] = {"is": kind_of(cls)}
    if not issubclass(cls, enum.Enum):  # the signature of an enum depends on the Python version
        line |= signature_of(cls, stub, f"{cls.__name__}.__init__")
    if line.get("builtin") and line.get("signature") is None and (text := stub.signature(f"{cls.__name__}.__new__")):
        line["signature"] = text
    yield name, line | ({"bases": bases} if bases else {})
    seen = set()
    for base in cls.__mro__:
        if not is_torch(base) or base in known:
            continue
        for member, found in vars(base).items():
            if member in seen or (member.startswith("_") and member not in MEMBERS.split()):
                continue
            seen.add(member)
            if (entry := member_line(base, member, found, stub)) is not None:
                yield f"{name}.{member}", entry


def lines_of(
    module: types.ModuleType, definitions: dict[Any, str], stub: Stub
) -> Iterator[tuple[str, dict[str, object]]]:
    own = set(own_names(ast.parse(inspect.getsource(module)).body))
    listed = set(getattr(module, "__all__", ()))
    private = set(PRIVATE.get(module.__name__, "").split())
    public = {name for name in own if not name.startswith("_") and hasattr(module, name)}
    for name in sorted(ONLY.get(module.__name__, public | listed | private)):
        if len(sys.argv) > 1 and not hasattr(module, name):
            continue  # of another version
        found = getattr(module, name)  # raises if a listed name is missing
        found = found.__func__ if isinstance(found, staticmethod) else found
        full_name = f"{module.__name__}.{name}"
        definition = definitions.get(found) if isinstance(found, type | types.FunctionType) else None
        if definition is not None and definition != full_name:
            yield name, {"is": kind_of(found), "same as": definition}
        elif isinstance(found, types.ModuleType):
            if found.__name__ in {*MODULES.split(), "torch._C._cudart"}:
                yield name, {"is": "module"}
        elif type(found).__name__ == "tensortype":
            yield name, {"is": "tensor type"}
        elif isinstance(found, type):
            if is_torch(found):
                yield from class_lines(name, found, definitions, stub)
        elif is_written_in_torch(found):
            yield name, {"is": kind_of(found)} | signature_of(found, stub, getattr(found, "__name__", name))
        elif not callable(found) and type(found).__module__.partition(".")[0] in VALUES:
            line = value_line(found)
            if name.startswith("_"):  # state
                line.pop("value", None)
            yield name, line


def kind_of(found: object) -> str:
    if isinstance(found, type):
        if issubclass(found, BaseException):
            return "exception"
        return "context class" if hasattr(found, "__enter__") else "class"
    is_context = inspect.isgeneratorfunction(inspect.unwrap(found)) and hasattr(found, "__wrapped__")
    return "context function" if is_context else "function"


def defining_names(modules: list[types.ModuleType]) -> dict[Any, str]:
    """Map each class and function to the module that defines it, as "module.name"."""
    found: dict[Any, str] = {}
    for module in modules:
        for name in own_names(ast.parse(inspect.getsource(module)).body):
            value = getattr(module, name, None)
            defined_here = getattr(value, "__module__", None) == module.__name__
            if isinstance(value, type | types.FunctionType) and defined_here and value.__name__ == name:
                found.setdefault(value, f"{module.__name__}.{name}")
    return found


def imported(name: str, *, optional: bool) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        if not optional:
            raise
        return None


def main(output: str = "") -> None:
    found = [imported(name, optional=bool(output)) for name in MODULES.split()]
    modules = [module for module in found if module is not None]
    definitions, stub = defining_names(modules), Stub(Path(torch.__file__).parent / "_C/__init__.pyi")
    text = [f'{{"torch": {json.dumps(torch.__version__)}, "modules": {{']
    count = 0
    for index, module in enumerate(modules):
        lines = dict(lines_of(module, definitions, stub))
        for name, line in SEED.get("" if output else module.__name__, {}).items():
            assert name not in lines, f"{name} is in 2.15 too"
            lines[name] = line | {"seed": "2.4"}
        count += len(lines)
        listed = None if module.__name__ in ONLY else getattr(module, "__all__", None)
        text.append(f'"{module.__name__}": {{"__all__": {json.dumps(listed and sorted(listed))}, "names": {{')
        text.append(",\n".join(f"{json.dumps(name)}: {json.dumps(lines[name])}" for name in sorted(lines)))
        text.append("}}" + "," * (index < len(modules) - 1))
    (Path(output) if output else HERE / "torch_names.json").write_text("\n".join([*text, "}}"]) + "\n")
    print(len(modules), "modules,", count, "names")


if __name__ == "__main__":
    main(*sys.argv[1:])
