"""Tests of CUDA's names, written for emulated devices, with the CUDA backend on the software driver.

tools/gpu/scenes.toml lists those that cannot pass, and why.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
from support import software_driver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

LIMIT = 300  # seconds; the kernels are compiled once
SCENE = "tests/names/test_scenes.py::test_forebay_does_as_recorded"


def listed(root) -> list[str]:
    table = tomllib.loads((root / "tools/gpu/scenes.toml").read_text())
    scenes = [f"{SCENE}[{name}]" for names in table["scenes"].values() for name in names]
    return [*scenes, *(name for names in table["tests"].values() for name in names)]


def outcomes(root, *arguments) -> tuple[dict[str, set[str]], str]:
    """Run tests that need no child process. Return those with each outcome, and the output."""
    paths = [*sys.path, str(software_driver.SOURCES)]
    variables = {"SOFTCUDA_DEVICES": "4", "PYTHONPATH": os.pathsep.join(paths)}
    options = ["-p", "on_software_driver", "-p", "no:cacheprovider", "-m", "not slow", "-rA", "--tb=short", "-q"]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "pytest", *options, "--timeout=60", *arguments],
        cwd=root,
        env=software_driver.environment(**variables),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    found: dict[str, set[str]] = {"PASSED": set(), "FAILED": set(), "ERROR": set()}
    for outcome, name in re.findall(
        r"^(PASSED|FAILED|ERROR) (tests/\S+?(?:\[.*?\])?)(?: - .*)?$", done.stdout, re.MULTILINE
    ):
        found[outcome].add(name)
    assert done.returncode in (0, 1), done.stdout[-5000:] + done.stderr[-2000:]  # it ran to its end
    return found, done.stdout


@pytest.mark.timeout(LIMIT + 60)
def test_tests_of_names_pass(root):
    deselected = [f"--deselect={name}" for name in listed(root)]
    found, output = outcomes(root, *deselected, "tests/names", "tests/cuda")
    assert found["FAILED"] | found["ERROR"] == set(), output[-20000:]
    assert len(found["PASSED"]) > 850


@pytest.mark.timeout(LIMIT + 60)
def test_listed_tests_fail(root):
    names = listed(root)
    found, output = outcomes(root, *names)
    assert found["PASSED"] == set()  # remove them from the list
    failed = found["FAILED"] | found["ERROR"]
    missing = [
        name for name in names if not any(each == name or each.startswith((f"{name}[", f"{name}::")) for each in failed)
    ]
    assert missing == [], output[-5000:]
