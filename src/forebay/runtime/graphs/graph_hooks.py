"""Who is told of what happens to graphs: of one, or of all of them."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

from forebay.runtime.graphs.finalization import GraphEnd
from forebay.runtime.graphs.removable_hooks import Hooks, RemovableHandle

__all__ = ["GraphHooks", "capture_began", "captured", "instantiated", "replay_began", "replayed"]

# Told of every graph: that its capture begins, ends, ...
capture_began: Hooks[Any] = Hooks()
captured: Hooks[Any] = Hooks()
instantiated: Hooks[Any] = Hooks()
replay_began: Hooks[Any] = Hooks()
replayed: Hooks[Any] = Hooks()


class GraphHooks:
    """What a graph's users register with it."""

    def __init__(self) -> None:
        self._capture_start_hooks: Hooks[Any] = Hooks()
        self._capture_end_hooks: Hooks[Any] = Hooks()
        self._instantiate_hooks: Hooks[Any] = Hooks()
        self._replay_start_hooks: Hooks[Any] = Hooks()
        self._replay_end_hooks: Hooks[Any] = Hooks()

    def _arm(self) -> None:
        """What is registered from now on is for the end of this capture."""
        self.ids: set[int] = set()  # all the numbers it had, if it is annotated
        self._end = GraphEnd(self.ids)
        self._finalizer = weakref.finalize(self, self._end.come)

    def retain_object(self, obj: object, *, synchronize_before_release: bool = False) -> RemovableHandle:
        """Keep the object until the graph ends or is reset. With `synchronize_before_release`, after its replays."""
        return self._end.retain(obj, waits=synchronize_before_release)

    def register_destroy_callback(
        self, cb: Callable[[], object], *, synchronize_before_release: bool = False
    ) -> RemovableHandle:
        """Call it once, when the graph ends or is reset. It must not know the graph, which would then never end."""
        return self._end.call(cb, waits=synchronize_before_release)

    def register_capture_start_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Called with the graph when its capture has begun; what it queues is captured."""
        return self._capture_start_hooks.add(hook)

    def register_capture_end_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Called with the graph when its capture has ended, while what was recorded can be looked at."""
        return self._capture_end_hooks.add(hook)

    def register_post_instantiate_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Called with the graph each time that it was made ready to replay."""
        return self._instantiate_hooks.add(hook)

    def register_replay_start_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Called with the graph before each replay; what it raises ends that."""
        return self._replay_start_hooks.add(hook)

    def register_replay_end_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Called with the graph after each replay was queued, or could not be."""
        return self._replay_end_hooks.add(hook)

    def register_generator_state(self, Generator: object) -> None:  # noqa: N803, ARG002 -- PyTorch's
        """Nothing to do: whatever generator draws in a capture is known."""
        warnings.warn(
            "CUDAGraph.register_generator_state() is deprecated, and will be removed in a future PyTorch release. "
            "It is now a no-op and can be safely removed from your code.",
            stacklevel=2,
        )
