"""The place of a PyTorch program: its module, and the forward pass, the backward pass or an optimizer's step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.autograd
import torch.autograd.graph
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forebay.interop.torch.attribution.module_members import is_traced, named_modules, original_module
from forebay.interop.torch.attribution.weak_identity import WeakIdentityTable
from forebay.interop.torch.compile.dynamo import observe_calls, unless_compiling
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["Phases"]

_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # the number of the next node
_current_node: Callable[[], Any] = torch._C._current_autograd_node  # has no public name
_MOST = 1_000_000  # changes of the module that are kept for the backward pass


def _ignore(*_: object) -> None:
    pass


class Phases:
    """The phase and the module of a program, from the calls of modules, backward passes and optimizers.

    Attributes
    ----------
    roots : WeakIdentityTable of torch.nn.Module to dict
        The outermost modules that were called, and the names of their modules by id.
    calls, backwards : int
        Calls of outermost modules outside backward passes, and backward passes.
    usual_calls : int
        The fewest calls before a backward pass; 0 before the first one.
    on_forward, on_result, on_backward, after_backward, before_step, on_step, on_recompute, on_return : callable
        Called with an outermost module and its arguments; with its result; before and after a backward pass, the former
        with what it begins at; before and after an optimizer's step; before and after a module is called in a backward
        pass, the latter with the result of the former.
    """

    def __init__(self) -> None:
        self.roots: WeakIdentityTable[torch.nn.Module, dict[int, str]] = WeakIdentityTable()
        self.on_forward: Callable[[torch.nn.Module, Any], object] = _ignore
        self.on_result: Callable[[torch.nn.Module, Any], object] = _ignore
        self.on_backward: Callable[[Any], object] = _ignore
        self.after_backward: Callable[[], object] = _ignore
        self.before_step: Callable[[Any], object] = _ignore
        self.on_step: Callable[[Any], object] = _ignore
        self.on_recompute: Callable[[], int] = int
        self.on_return: Callable[[int], object] = _ignore
        self.calls = self.backwards = self.usual_calls = 0
        self._calls_before = 0  # the last backward pass
        self._modules: list[str] = []
        self._names: dict[int, str] = {}
        self._backward = 0  # nested passes
        self._optimizer = False
        self._window = False  # from the first module's call to the backward pass
        self._changes: list[int] = []  # sequence numbers at which the module changed
        self._changed_to: list[str] = []
        self._recomputed = 0  # depth at which a module was called in the backward pass
        self._recompute_start = 0
        self._undo = ExitStack()

    def start(self) -> None:
        """Install the hooks: Note [Hooks are not traced]."""
        undo = self._undo
        observe_calls(self._enter, self._leave, undo)
        undo.callback(register_optimizer_step_pre_hook(unless_compiling(self._begin_step, undo)).remove)
        undo.callback(register_optimizer_step_post_hook(unless_compiling(self._end_step, undo)).remove)
        replaced = NameReplacements()
        undo.callback(replaced.restore)
        run_backward = torch.autograd.graph._engine_run_backward  # the only entry to the engine
        for module in (torch.autograd.graph, torch.autograd):
            replaced.replace(module, "_engine_run_backward", self._observed(run_backward))

    def stop(self) -> None:
        """Remove them."""
        self._undo.close()

    @property
    def phase(self) -> str:
        """One of forward, backward, optimizer and other."""
        if self._backward:
            return "backward"
        if self._optimizer:
            return "optimizer"
        return "forward" if self._modules or (self._window and torch.is_grad_enabled()) else "other"

    @property
    def module(self) -> str:
        """The module that is called, or whose gradients are computed; "" for none."""
        if self._modules:
            return self._modules[-1]
        if self._backward and self._changes:
            node = _current_node()
            if node is not None:
                at = bisect_right(self._changes, node._sequence_nr()) - 1  # has no public name
                return self._changed_to[at] if at >= 0 else ""
        return ""

    def _enter(self, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        module = original_module(module)
        if is_traced(module):
            self._modules.append(self.module)
            return
        if not self._modules:
            if self._backward:
                self._recompute_start = self.on_recompute()
                self._recomputed += 1
            else:
                self._optimizer = False
                if not self._window:
                    self._window = True
                    self._changes.clear()
                    self._changed_to.clear()
                self.calls += 1
                self.on_forward(module, (*arguments, keywords))
                self._names = self._names_of(module)
        name = self._names.get(id(module))
        if name is None:
            name = type(module).__name__ if not self._modules else f"{self._modules[-1]}.{type(module).__name__}"
        self._modules.append(name)
        self._note_change(name)

    def _leave(self, module: torch.nn.Module, result: Any) -> None:
        if self._modules:
            self._modules.pop()
            self._note_change(self._modules[-1] if self._modules else "")
        if is_traced(module):
            return
        if not self._modules and self._recomputed:
            self._recomputed = 0
            self.on_return(self._recompute_start)
        elif not self._modules and not self._backward:
            self.on_result(original_module(module), result)

    def _note_change(self, name: str) -> None:
        number = _sequence_number()
        if self._backward or len(self._changes) >= _MOST:
            return
        if self._changes and self._changes[-1] == number:
            self._changed_to[-1] = name
        else:
            self._changes.append(number)
            self._changed_to.append(name)

    def _names_of(self, root: torch.nn.Module) -> dict[int, str]:
        names = self.roots.get(root)
        if names is None:
            kind = type(root).__name__
            names = {id(each): f"{kind}.{name}" if name else kind for name, each in named_modules(root)}
            self.roots.set(root, names)
        return names

    def _begin_step(self, optimizer: Any, *_: Any) -> None:
        self._optimizer, self._window = True, False
        self.before_step(optimizer)

    def _end_step(self, optimizer: Any, *_: Any) -> None:
        self._optimizer = False
        self.on_step(optimizer)

    def _observed(self, run_backward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            if torch.compiler.is_compiling():  # a pass over the tensors of a graph that is traced
                return run_backward(*arguments, **keywords)
            if not self._backward:
                self._modules.clear()
                made = self.calls - self._calls_before
                self.usual_calls = min(self.usual_calls or made, made) if made else self.usual_calls
                self._calls_before = self.calls
                self.backwards += 1
                self.on_backward(arguments[0] if arguments else ())
            self._backward += 1
            try:
                return run_backward(*arguments, **keywords)
            finally:
                self._backward -= 1
                if not self._backward:
                    self._window = False
                    self.after_backward()

        return run
