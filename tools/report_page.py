"""Build the scripts of the report page from report-page/, and compare them with those in the package.

The package contains the built scripts and the reader of the viewer page, so that an installation needs neither npm nor
a compiler. Where npm or a recent Node.js is missing, this only says so. The reader, WebAssembly, is built where the
extra `cross` is installed with the version of its compiler that built the one in the package; elsewhere the hash of its
sources is compared. `--write` replaces the files of the package.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from steps import ROOT, call, fail

FOLDER = ROOT / "report-page"
PAGE = ROOT / "src/forebay/snapshot/report/page"
SCRIPTS = ("explorer", "viewer", "viewer-worker")  # as report-page/vite.config.js
NODE = (20, 19)  # Vite needs this version or a later one
READER, RECORD = PAGE / "reader.wasm", PAGE / "reader.txt"
INPUTS = ("report-page/reader/*.cpp", "native/pickle/*.hpp", "native/snapshot/*.hpp")
COMPILER = ["-m", "ziglang", "c++", "-target", "wasm32-wasi", "-std=c++17", "-Wall", "-Wextra", "-Werror"]
COMPILER += ["-O2", "-flto", "-DNDEBUG", "-fno-exceptions", "-fno-rtti", "-mexec-model=reactor", "-Wl,--strip-all"]


def main(arguments: list[str]) -> int:
    if unknown := {*arguments} - {"--write"}:
        fail(f"unknown argument {min(unknown)!r}")
    is_written = "--write" in arguments
    check_reader(is_written=is_written)
    if missing := missing_tool():
        print(f"the scripts of the page are not rebuilt: {missing}")
        return 0
    with tempfile.TemporaryDirectory() as target:
        for name, built in build(target).items():
            store(PAGE / name, built, is_written=is_written)
    return 0


def store(path: Path, built: bytes, *, is_written: bool) -> None:
    """Compare a built file with the one in the package, or replace it."""
    if path.exists() and built == path.read_bytes():
        return
    if not is_written:
        fail(f"{path.relative_to(ROOT)} is not what its sources build: run tools/report_page.py --write")
    path.write_bytes(built)


def missing_tool() -> str:
    """Return why the scripts cannot be built here; "" if they can."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "npm was not found"
    found = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    return "" if numbers >= NODE else f"Node.js is {found}, and Vite needs {'.'.join(map(str, NODE))}"


def build(target: str) -> dict[str, bytes]:
    """Install the tools of the lock file, check the types, and return the built scripts."""
    for step in (["ci", "--no-audit", "--no-fund"], ["run", "check"]):
        call(f"npm {' '.join(step[:2])}", ["npm", *step], FOLDER)
    for name in SCRIPTS:
        call(f"npm run build, {name}", ["npm", "run", "build"], FOLDER, OUT=target, SCRIPT=name)
    return {f"{name}.js": Path(target, f"{name}.js").read_bytes() for name in SCRIPTS}


def check_reader(*, is_written: bool) -> None:
    """Compare the reader, or the hash of its sources, with what is in the package, or build it."""
    inputs = inputs_hash()
    recorded = RECORD.read_text().split() if RECORD.exists() else ["", ""]
    compiler = compiler_version()
    if not compiler or (compiler != recorded[1] and not is_written):
        if inputs != recorded[0]:
            fail(f"the sources of {READER.name} have changed: run tools/report_page.py --write with ziglang installed")
        return
    with tempfile.TemporaryDirectory() as target:
        result = Path(target, READER.name)
        sources = [str(path) for path in sorted(FOLDER.glob("reader/*.cpp"))]
        call(f"compile {READER.name}", [sys.executable, *COMPILER, f"-I{ROOT / 'native'}", *sources, "-o", str(result)])
        store(READER, result.read_bytes(), is_written=is_written)
    store(RECORD, f"{inputs} {compiler}\n".encode(), is_written=is_written)


def compiler_version() -> str:
    """Return the version of the compiler; "" if it is not installed."""
    try:
        return version("ziglang")
    except PackageNotFoundError:
        return ""


def inputs_hash() -> str:
    """Return a hash of the sources and the options of the reader."""
    found = hashlib.sha256(repr(COMPILER).encode())
    for pattern in INPUTS:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            found.update(f"{name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
