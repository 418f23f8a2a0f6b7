"""Fuzzing of the readers of snapshot files: seeds from our own writers, one execution, and a mutator without coverage.

`python tests/support/file_fuzzing.py -runs=1000000 CORPUS` fuzzes with atheris, guided by coverage; other arguments are
libFuzzer's. Unless a reader has a defect, an execution raises only BadSnapshot and Unsupported.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path

from forebay import simulate, snapshot
from forebay.cuda import _memory_viz
from forebay.errors import Unsupported
from forebay.snapshot.formats import native, safe_pickle, torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot
from forebay.snapshot.replay import engine
from forebay.snapshot.report import html

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
    return found


def execute(data: bytes, path: Path) -> bool:
    """Read a file with this content and analyse what it contains. Returns False if it was refused."""
    path.write_bytes(data)
    try:
        loaded = snapshot.load(path)
    except BadSnapshot:
        return False
    for each in loaded[:2]:
        page = io.StringIO()
        html.write(each, page)
        assert _CONTROL not in page.getvalue()
        with suppress(Unsupported):
            engine.History(each).run(memory=1 << 30, seconds=1)
            engine.check(each)
    if data[:2] != b"PK":
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
        for module in (torch_pickle, native, safe_pickle):
            for name, function in vars(module).items():
                if (
                    callable(function)
                    and getattr(function, "__module__", "") == module.__name__
                    and name.startswith("_")
                ):
                    with suppress(TypeError, AttributeError):
                        setattr(module, name, atheris.instrument_func(function))
        atheris.Setup([sys.argv[0], *arguments, str(corpus)], lambda data: execute(data, path) and None)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
