"""PyTorch's stream and event types while CUDA devices are emulated."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

import forebay.cuda.streams
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream

__all__ = ["replace_stream_types"]


def replace_stream_types(names: NameReplacements) -> None:
    """Let streams and events of emulated devices be PyTorch's, with devices of PyTorch."""
    emulated = forebay.cuda.streams
    opened, bound = attrgetter("opened.device"), vars(Event)["device"].fget
    names.replace(emulated.Stream, "device", property(lambda self: torch.device(str(opened(self)))))
    names.replace(emulated.Event, "device", property(_device_or_none(bound)))
    names.replace(torch, "Stream", _type_of_any("Stream", torch.Stream, Stream, emulated.Stream))
    names.replace(torch, "Event", _type_of_any("Event", torch.Event, Event, emulated.Event))


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

    def create(cls: type, device: Any = None, *args: Any, **keywords: Any) -> Any:
        spec = torch.device("cuda" if device is None else device)
        if spec.type != "cuda":
            return theirs(spec, *args, **keywords)
        return emulated(spec, *args, **keywords) if name == "Stream" else emulated(*args, **keywords)

    return Meta(name, (), {"__new__": create, "__doc__": theirs.__doc__, "__module__": "torch"})
