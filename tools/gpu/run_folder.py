"""The folder of a run: the files with its results, and the place of everything that its processes write."""

from __future__ import annotations

import lzma
import os
import shutil
import site
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from steps import ROOT

__all__ = ["ARCHIVE", "PARTS", "RunFolder"]

ARCHIVE = "results.tar.xz"
_FILES = (ARCHIVE, "results.json", "results.md", "benchmarks-gpu.md", "verified.toml")
PARTS = "work/parts"  # folders of the parts, in a run's folder and in its archive

# Files more than two folders deep are not copied back by the services that lend a GPU for some minutes: the results are
# at the top, and what only the processes of the run use is far below.
_LOCAL = "work/local"
_FOLDERS = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "XDG_RUNTIME_DIR": "run",
    "XDG_STATE_HOME": "state",
    "CUDA_CACHE_PATH": "cache/cuda",
    "CUPY_CACHE_DIR": "cache/cupy",
    "HF_HOME": "cache/huggingface",
    "MPLCONFIGDIR": "config/matplotlib",
    "NUMBA_CACHE_DIR": "cache/numba",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "TORCH_EXTENSIONS_DIR": "cache/extensions",
    "TORCH_HOME": "cache/torch",
    "TRITON_CACHE_DIR": "cache/triton",
    "TRITON_HOME": "cache/triton-home",
}
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # no part asks the network, which would cost its time-outs
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # the packages of the interpreter are outside the folder
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
}
_REMOVED = ("FOREBAY_EMULATE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TEMP", "TMP")


class RunFolder:
    """The folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def create(self) -> None:
        """Create the folder, and remove what an earlier run wrote to it.

        Raises
        ------
        FileExistsError
            If it contains files of others.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        hidden = {path.name for path in self.path.iterdir() if path.name.startswith(".")}  # of a run that was killed
        if others := {path.name for path in self.path.iterdir()} - {*_FILES, *hidden, "work"}:
            raise FileExistsError(f"{self.path} contains {min(others)!r}, which is not of a run: give another folder")
        shutil.rmtree(self.path / "work", ignore_errors=True)
        for part in dict.fromkeys([*_FOLDERS.values(), "tmp"]):
            (self.path / _LOCAL / part).mkdir(parents=True, exist_ok=True)
        (self.path / _LOCAL / "run").chmod(0o700)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def of(self, part: str) -> Path:
        """Return the folder of a part, which is created."""
        made = self.path / PARTS / part
        made.mkdir(parents=True, exist_ok=True)
        return made

    def adopt(self, path: Path, part: str) -> None:
        """Copy the files of a part from the folder or the archive of another run, as far as they are there."""
        inside = f"{PARTS}/{part}"
        with suppress(OSError, KeyError, lzma.LZMAError, tarfile.TarError):
            if path.is_dir() and (path / inside).is_dir():
                shutil.copytree(path / inside, self.of(part), dirs_exist_ok=True)
                return
            with tarfile.open(path / ARCHIVE if path.is_dir() else path, "r:xz") as archive:
                members = [each for each in archive.getmembers() if each.isreg() and each.name.startswith(f"{inside}/")]
                archive.extractall(self.path, members, filter="data")

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the run's processes, which write only to this folder and to the checkout."""
        local = self.path / _LOCAL
        kept = {name: value for name, value in environment.items() if name not in _REMOVED}
        paths = [*(str(ROOT / each) for each in ("tools", "tests", "src")), environment.get("PYTHONPATH", "")]
        return {
            **kept,
            **_SETTINGS,
            **{name: str(local / part) for name, part in _FOLDERS.items()},
            "PYTHONUSERBASE": site.getuserbase(),  # packages that were installed for the user, whose HOME it is not
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }

    def pack(self) -> None:
        """Write the archive of all results, in one step and without what is only of use during the run."""
        unfinished = self.path / f".{ARCHIVE}.{os.getpid()}"
        try:
            with lzma.open(unfinished, "wb", preset=1) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
                for path in [*self.path.glob("*.*"), *sorted((self.path / PARTS).rglob("*"))]:
                    if path.is_file() and not path.name.startswith(".") and path.name != ARCHIVE:
                        archive.add(path, str(path.relative_to(self.path)), recursive=False)
            unfinished.replace(self.path / ARCHIVE)
        finally:
            unfinished.unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what only the processes of the run used."""
        with suppress(OSError):
            shutil.rmtree(self.path / _LOCAL)
