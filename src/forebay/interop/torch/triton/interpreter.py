"""Kernels of Triton executed by its interpreter, on the values of emulated tensors.

# Note [Language patched for one launch]
Triton's interpreter replaces the functions of Triton's language by its own, which the compiler cannot use. They are
replaced for the time of one launch and restored, and a lock keeps other threads from compiling during it. What is
replaced is found once, as the search takes longer than a small kernel.
Test: tests/interop/torch/triton/test_interpreter.py::test_kernel_can_be_compiled_after_it_was_interpreted
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
import triton.language.extra.cuda.libdevice
import triton.language.extra.libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from forebay.errors import Unsupported
from forebay.interop.torch.triton.addressed_memory import AddressedMemory, translate
from forebay.interop.torch.triton.arguments import Descriptor, OutsideAccess, Pointer
from forebay.interop.torch.triton.arithmetic import Arithmetic, narrow
from forebay.interop.torch.triton.device_functions import device_function
from forebay.interop.torch.triton.kernel_code import Language, executable, is_rewritten
from forebay.interop.torch.triton.reductions import combined, scanned

__all__ = ["interpret"]

_Handle = interpreter.TensorHandle
_MEMORY = "forebay.memory"  # the attribute of a handle
# What computes pointers from others, with the position of the pointer.
_POINTERS = ("addptr", "splat", "broadcast", "expand_dims", "reshape", "trans", "bitcast", "unsplat")


class _Builder(Arithmetic):
    """The builder of the interpreter, whose pointers are of the device: Note [Addresses in interpreted kernels]."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: Sequence[AddressedMemory] = ()
        self.kernel = ""
        self.report: Callable[[OutsideAccess], object] = print

    def _values(self, pointers: Any, mask: np.ndarray, verb: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the addresses of the values, and the mask of those that have values."""
        memory = pointers.attr.get(_MEMORY)
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        moved, inside, outside = translate(pointers.data, mask, size, memory, self.arguments)
        if outside is not None:
            file, line = _kernel_line()
            name, start, nbytes = ("", 0, 0) if memory is None else memory[:3]
            program = tuple(int(each) for each in self.grid_idx)
            self.report(OutsideAccess(self.kernel, file, line, program, verb, name, outside, outside - start, nbytes))
        return moved, inside

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *_: object, **__: object) -> Any:
        """Return the values at addresses; zero where there are none."""
        kind = ptrs.get_element_ty()
        dtype = interpreter._get_np_dtype(kind)
        accessed = np.asarray(mask.data)  # of a handle or an array
        moved, inside = self._values(ptrs, accessed, "reads")
        before = np.zeros(moved.shape, dtype) if other is None else np.broadcast_to(other.data, moved.shape)
        if other is not None and inside is not accessed:
            before = np.where(np.broadcast_to(accessed, moved.shape), np.zeros((), dtype), before).astype(dtype)
        loaded = interpreter._interpreter.load(moved, np.ascontiguousarray(inside), np.ascontiguousarray(before), dtype)
        return _Handle(loaded, kind)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_: object, **__: object) -> Any:
        """Write values to addresses."""
        moved, inside = self._values(ptrs, np.asarray(mask.data), "writes")
        data = np.ascontiguousarray(np.broadcast_to(value.data, moved.shape))
        return interpreter._interpreter.store(moved, data, np.ascontiguousarray(inside))

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        """Compare and exchange."""
        moved, inside = self._values(ptr, np.ones(ptr.data.shape, dtype=bool), "writes")
        if not inside.all():
            return _Handle(np.zeros_like(val.data), cmp.dtype.scalar)
        return super().create_atomic_cas(_Handle(moved, ptr.dtype), cmp, val, sem, scope)

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:  # noqa: N803 -- Triton's name
        """Read, modify and write."""
        moved, inside = self._values(ptr, mask.data, "writes")
        pointers, inside_mask = _Handle(moved, ptr.dtype), _Handle(np.ascontiguousarray(inside), tl.int1)
        if val.dtype.scalar == tl.bfloat16:
            return self._rmw_each(rmwOp, pointers, val, inside_mask)
        return super().create_atomic_rmw(rmwOp, pointers, val, inside_mask, sem, scope)

    def _rmw_each(self, operation: Any, pointers: Any, values: Any, mask: Any) -> Any:
        """Read, modify and write one element after the other, of a type that Triton's interpreter does not have."""
        if operation != interpreter._ir.ATOMIC_OP.FADD:
            raise Unsupported("an atomic operation of bfloat16 other than an addition")
        before = np.zeros(pointers.data.shape, np.uint16)
        one = np.ones((1,), dtype=bool)
        for index in zip(*np.nonzero(mask.data), strict=True):
            address = pointers.data[index].reshape(1)
            old = interpreter._interpreter.load(address, one, np.zeros(1, np.uint16), np.dtype(np.uint16))
            new = self.create_fadd(_Handle(old, tl.bfloat16), _Handle(values.data[index].reshape(1), tl.bfloat16))
            interpreter._interpreter.store(address, new.data, one)
            before[index] = old[0]
        return _Handle(before, tl.bfloat16)

    def create_tensor_pointer_load(self, ptr: Any, boundary_check: Any, padding_option: Any, *others: Any) -> Any:
        """Return the values at a pointer to a block."""
        with _carried(ptr.base):
            return super().create_tensor_pointer_load(ptr, boundary_check, padding_option, *others)

    def create_extern_elementwise(
        self, libName: str, libPath: str, symbol: str, argList: Any, retType: Any, isPure: bool  # noqa: N803 -- Triton's
    ) -> Any:  # fmt: skip
        """Call a function of the device library."""
        del libName, libPath, isPure
        kind = retType.scalar
        given = np.broadcast_arrays(*(each.data for each in argList))
        return _Handle(device_function(symbol, [*given], interpreter._get_np_dtype(kind)), kind)

    def create_inline_asm(self, inlineAsm: str, *_: object) -> Any:  # noqa: N803 -- Triton's name
        """Raise Unsupported."""
        raise Unsupported(f"the interpreter has no instructions of PTX ({' '.join(inlineAsm.split())[:60]})")


@contextmanager
def _carried(base: Any) -> Iterator[None]:
    """Give the pointers that are made in this block the memory of another pointer."""
    made = interpreter.TensorHandle.__init__

    def carry(self: Any, *args: Any, **keywords: Any) -> None:
        made(self, *args, **keywords)
        if isinstance(self.dtype, tl.pointer_type) and _MEMORY in base.attr:
            self.attr.setdefault(_MEMORY, base.attr[_MEMORY])

    interpreter.TensorHandle.__init__ = carry
    try:
        yield
    finally:
        interpreter.TensorHandle.__init__ = made


def _carrying(name: str) -> Callable[..., Any]:
    """Return a method of the builder, whose result carries the memory of the pointer among its arguments."""
    method = getattr(Arithmetic, name)

    def create(self: Any, *args: Any, **keywords: Any) -> Any:
        made = method(self, *args, **keywords)
        for each in args:
            if isinstance(each, _Handle) and _MEMORY in each.attr:
                made.attr.setdefault(_MEMORY, each.attr[_MEMORY])
        return made

    return create


for _name in _POINTERS:
    if hasattr(Arithmetic, f"create_{_name}"):
        setattr(_Builder, f"create_{_name}", _carrying(f"create_{_name}"))

_builder = _Builder()
_semantic = TritonSemantic(_builder)


def interpret(
    decorated: Any, grid: tuple[int, int, int], arguments: dict[str, Any], kinds: dict[str, Any],
    report: Callable[[OutsideAccess], object],
) -> None:  # fmt: skip
    """Execute a kernel on values.

    Parameters
    ----------
    decorated : triton.JITFunction
        The kernel.
    grid : tuple of int
        The programs in each dimension.
    arguments : dict
        The arguments by name: numbers, `Pointer`, tuples of them, descriptors, and constants.
    kinds : dict
        The types of the arguments by name, as the compiler writes them; "constexpr" for constants.
    report : callable
        Called for each access outside the memory of a tensor.

    Raises
    ------
    Unsupported
        If the interpreter lacks something that the kernel needs.
    """
    with _language():
        _builder.arguments = [*_memories(arguments.values())]
        _builder.kernel, _builder.report = decorated.fn.__name__, report
        function = executable(decorated, _LANGUAGE)
        constants = {each.name for each in decorated.params if each.is_constexpr}
        given = {
            name: _constant(each) if name in constants else _argument(each, kinds.get(name, "constexpr"))
            for name, each in arguments.items()
        }
        _builder.set_grid_dim(*grid)
        try:
            for x, y, z in np.ndindex(grid):
                _builder.set_grid_idx(x, y, z)
                function(**given)
        except Unsupported as error:
            file, line = _line_of(error)
            raise Unsupported(
                f"the kernel {_builder.kernel} ({file}:{line}) cannot be computed: {error}. Run without values, with "
                "--shapes-only (mode='shapes')"
            ) from error
        finally:
            _builder.arguments = ()


def _memories(arguments: Any) -> Iterator[AddressedMemory]:
    for each in arguments:
        if isinstance(each, Pointer):
            if each.memory is not None:
                yield each.memory
        elif isinstance(each, tuple):  # or a descriptor
            yield from _memories(each)


def _constant(argument: Any) -> Any:
    return argument.value if isinstance(argument, tl.constexpr) else argument


def _argument(argument: Any, kind: Any) -> Any:
    """Return an argument as a tensor of the language."""
    argument = _constant(argument)
    if isinstance(argument, Descriptor):
        kind = "*" + str(kind).partition("<")[2].partition("[")[0]
        return _semantic.make_tensor_descriptor(
            _argument(argument.base, kind), [_argument(each, "i32") for each in argument.shape],
            [*(_argument(each, "i64") for each in argument.strides[:-1]), tl.constexpr(1)],
            [tl.constexpr(each) for each in argument.block_shape], argument.padding,
        )  # fmt: skip
    if isinstance(argument, Pointer):
        element = tl.str_to_ty(kind, None)
        handle = _Handle(np.array([argument.address], np.uint64), element)
        if argument.memory is not None:
            handle.attr[_MEMORY] = argument.memory
        return tl.tensor(handle, element)
    if isinstance(argument, tuple):
        kinds = kind if isinstance(kind, tuple) else ["constexpr"] * len(argument)
        found = [_argument(each, one) for each, one in zip(argument, kinds, strict=True)]
        return interpreter._tuple_create(argument, found)
    if not isinstance(argument, (int, float)):
        return argument
    if kind != "constexpr":
        element = tl.str_to_ty(kind, None)
        return tl.tensor(_Handle(narrow(np.array([argument]), element), element), element)
    # Of what the compiler takes for constants, only whole numbers, such as 1, may have methods of tensors.
    return argument if isinstance(argument, (bool, float)) else _semantic.to_tensor(argument)


# What calls in rewritten kernels call: Note [Kernels as functions of Python].


def _find(called: Any) -> Any:
    if isinstance(called, JITFunction):
        return executable(called, _LANGUAGE)
    try:
        replaced = _replaced.get(called)
    except TypeError:  # not hashable
        return called
    if replaced is not None:
        return replaced
    return partial(called, _semantic=_semantic) if tl.core.is_builtin(called) else called


def _call(function: Any, *arguments: Any) -> Any:
    return _find(function)(*arguments)


def _method(owner: Any, name: str) -> Any:
    if isinstance(owner, (int, float)) and not hasattr(owner, name):
        owner = _semantic.to_tensor(owner)
    called = getattr(owner, name)
    if isinstance(owner, tl.tensor) and isinstance(called, JITFunction):
        return partial(executable(called, _LANGUAGE), owner)
    return _find(called)


def _value(value: Any) -> Any:
    return _semantic.to_tensor(value) if type(value) is float else value


_LANGUAGE = Language(_find, _method, _value)
_changes: list[tuple[Any, str, Any]] = []  # what is replaced in Triton's language, and by what
_replaced: dict[Any, Any] = {}  # by the function of the compiler


@contextmanager
def _language() -> Iterator[None]:
    """Replace Triton's language by that of the interpreter: Note [Language patched for one launch]."""
    if not _changes:
        _find_changes()
    before = [(owner, name, vars(owner).get(name, _changes)) for owner, name, _ in _changes]
    for owner, name, new in _changes:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old in reversed(before):
            if old is _changes:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _find_changes() -> None:
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    found = {(id(owner), name): (owner, name) for owner, name, _ in scope._changes}
    made = [(owner, name, vars(owner)[name]) for owner, name in found.values()]
    scope.restore()
    made += [
        (interpreter, "interpreter_builder", _builder), (interpreter, "interpreter_semantic", _semantic),
        (interpreter.ReduceOps, "generic_reduce", lambda self, tensors: combined(self, tensors, _call)),
        (interpreter.ScanOps, "generic_scan", lambda self, tensors: scanned(self, tensors, _call)),
    ]  # fmt: skip
    cuda, generic = triton.language.extra.cuda.libdevice, triton.language.extra.libdevice
    for name, function in vars(cuda).items():
        if tl.core.is_builtin(function):
            bound = partial(function, _semantic=_semantic)
            made += [(module, name, bound) for module in (cuda, generic) if hasattr(module, name)]
    _replaced.update({vars(owner)[name]: new for owner, name, new in made
                      if callable(vars(owner).get(name)) and owner is not tl.tensor})  # fmt: skip
    _changes.extend(made)


def _kernel_line() -> tuple[str, int]:
    """Return the file and the line of the kernel that calls."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_rewritten(frame.f_code) and "/triton/language/" not in frame.f_code.co_filename:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _line_of(error: BaseException) -> tuple[str, int]:
    trace = error.__traceback__
    found = "", 0
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_rewritten(code):
            found = code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return found
