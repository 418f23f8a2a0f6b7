"""PyTorch's stream and event types while CUDA devices are emulated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

import torch

import forebay.cuda.streams
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream

__all__ = ["replace_stream_types"]


def replace_stream_types(names: NameReplacements, undo: ExitStack) -> None:
    """Let streams and events of emulated devices be PyTorch's, with devices of PyTorch."""
    emulated = forebay.cuda.streams
    opened, bound = attrgetter("opened.device"), vars(Event)["device"].fget
    names.replace(emulated.Stream, "device", property(lambda self: torch.device(str(opened(self)))))
    names.replace(emulated.Event, "device", property(_device_or_none(bound)))
    for name, theirs, ours, of_cuda in (
        ("Stream", torch.Stream, Stream, emulated.Stream), ("Event", torch.Event, Event, emulated.Event),
    ):  # fmt: skip
        common = _type_of_any(name, theirs, ours, of_cuda)
        names.replace(torch, name, common)
        undo.callback(setattr, of_cuda, "__bases__", of_cuda.__bases__)
        of_cuda.__bases__ = (*of_cuda.__bases__, common)
        for each in (ours, of_cuda):
            names.replace(each, "__repr__", _with_name_of_pytorch(vars(each)["__repr__"]))


def _with_name_of_pytorch(describe: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda self: describe(self).replace("forebay.", "torch.", 1)


def _device_or_none(bound: Any) -> Callable[[Event], torch.device | None]:
    def device(self: Event) -> torch.device | None:
        found = bound(self)
        return None if found is None else torch.device(str(found))

    return device


def _type_of_any(name: str, theirs: type, ours: type, emulated: type) -> type:
    """Return a class that creates objects of any device, and of which all of them are instances."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (theirs, ours))

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, (theirs, ours))

        def __call__(cls, device: Any = None, *args: Any, **keywords: Any) -> Any:
            spec = torch.device("cuda" if device is None else device)
            if spec.type != "cuda":
                return theirs(spec, *args, **keywords)
            return emulated(spec, *args, **keywords) if name == "Stream" else emulated(*args, **keywords)

    return Meta(name, (), {"__doc__": theirs.__doc__, "__module__": "torch"})
