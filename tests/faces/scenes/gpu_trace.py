"""What is told of streams, events and memory."""

from __future__ import annotations

import gc
from importlib import import_module


def told(cuda, names, program):
    """The names of the occasions, in their order. PyTorch is made to tell by its sanitizer's module."""
    import_module(f"{cuda.__name__}._sanitizer")
    trace, heard = import_module(f"{cuda.__name__}._gpu_trace"), []
    cuda.init()
    for name in names:
        registry = getattr(trace, f"{name}Callbacks")
        registry.callback_list.clear()
        getattr(trace, f"register_callback_for_{_snake(name)}")(
            lambda *numbers, name=name: heard.append((name, *numbers))
        )
    try:
        program()
        gc.collect()
    finally:
        for name in names:
            getattr(trace, f"{name}Callbacks").callback_list.clear()
    return heard


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).strip("_")


EVENTS = ("EventCreation", "EventRecord", "EventWait", "EventSynchronization", "EventDeletion")


def numbered(heard):
    """With small numbers for events and streams, in the order in which they are named."""
    known: list[int] = []

    def small(number):
        if number not in known:
            known.append(number)
        return known.index(number)

    return [[name, *map(small, numbers)] for name, *numbers in heard]


def an_events_life(cuda, torch_like):
    side = cuda.Stream("cuda:0")

    def program():
        event = cuda.Event()
        event.record()
        event.record(side)
        event.wait(cuda.default_stream())
        event.synchronize()

    return numbered(told(cuda, EVENTS, program))


def an_event_that_is_never_recorded(cuda, torch_like):
    return told(cuda, EVENTS, lambda: (cuda.Event().wait(), cuda.Event().synchronize()))


def waiting_for_a_stream_is_an_event_of_its_own(cuda, torch_like):
    side = cuda.Stream("cuda:0")
    return numbered(told(cuda, EVENTS, lambda: side.wait_stream(cuda.default_stream())))


def memory_comes_and_goes(cuda, torch_like):
    def program():
        torch_like.empty(1000, device="cuda:0")

    heard = told(cuda, ("MemoryAllocation", "MemoryDeallocation"), program)
    return [[name for name, _ in heard], len({address for _, address in heard})]


def the_host_waits(cuda, torch_like):
    side = cuda.Stream("cuda:0")

    def program():
        side.synchronize()
        cuda.synchronize()

    return [name for name, *_ in told(cuda, ("StreamSynchronization", "DeviceSynchronization"), program)]


def a_callback_that_fails_does_not_stop_the_others(cuda, torch_like):
    def fails(*numbers):
        raise KeyError("no")

    trace = import_module(f"{cuda.__name__}._gpu_trace")
    heard = []
    registry = trace.EventCreationCallbacks
    registry.callback_list.clear()
    try:
        registry.add_callback(fails)
        registry.add_callback(heard.append)
        registry.fire_callbacks(5)
    finally:
        registry.callback_list.clear()
    return [heard, registry.name]
