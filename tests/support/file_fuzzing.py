"""Fuzzing of the readers of snapshot files: seeds from our own writers, one execution, and a mutator without coverage.

`python tests/support/file_fuzzing.py -runs=1000000 -timeout=10 -rss_limit_mb=1024` fuzzes with atheris, guided by the
coverage of the Python code; the arguments are libFuzzer's. Unless a reader has a defect, an execution raises only
BadSnapshot and Unsupported, executes no code from the file, and takes less than SECONDS. One of ANALYSED files that are
read is also reported and replayed, which takes much longer than reading.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path

import zstandard

from forebay import simulate, snapshot
from forebay.cuda import _memory_viz
from forebay.errors import Unsupported
from forebay.snapshot.formats import (
    byte_source,
    native,
    safe_pickle,
    torch_columns,
    torch_decode,
    torch_pickle,
    torch_validate,
    torch_writer,
)
from forebay.snapshot.formats.budget import BadSnapshot
from forebay.snapshot.replay import engine
from forebay.snapshot.report import html

SECONDS = 10
ANALYSED = 50

_CODE = frozenset(
    ("exec", "compile", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class",
     "ctypes.dlopen", "socket.connect", "marshal.loads")
)  # fmt: skip
_CONTROL = "\x1b"  # in no output
_WORDS = (b"\xff" * 8, bytes(8), b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"](", b"}(", b"h\x00", b"\x94", b"\x85", b"\x1b")


def seeds() -> list[bytes]:
    """Return small files of both formats, in several protocols."""
    found = []
    for settings in ("", "expandable_segments:True"):
        gpu = simulate.Device(1 << 30, settings)
        gpu.record_history()
        gpu.free(gpu.allocate(3 << 20, 1))
        kept = gpu.allocate(1000)
        with suppress(MemoryError):
            gpu.allocate(2 << 30)
        value = gpu.snapshot()
        del kept
        found += [pickle.dumps(value, protocol) for protocol in (0, 2, 4)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seed"
            native.write(torch_pickle.snapshots(value)[0], path)
            found.append(path.read_bytes())
            torch_writer.write(torch_pickle.snapshots(value), path)
            found.append(path.read_bytes())
    return [*found, gzip.compress(found[2], mtime=0), zstandard.compress(found[2])]


@cache
def import_readers() -> None:
    """Read each seed without guard, as imports execute code."""
    with tempfile.TemporaryDirectory() as folder:
        for content in seeds():
            path = Path(folder) / "seed"
            path.write_bytes(content)
            snapshot.load(path)


class Guard:
    """Context manager: no code is executed, and no execution takes more than SECONDS."""

    _active: Guard | None = None

    def __enter__(self) -> None:
        if "guard" not in vars(Guard):
            Guard.guard = True
            sys.addaudithook(Guard._audit)
        self._began, Guard._active = time.monotonic(), self

    def __exit__(self, *_: object) -> None:
        Guard._active = None
        assert time.monotonic() - self._began < SECONDS

    @staticmethod
    def _audit(event: str, arguments: tuple[object, ...]) -> None:
        if Guard._active is not None and event in _CODE:
            raise SystemExit(f"{event} {arguments!r:.200} while a file was read")


def read(data: bytes, path: Path) -> tuple[snapshot.Snapshot, ...]:
    """Read a file with this content under guard. Raises BadSnapshot if it is refused."""
    import_readers()
    path.write_bytes(data)
    with Guard():
        return snapshot.load(path)


def execute(data: bytes, path: Path) -> bool:
    """Read a file with this content and analyse what it contains. Returns False if it was refused."""
    try:
        loaded = read(data, path)
    except BadSnapshot:
        return False
    for each in loaded[:2]:
        page = io.StringIO()
        html.write(each, page)
        assert _CONTROL not in page.getvalue()
        with suppress(Unsupported):
            engine.History(each).run(memory=1 << 30, seconds=1)
            engine.check(each)
    with suppress(BadSnapshot):  # damaged files that only the streaming reader accepts, and other formats
        value = safe_pickle.load(data)
        with suppress(BadSnapshot), redirect_stdout(io.StringIO()):
            for action in ("stats", "trace", "memory", "segments"):
                assert _CONTROL not in _memory_viz._output(action, value)
    return True


def mutations(seed: int) -> Iterator[bytes]:
    """Yield damaged and combined seeds, without end."""
    chosen, files = random.Random(seed), seeds()
    archives = [at for at, content in enumerate(files) if content[:2] == b"PK"]
    pickles = [at for at in range(len(files)) if at not in archives]
    while True:
        whole = files[chosen.choice(pickles if chosen.random() < 0.85 else archives)]
        content = bytearray(whole)
        members: dict[str, bytes] = {}
        if whole[:2] == b"PK" and chosen.random() < 0.7:  # damage a member, with a correct checksum
            with zipfile.ZipFile(io.BytesIO(whole)) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            member = chosen.choice([*members, *["manifest.json"] * len(members)])
            content = bytearray(members[member])
        for _ in range(chosen.randint(1, 6)):
            at = chosen.randrange(len(content) + 1)
            match chosen.randrange(6):
                case 0 if at < len(content):
                    content[at] = chosen.randrange(256)
                case 1:
                    del content[at : at + chosen.randint(1, 16)]
                case 2:
                    content[at:at] = chosen.choice(_WORDS)
                case 3:
                    content[at : at + 8] = chosen.choice(_WORDS)
                case 4:
                    other = chosen.choice(files)
                    begin = chosen.randrange(len(other))
                    content[at:at] = other[begin : begin + chosen.randint(1, 64)]
                case 5:
                    content[at:at] = content[at : at + chosen.randint(1, 64)]
        if members:
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for name, data in (members | {member: bytes(content)}).items():
                    archive.writestr(name, data)
            content = bytearray(packed.getvalue())
        yield bytes(content)


def main(arguments: list[str]) -> None:
    import atheris

    atheris.instrument_imports()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:  # noqa: PTH112
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, content in enumerate(seeds()):
            (corpus / str(number)).write_bytes(content)
        path = Path(folder) / "file"
        modules = (
            torch_pickle,
            torch_decode,
            torch_validate,
            torch_columns,
            byte_source,
            native,
            safe_pickle,
        )
        for module in modules:
            for name, function in vars(module).items():
                if callable(function) and getattr(function, "__module__", "") == module.__name__:
                    with suppress(TypeError, AttributeError):
                        setattr(module, name, atheris.instrument_func(function))

        def one(data: bytes) -> None:
            if zlib.crc32(data) % ANALYSED == 0:
                execute(data, path)
            else:
                with suppress(BadSnapshot):
                    read(data, path)

        atheris.Setup([sys.argv[0], *arguments, str(corpus)], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
