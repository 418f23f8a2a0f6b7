"""A graph of fills that is captured and launched through cuda-bindings alone, to compare forebay's graphs with."""

from __future__ import annotations

from forebay.backends.nvidia.calls import call, driver_api

__all__ = ["RawGraph"]


class RawGraph:
    """An executable graph of fills of one byte."""

    def __init__(self, address: int, nodes: int) -> None:
        """Capture the fills. The context must be current."""
        api = driver_api()
        self.stream = call("cuStreamCreate", api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        call("cuStreamBeginCapture", self.stream, api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        for _ in range(nodes):
            call("cuMemsetD8Async", address, 1, 4, self.stream)
        self._graph = call("cuStreamEndCapture", self.stream)
        self.executable = call("cuGraphInstantiate", self._graph, 0)

    def close(self) -> None:
        call("cuStreamSynchronize", self.stream)
        call("cuGraphExecDestroy", self.executable)
        call("cuGraphDestroy", self._graph)
        call("cuStreamDestroy", self.stream)
