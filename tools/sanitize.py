"""Run the extension modules under sanitizers: python3 dev.py sanitize [thread|address] [--seconds N]

The native tests run the core alone under sanitizers (tests/native/test_sanitizers.py). This task builds all extension
modules with ThreadSanitizer, and with AddressSanitizer and UndefinedBehaviorSanitizer, each in a folder of its own
below build/sanitize, and runs under them: the stress of two emulated devices, with default and expandable settings, the
conformance suite on all devices of this machine, and the readers of snapshots. Python itself is not instrumented, so
the sanitizer's library is loaded before it. Fails if a program fails or a report was written, and prints the reports.
`sanitize_suppressions.toml` lists what is not reported, with reasons. Needs Linux and GCC, and takes about ten minutes.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT, call, fail, output

BUILD = ROOT / "build/sanitize"
SUPPRESSIONS = Path(__file__).with_name("sanitize_suppressions.toml")
# As in tests/native/test_sanitizers.py, but optimized a little: the stress is a matter of time.
FLAGS = "-O1 -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=600", "--hypothesis-profile=ci")  # no deadlines
LIMIT = 1800  # seconds for one program


@dataclass(frozen=True)
class Sanitizer:
    """A way to build and run the extension modules."""

    name: str
    checks: str  # of -fsanitize
    library: str  # loaded before Python
    options: dict[str, str]  # environment variables with the runtime's options
    variables: dict[str, str]  # others
    deselected: str = ""  # of pytest: tests that the sanitizer's runtime cannot run
    graph_bytes: int = 1 << 30  # of the stress

    @property
    def folder(self) -> Path:
        return BUILD / self.name


SANITIZERS = {
    each.name: each
    for each in (
        # A forked child that starts threads ends or hangs in the runtime ("dup thread with used id"). The threads of
        # Arrow, which is not instrumented, seem to race. Some tests measure memory, which the shadow memory multiplies.
        # The search for deadlocks ends a program at 64 held locks.
        Sanitizer(
            "thread",
            "thread",
            "libtsan.so",
            {"TSAN_OPTIONS": "exitcode=66:die_after_fork=0:detect_deadlocks=0"},
            {},
            "not child and not fork and not parquet and not 300_mib and not is_bounded",
            16,
        ),
        Sanitizer(
            "address",
            "address,undefined",
            "libasan.so",
            # Leaks are not searched for: the interpreter frees little at its end. Reserved address space is large.
            # A forked child of a program with threads hangs in the runtime's own malloc before GCC 14, which does not
            # hold its locks during fork: a loop of fork and malloc in C hangs, too.
            {
                "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:allocator_may_return_null=1",
                "UBSAN_OPTIONS": "print_stacktrace=1",
            },
            {"PYTHONMALLOC": "malloc"},  # each object is an allocation that is checked
            "not child and not fork",
        ),
    )
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py sanitize", description="Run the extension modules under sanitizers.")
    parser.add_argument("sanitizer", nargs="*", help=f"by default all: {', '.join(SANITIZERS)}")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each stress; 20 by default")
    options = parser.parse_args(arguments)
    if unknown := {*options.sanitizer} - {*SANITIZERS}:
        parser.error(f"unknown sanitizer {min(unknown)!r}; known: {', '.join(SANITIZERS)}")
    if sys.platform != "linux":
        fail("sanitize needs Linux: elsewhere no sanitizer can be loaded before the interpreter")
    failed = []
    for name in dict.fromkeys(options.sanitizer or SANITIZERS):
        sanitizer = SANITIZERS[name]
        build(sanitizer)
        every = programs(sanitizer, options.seconds)
        failed += [f"{name}: {what}" for what, command in every.items() if run(sanitizer, command)]
    print("\n".join(f"failed  {each}" for each in failed) or "sanitize: no program failed and nothing was reported")
    return 1 if failed else 0


def programs(sanitizer: Sanitizer, seconds: float) -> dict[str, list[str]]:
    """Return the arguments of Python for each program."""
    pytest = [*PYTEST, *(["-k", sanitizer.deselected] if sanitizer.deselected else [])]
    stress = [f"{seconds:g}", str(sanitizer.graph_bytes)]
    return {
        "stress": ["-m", "support.stress", "", *stress],
        "stress of expandable segments": ["-m", "support.stress", "expandable_segments:True", *stress],
        "conformance": [*pytest, "tests/test_conformance.py"],
        "readers": [*pytest, "tests/snapshot/formats", "tests/snapshot/test_hostile_files.py"],
    }


def build(sanitizer: Sanitizer) -> None:
    """Compile the modules in a copy of the sources, which keeps what is up to date."""
    copy_sources(sanitizer.folder / "tree")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    flags = f"{FLAGS} -fsanitize={sanitizer.checks}"
    call(f"compiling with -fsanitize={sanitizer.checks}", command, sanitizer.folder / "tree", FOREBAY_CFLAGS=flags)


def copy_sources(tree: Path) -> None:
    listed = output(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, tree / name
        if source.is_file() and not (copy.exists() and filecmp.cmp(source, copy, shallow=False)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)  # with a new time, which setuptools compares


def libraries(sanitizer: Sanitizer) -> str:
    """Return the value of LD_PRELOAD. The runtime looks for the C++ library when it is loaded, and Python has none."""
    compiler = os.environ.get("CC", "gcc").split()[0]
    names = sanitizer.library, "libstdc++.so.6"
    found = [output([compiler, f"-print-file-name={name}"]).strip() for name in names]
    for name, path in zip(names, found, strict=True):
        if not Path(path).is_absolute():
            fail(f"{compiler} has no {name}: install GCC with its sanitizers")
    return " ".join(found)


def environment(sanitizer: Sanitizer) -> dict[str, str]:
    """Return the environment of a program: the runtime, its options, its suppressions and where it writes reports."""
    folder = sanitizer.folder
    found = {**os.environ, **sanitizer.variables, "LD_PRELOAD": libraries(sanitizer)}
    for name, options in sanitizer.options.items():
        file = folder / f"{name.lower()}.supp"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{each}\n" for each in suppressions().get(name, {})))
        found[name] = f"{options}:log_path={folder / 'report'}:suppressions={file}"
    tree = folder / "tree"
    found["PYTHONPATH"] = os.pathsep.join(str(tree / each) for each in ("src", "tests"))
    return found


def suppressions() -> dict[str, dict[str, str]]:
    """Return the reason for each suppression, by the variable of the runtime's options."""
    return tomllib.loads(SUPPRESSIONS.read_text())


def run(sanitizer: Sanitizer, arguments: list[str]) -> bool:
    """Run a program. Return True if it failed or anything was reported, which is printed."""
    print(f"{sanitizer.name}: python {' '.join(arguments)}", flush=True)
    for old in sanitizer.folder.glob("report.*"):
        old.unlink()
    variables = environment(sanitizer)
    command = [sys.executable, *arguments]
    # ThreadSanitizer does not support all address randomisation of the kernel.
    unshuffled = [["setarch", "-R"], []] if shutil.which("setarch") and sanitizer.name == "thread" else [[]]
    for prefix in unshuffled:
        if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
            continue  # not permitted, as in some containers
        status = subprocess.run(
            [*prefix, *command], cwd=sanitizer.folder / "tree", env=variables, timeout=LIMIT, check=False
        ).returncode
        break
    reports = sorted(sanitizer.folder.glob("report.*"))
    for report in reports:
        print(report.read_text(errors="replace"))
    if status or reports:
        print(f"{sanitizer.name}: status {status}, reports of {len(reports)} processes", flush=True)
    return bool(status or reports)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
