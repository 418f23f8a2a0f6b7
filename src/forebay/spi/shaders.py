"""Shaders, storage modes and traces of the GPU's tools, optional abilities of ports of Metal devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from forebay.spi.required import Queue

__all__ = ["Shader", "ShaderLibrary", "Shaders", "StorageModes", "ToolTraces"]


class Shader(Protocol):
    """A kernel of a program that was compiled at run time."""

    @property
    def max_threads(self) -> int:
        """Largest number of threads of one group."""

    @property
    def width(self) -> int:
        """Number of threads that execute together."""

    @property
    def memory(self) -> int:
        """Bytes of group memory that the kernel declares."""

    def launch(
        self, queue: Queue, arguments: Sequence[tuple[int, int] | bytes], threads: Sequence[int], group: Sequence[int]
    ) -> None:
        """Queue the kernel.

        Parameters
        ----------
        queue : Queue
            A queue of the port that compiled the kernel.
        arguments : sequence of tuple of int or bytes
            Address and size in bytes of device memory, or the bytes of a constant, for each buffer of the kernel.
        threads : sequence of int
            Number of threads along each of three axes.
        group : sequence of int
            Number of threads of a group along each of three axes.

        Raises
        ------
        DeviceError
            If an address is not that of device memory.
        """


class ShaderLibrary(Protocol):
    """A program that was compiled at run time."""

    def names(self) -> list[str]:
        """Return the names of its kernels."""

    def shader(self, name: str) -> Shader:
        """Return a kernel.

        Parameters
        ----------
        name : str
            Its name.

        Raises
        ------
        DeviceError
            If there is none of this name, or it cannot be prepared.
        """


@runtime_checkable
class Shaders(Protocol):
    """A Port that compiles kernels in the language of its device."""

    def compile_shader(self, source: str, *, fast_math: bool = False) -> ShaderLibrary:
        """Compile a program.

        Parameters
        ----------
        source : str
            Text of the program, for MPS in the Metal Shading Language.
        fast_math : bool, default False
            Whether the compiler may choose faster, less exact arithmetic.

        Raises
        ------
        DeviceError
            If the program is invalid; the text has the compiler's messages.
        """

    def load_shader_library(self, content: bytes) -> ShaderLibrary:
        """Load a program that was compiled before.

        Parameters
        ----------
        content : bytes
            The compiled program, for MPS the content of a .metallib file.

        Raises
        ------
        DeviceError
            If the device refuses it.
        """


@runtime_checkable
class StorageModes(Protocol):
    """A Port with heaps that reserves memory of two modes: shared with the host, or private to the device."""

    def reserve_private(self, nbytes: int) -> int:
        """Reserve memory that only the device can access.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        int
            Address, which is not that of memory of the host.

        Raises
        ------
        OutOfMemory
            If there is no memory.
        """

    def reserve_shared(self, nbytes: int) -> int:
        """Reserve memory that the host can access, too.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        int
            Address, for the device and the host.

        Raises
        ------
        OutOfMemory
            If there is no memory.
        """


@runtime_checkable
class ToolTraces(Protocol):
    """A Port whose vendor's tools can record the device's commands into a file."""

    def tool_trace_enabled(self) -> bool:
        """Return True if the system permits recordings in this process: for Metal, if MTL_CAPTURE_ENABLED is set."""

    def begin_tool_trace(self, path: str) -> None:
        """Begin to record the commands of all queues.

        Parameters
        ----------
        path : str
            File to write, which must not exist.

        Raises
        ------
        DeviceError
            If the system does not permit it, or a recording is active.
        """

    def end_tool_trace(self) -> None:
        """End the recording and write the file; do nothing without one."""

    def tool_trace_active(self) -> bool:
        """Return True while commands are recorded."""
