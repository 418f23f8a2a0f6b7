"""Hooks of one graph and of all graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from forebay.runtime.graphs.finalization import GraphFinalizer
from forebay.runtime.graphs.removable_hooks import HookList, RemovableHandle

__all__ = ["GraphHooks", "capture_began", "captured", "instantiated", "replay_began", "replayed"]

# Called for every graph.
capture_began: HookList[Any] = HookList()
captured: HookList[Any] = HookList()
instantiated: HookList[Any] = HookList()
replay_began: HookList[Any] = HookList()
replayed: HookList[Any] = HookList()


class GraphHooks:
    """Mixin of Graph with the hooks and callbacks registered with one graph."""

    def __init__(self) -> None:
        self._capture_start_hooks: HookList[Any] = HookList()
        self._capture_end_hooks: HookList[Any] = HookList()
        self._instantiate_hooks: HookList[Any] = HookList()
        self._replay_start_hooks: HookList[Any] = HookList()
        self._replay_end_hooks: HookList[Any] = HookList()

    def _new_finalizer(self) -> None:
        """Create the finalizer for the next capture; later registrations belong to it."""
        self.ids: set[int] = set()  # ids of all its executables, if the graph is annotated
        self._finalizer = GraphFinalizer(self.ids)

    def retain_object(self, obj: object, *, synchronize_before_release: bool = False) -> RemovableHandle:
        """Keep an object alive until the graph is destroyed or reset.

        As `torch.cuda.CUDAGraph.retain_object`.

        Parameters
        ----------
        obj : object
            The object.
        synchronize_before_release : bool, optional
            Wait for the graph's replays before releasing objects and calling callbacks. False by default.

        Returns
        -------
        RemovableHandle
            A handle that releases the object early.
        """
        return self._finalizer.retain(obj, synchronizes=synchronize_before_release)

    def register_destroy_callback(
        self, cb: Callable[[], object], *, synchronize_before_release: bool = False
    ) -> RemovableHandle:
        """Register a function that is called once, when the graph is destroyed or reset.

        As `torch.cuda.CUDAGraph.register_destroy_callback`. An exception raised by the function becomes a warning.

        Parameters
        ----------
        cb : callable
            A function without parameters. It must not reference the graph, which would then never be destroyed.
        synchronize_before_release : bool, optional
            Wait for the graph's replays before releasing objects and calling callbacks. False by default.

        Returns
        -------
        RemovableHandle
            A handle that removes the registration.
        """
        return self._finalizer.call(cb, synchronizes=synchronize_before_release)

    def register_capture_start_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Register a hook that is called with the graph after a capture has begun.

        Parameters
        ----------
        hook : callable
            A function of the graph. Work that it queues is captured.

        Returns
        -------
        RemovableHandle
            A handle that removes the registration.
        """
        return self._capture_start_hooks.add(hook)

    def register_capture_end_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Register a hook that is called with the graph after a capture has ended.

        Parameters
        ----------
        hook : callable
            A function of the graph. It can inspect the captured work, even without `keep_graph`.

        Returns
        -------
        RemovableHandle
            A handle that removes the registration.
        """
        return self._capture_end_hooks.add(hook)

    def register_post_instantiate_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Register a hook that is called with the graph after each instantiation.

        Parameters
        ----------
        hook : callable
            A function of the graph.

        Returns
        -------
        RemovableHandle
            A handle that removes the registration.
        """
        return self._instantiate_hooks.add(hook)

    def register_replay_start_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Register a hook that is called with the graph before each replay.

        Parameters
        ----------
        hook : callable
            A function of the graph. An exception that it raises cancels the replay.

        Returns
        -------
        RemovableHandle
            A handle that removes the registration.
        """
        return self._replay_start_hooks.add(hook)

    def register_replay_end_hook(self, hook: Callable[[Any], object]) -> RemovableHandle:
        """Register a hook that is called with the graph after each replay was queued, or failed to be queued.

        Parameters
        ----------
        hook : callable
            A function of the graph.

        Returns
        -------
        RemovableHandle
            A handle that removes the registration.
        """
        return self._replay_end_hooks.add(hook)

    def register_generator_state(self, Generator: object) -> None:  # noqa: N803, ARG002 -- PyTorch's
        """Do nothing: captures detect the generators that they use.

        Parameters
        ----------
        Generator : Generator
            Ignored.

        Warns
        -----
        UserWarning
            Always, in PyTorch's words.
        """
        warnings.warn(
            "CUDAGraph.register_generator_state() is deprecated, and will be removed in a future PyTorch release. "
            "It is now a no-op and can be safely removed from your code.",
            stacklevel=2,
        )
