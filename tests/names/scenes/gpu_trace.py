"""Notifications of torch.cuda._gpu_trace about streams, events and memory."""

from __future__ import annotations

import gc
from importlib import import_module


def notifications_of(cuda, names, program):
    """Return the notifications that the program causes, in order. Importing the sanitizer enables them in PyTorch."""
    import_module(f"{cuda.__name__}._sanitizer")
    trace, notifications = import_module(f"{cuda.__name__}._gpu_trace"), []
    cuda.init()
    for name in names:
        registry = getattr(trace, f"{name}Callbacks")
        registry.callback_list.clear()
        getattr(trace, f"register_callback_for_{_snake(name)}")(
            lambda *numbers, name=name: notifications.append((name, *numbers))
        )
    try:
        program()
        gc.collect()
    finally:
        for name in names:
            getattr(trace, f"{name}Callbacks").callback_list.clear()
    return notifications


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).strip("_")


EVENTS = ("EventCreation", "EventRecord", "EventWait", "EventSynchronization", "EventDeletion")


def numbered(notifications):
    """Replace the ids of events and streams by small numbers in order of first occurrence."""
    known: list[int] = []

    def numbered_id(number):
        if number not in known:
            known.append(number)
        return known.index(number)

    return [[name, *map(numbered_id, numbers)] for name, *numbers in notifications]


def event_lifecycle(cuda, torch_like):
    side = cuda.Stream("cuda:0")

    def program():
        event = cuda.Event()
        event.record()
        event.record(side)
        event.wait(cuda.default_stream())
        event.synchronize()

    return numbered(notifications_of(cuda, EVENTS, program))


def unrecorded_event(cuda, torch_like):
    return notifications_of(cuda, EVENTS, lambda: (cuda.Event().wait(), cuda.Event().synchronize()))


def stream_wait_uses_an_event(cuda, torch_like):
    side = cuda.Stream("cuda:0")
    return numbered(notifications_of(cuda, EVENTS, lambda: side.wait_stream(cuda.default_stream())))


def memory_allocation_and_free(cuda, torch_like):
    def program():
        torch_like.empty(1000, device="cuda:0")

    notifications = notifications_of(cuda, ("MemoryAllocation", "MemoryDeallocation"), program)
    return [[name for name, _ in notifications], len({address for _, address in notifications})]


def host_synchronization(cuda, torch_like):
    side = cuda.Stream("cuda:0")

    def program():
        side.synchronize()
        cuda.synchronize()

    return [name for name, *_ in notifications_of(cuda, ("StreamSynchronization", "DeviceSynchronization"), program)]


def failing_callback_does_not_stop_the_others(cuda, torch_like):
    def fail(*numbers):
        raise KeyError("no")

    trace = import_module(f"{cuda.__name__}._gpu_trace")
    notifications = []
    registry = trace.EventCreationCallbacks
    registry.callback_list.clear()
    try:
        registry.add_callback(fail)
        registry.add_callback(notifications.append)
        registry.fire_callbacks(5)
    finally:
        registry.callback_list.clear()
    return [notifications, registry.name]
