"""A call of an operator as data: its parameters, the flags it needs, and how its inputs are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Build", "Call", "Kit", "Run", "calls_of", "crossed", "in_proportion"]

Run = Callable[..., object]  # the measured call; it receives what the function before it has returned
Build = Callable[..., "Run | tuple[Callable[[], object], Run]"]

# Largest numbers of a rehearsal on the CPU, by the name of the parameter: the program is exercised, not measured.
REHEARSED = {
    "shape": 16, "batch": 2, "size": 16, "channels": 16, "groups": 16, "rows": 33, "inner": 32, "columns": 33,
    "length": 33, "lengths": 33, "keys": 33, "heads": 4, "head": 16, "value_head": 16, "hidden": 16, "features": 16,
    "projected": 8, "layers": 2, "steps": 5, "tensors": 5, "elements": 300, "matrices": 2, "order": 12, "choices": 5,
    "indices": 60, "classes": 40, "nonzeros": 50, "bags": 5, "image": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call. Family, operator, parameters and flags say what is measured; `build` makes the inputs.

    `build(kit, **parameters)` returns the function that is measured, or a pair: a function that is called before each
    measurement, such as the forward pass, and the measured function of what that one has returned.
    """

    family: str
    operator: str
    build: Build
    parameters: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name that no other call has."""
        settings = {**self.parameters, **{f"flag {key}": value for key, value in self.flags.items()}}
        return " ".join([self.operator, *(f"{key}={_short(value)}" for key, value in settings.items())])

    def all_parameters(self) -> dict[str, Any]:
        """Return the parameters, with the defaults of those that are not given."""
        defaults = {
            name: each.default
            for name, each in inspect.signature(self.build).parameters.items()
            if each.default is not inspect.Parameter.empty
        }
        return {**defaults, **self.parameters}

    def prepare(self, kit: Kit) -> tuple[Callable[[], object] | None, Run]:
        """Make the inputs. Return what is called before each measurement, if anything, and the measured function."""
        parameters = {key: kit.reduce(key, value) for key, value in self.all_parameters().items()}
        built = self.build(kit, **parameters)
        return built if isinstance(built, tuple) else (None, lambda _state: built())


class Kit:
    """Makes the inputs of calls on a device, and lists them.

    Parameters
    ----------
    torch : module
        PyTorch.
    device : str
        The device.
    reduced : bool
        True for a rehearsal on the CPU, whose inputs are small.
    """

    def __init__(self, torch: Any, device: str, *, reduced: bool = False) -> None:
        self.torch = torch
        self.device = device
        self.reduced = reduced
        self.made: list[Any] = []

    def reduce(self, name: str, value: Any) -> Any:
        """Return a parameter, limited in a rehearsal."""
        if not self.reduced or name not in REHEARSED:
            return value
        if isinstance(value, (list, tuple)):
            return [self.reduce(name, each) for each in value]
        return min(value, REHEARSED[name]) if isinstance(value, int) else value

    def dtype(self, name: str) -> Any:
        """Return the type with a name."""
        return getattr(self.torch, name)

    def tensor(
        self, shape: Sequence[int], dtype: str = "float32", *, layout: str = "", grad: bool = False, high: int = 0
    ) -> Any:
        """Return a tensor of random numbers.

        Parameters
        ----------
        shape : sequence of int
            The shape.
        dtype : str, optional
            Type of the elements.
        layout : str, optional
            "channels_last", "transposed" (the last two dimensions are exchanged in memory), or "sliced" (every second
            element of the last dimension of a larger tensor).
        grad : bool, optional
            Whether a gradient is computed.
        high : int, optional
            Limit of integers.
        """
        torch = self.torch
        kind = self.dtype(dtype)
        memory = [*shape]
        if layout == "transposed":
            memory[-1], memory[-2] = memory[-2], memory[-1]
        elif layout == "sliced":
            memory[-1] *= 2
        if kind.is_floating_point or kind.is_complex:
            first = torch.float32 if dtype.startswith("float8") else kind
            made = torch.randn(memory, dtype=first, device=self.device).to(kind)
        else:
            limit = high or (2 if dtype == "bool" else 100)
            made = torch.randint(0, limit, memory, device=self.device).to(kind)
        if layout == "transposed":
            made = made.transpose(-1, -2)
        elif layout == "sliced":
            made = made[..., ::2]
        elif layout == "channels_last":
            last = torch.channels_last_3d if len(memory) == 5 else torch.channels_last
            made = made.contiguous(memory_format=last)
        if grad:
            made = made.detach().requires_grad_()
        self.made.append(made)
        return made

    def indices(self, shape: Sequence[int], high: int, dtype: str = "int64") -> Any:
        """Return a tensor of random integers below a limit."""
        return self.tensor(shape, dtype, high=high)

    def module(self, made: Any, dtype: str = "float32", *, training: bool = True, layout: str = "") -> Any:
        """Return a module on the device."""
        module = made.to(self.device).to(self.dtype(dtype)).train(training)
        if layout == "channels_last":
            module = module.to(memory_format=self.torch.channels_last)
        self.made += module.parameters()
        return module

    def backward(self, forward: Callable[[], Any], inputs: Sequence[Any]) -> tuple[Callable[[], object], Run]:
        """Return the pair of which the first computes a result, and the second, measured, the gradients.

        The graph is built anew for each measurement: to retain it changes what cuDNN's recurrent layers allocate.
        """
        torch = self.torch

        def before() -> object:
            result = forward()
            return result, torch.ones_like(result)

        return before, lambda state: torch.autograd.grad(state[0], inputs, state[1], allow_unused=True)

    def describe(self, value: Any) -> list[Any]:
        """Return type, shape and, if they are not contiguous, strides of the tensors of a value."""
        if isinstance(value, self.torch.Tensor):
            facts = [str(value.dtype).removeprefix("torch."), [*value.shape]]
            if value.layout is not self.torch.strided:
                return [[*facts, str(value.layout)]]
            return [facts if value.is_contiguous() else [*facts, [*value.stride()]]]
        if isinstance(value, (list, tuple)):
            return [found for each in value for found in self.describe(each)]
        return []


def calls_of(
    family: str, operator: str, build: Build, parameters: Iterable[Mapping[str, Any]], **flags: Any
) -> list[Call]:
    """Return a call for each set of parameters."""
    return [Call(family, operator, build, each, flags) for each in parameters]


def crossed(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the combinations of values of parameters; the first one varies slowest."""
    found: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        found = [{**each, name: value} for each in found for value in values]
    return found


def in_proportion(lists: Iterable[Sequence[Call]]) -> Iterator[Call]:
    """Yield the calls of all lists so that, wherever one stops, the same part of each list is complete."""
    kept = [*lists]
    places = [((at + 0.5) / len(each), number, at) for number, each in enumerate(kept) for at in range(len(each))]
    for _, number, at in sorted(places):
        yield kept[number][at]


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(map(_short, value))
    return str(value)
