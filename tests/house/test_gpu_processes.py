"""The processes of `dev.py gpu`: parts that hang, crash, print megabytes or fill the disk, and a run that is killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from unittest.mock import ANY

import pytest
from support import software_driver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

LIMIT = 60  # seconds

SCRIPTED = """
import sys
from pathlib import Path
from gpu import __main__ as command, parts, results
from gpu.parts import Part

def scripted(*parts_of_test):
    command.PARTS = parts.PARTS = results.PARTS = parts_of_test

def part(name, seconds, **others):
    return Part(name, name.capitalize(), seconds, package="scripted", **others)
"""


@pytest.fixture
def scripted(root, tmp_path):
    """Run the task with parts of a test: their sources, and the lines that set them."""

    def start(sources, lines, *arguments, output=None):
        package = tmp_path / "scripted"
        package.mkdir(exist_ok=True)
        for name, source in sources.items():
            (package / f"{name}.py").write_text(dedent(source))
        output = output or tmp_path / "out"
        code = f"{SCRIPTED}\n{dedent(lines)}\nsys.exit(command.main({['--output', str(output), *arguments]}))"
        paths = [f"{root / folder}" for folder in ("tools", "tests", "src")]
        variables = software_driver.environment(PYTHONPATH=":".join([*paths, str(tmp_path)]))
        return subprocess.Popen(
            [sys.executable, "-c", code], env=variables, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    return start


def results_in(folder):
    return json.loads((folder / "results.json").read_text())["parts"]


def test_parts_that_misbehave_end_in_time_with_one_line_each(scripted, tmp_path):
    sources = {
        "hanging": """
            import os, subprocess, sys, time
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(90)"], start_new_session=True)
            print(child.pid, flush=True)
            time.sleep(90)
        """,
        "crashing": "import os; print('begun', flush=True); os.kill(os.getpid(), 11)",
        "shouting": """
            import sys
            from gpu.part import Outcome, execute
            def work(job):
                for _ in range(400):
                    sys.stdout.write("x" * 99_999 + "\\n")
                return Outcome("ok", "40 MB printed")
            execute(work)
        """,
        "saving": """
            import time
            from gpu.part import Outcome, execute
            def work(job):
                job.save(Outcome("incomplete", "1 of 2 workloads", ["* the first: ok"]))
                time.sleep(90)
            execute(work)
        """,
    }
    lines = """
    each = dict(compiled=False)
    scripted(part("hanging", 10, **each), part("crashing", 10, **each), part("shouting", 10, **each),
             part("saving", 10, **each))
    """
    process = scripted(sources, lines, "--minutes", "0.3")  # all of them side by side
    printed, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, printed
    found = results_in(tmp_path / "out")
    assert re.fullmatch(r"stopped after 1\d s", found["hanging"]["detail"])
    assert found["crashing"]["detail"] == "its process ended with -11"
    assert found["shouting"] == {"status": "ok", "detail": "40 MB printed", "lines": [], "seconds": ANY}
    assert found["saving"]["status"] == "incomplete"
    assert found["saving"]["detail"].startswith("1 of 2 workloads; stopped after ")
    assert found["saving"]["lines"] == ["* the first: ok"]
    parts = tmp_path / "out/work/parts"
    assert (parts / "shouting/log.txt").stat().st_size < 1 << 20
    assert " bytes are left out ..." in (parts / "shouting/log.txt").read_text()
    child = int((parts / "hanging/log.txt").read_text())
    assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()


def test_part_that_fills_the_disk_is_stopped(scripted, tmp_path):
    sources = {"filling": "import time; time.sleep(90)"}
    lines = """
    from gpu import processes
    processes.RESERVE = 1 << 60  # as if the disk were full
    scripted(part("filling", 10, compiled=False))
    """
    process = scripted(sources, lines, "--minutes", "1")
    printed, _ = process.communicate(timeout=LIMIT)
    assert re.search(r"Filling \.\.\. failed after \d s: stopped when only \d+ MiB of the disk were free", printed), (
        printed
    )


def test_run_that_is_killed_leaves_complete_files_and_no_process(scripted, tmp_path):
    sources = {
        "saving": """
            import itertools
            import os
            from gpu.part import Outcome, execute
            def work(job):
                (job.folder / "pid").write_text(str(os.getpid()))
                for number in itertools.count():
                    job.save(Outcome("incomplete", f"{number} workloads", [f"* {each}: ok" for each in range(number)]))
            execute(work)
        """,
        "ending": """
            from gpu.part import Outcome, execute
            execute(lambda job: Outcome("ok", "all"))
        """,
    }
    lines = """
    scripted(part("ending", 5, compiled=False, alone=True), part("saving", 60, compiled=False, alone=True))
    """
    out = tmp_path / "out"
    process = scripted(sources, lines, "--minutes", "1")
    pid = await_file(out / "work/parts/saving/pid")
    await_text(out / "results.json", " workloads")
    process.kill()
    process.communicate(timeout=LIMIT)
    await_end(int(pid))
    parts = results_in(out)
    assert (parts["ending"]["status"], parts["saving"]["status"]) == ("ok", "running")
    for path in out.rglob("*.json"):
        if not path.name.startswith("."):
            json.loads(path.read_text())
    with tarfile.open(out / "results.tar.xz") as archive:
        assert "work/parts/ending/result.json" in archive.getnames()
    # The parts that did not end are repeated, and the others are taken over.
    again = scripted({**sources, "saving": sources["ending"]}, lines, "--only-failed", str(out), output=tmp_path / "2")
    printed, _ = again.communicate(timeout=LIMIT)
    assert "Ending ..." not in printed
    assert {name: each["status"] for name, each in results_in(tmp_path / "2").items()} == {
        "ending": "ok",
        "saving": "ok",
    }


def await_file(path):
    return await_text(path, "")


def await_text(path, text):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with suppress(OSError):
            if (found := path.read_text()) and text in found:
                return found
        time.sleep(0.02)
    raise AssertionError(f"{path} does not contain {text!r}")


def await_end(pid):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} has not ended")
