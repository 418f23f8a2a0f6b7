"""Content of an untrusted snapshot file in windows, decompressed if it is in gzip or Zstandard format."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from forebay.snapshot.formats.budget import BadSnapshot, Budget

__all__ = ["ALWAYS", "MAX_RATIO", "ByteSource", "Progress"]

Progress = Callable[[int, int], None]  # bytes done, bytes in total

_WINDOW = 1 << 20
MAX_RATIO, ALWAYS = 256, 32 << 20  # content of a compressed file: times its size, and what it may have anyway
_UNKNOWN = 1 << 62
_WINDOW_LOG = 25  # memory that decompression may take: 32 MiB
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class ByteSource:
    """A file that is read once from its beginning, in windows of 1 MiB or more.

    Parameters
    ----------
    file : binary file object
        The file, which remains open.
    progress : callable, optional
        Called as `progress(bytes_done, bytes_total)`, with the bytes of the file, compressed or not.

    Notes
    -----
    The content of a compressed file may be 256 times as large as the file, and at least 32 MiB; more raises
    BadSnapshot.
    """

    def __init__(self, file: BinaryIO, progress: Progress | None = None) -> None:
        self.file: BinaryIO = file
        self._progress = progress
        self.size: int = file.seek(0, os.SEEK_END)  # of the file
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self.file.seek(0)
        magic = self.file.read(4)
        self.file.seek(0)
        self._stream: Any = self.file
        self.compressed: bool = magic[:2] == _GZIP or magic == _ZSTD
        if magic[:2] == _GZIP:
            import gzip

            self._stream = gzip.GzipFile(fileobj=self.file)
        elif magic == _ZSTD:
            self._stream = _zstd_stream(self.file)
        self.position: int = 0  # bytes of the content that were read so far
        self.limit: int = max(MAX_RATIO * self.size, ALWAYS) if self.compressed else self.size

    @property
    def beyond(self) -> int:
        """The bytes of the content that were not read yet; huge if they are unknown."""
        return _UNKNOWN if self.compressed else max(self.size - self.position, 0)

    def budget(self) -> Budget:
        """Return the budget for what was read so far."""
        return Budget.of_file(self.position, compressed=self.compressed)

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes of the content; fewer only at its end. Raises BadSnapshot if it is invalid."""
        parts, missing = [], nbytes
        read = getattr(self._stream, "read1", self._stream.read)  # the former returns what a truncated file still has
        try:
            while missing and (part := read(min(missing, _WINDOW))):
                parts.append(part)
                missing -= len(part)
                self._advance(len(part))
        except EOFError:
            pass  # truncated: the content lacks its end, too
        except (OSError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise BadSnapshot(f"invalid compressed data: {error}") from None
        except Exception as error:
            if type(error).__name__ != "ZstdError":  # of the optional package
                raise
            raise BadSnapshot(f"invalid compressed data: {error}") from None
        return b"".join(parts)

    def _advance(self, nbytes: int) -> None:
        self.position += nbytes
        if self.position > self.limit:
            raise BadSnapshot(f"it has more than {self.limit:,} bytes when it is decompressed")
        if self._progress:
            self._progress(min(self.file.tell(), self.size), self.size)

    def read_all(self) -> bytes:
        """Return the rest of the content."""
        content = io.BytesIO()
        while window := self.read(_WINDOW):
            content.write(window)
        return content.getvalue()


def _zstd_stream(file: BinaryIO) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # Python 3.14

        return zstd.ZstdFile(file, options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        raise BadSnapshot(
            "it is compressed by Zstandard, which needs Python 3.14 or the package zstandard: pip install forebay[zstd]"
        ) from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    return decompressor.stream_reader(file, read_across_frames=True, closefd=False)
