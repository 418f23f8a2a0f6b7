"""The repository builds anywhere: no file names a path of one machine or a package registry."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|root)/[\w.]+")
REGISTRIES = re.compile(r"\b(?:pypi|pypi\.python|pythonhosted|npmjs|anaconda)\.(?:org|com)\b")


def places_in(text: str) -> list[str]:
    return MACHINE_PATHS.findall(text) + REGISTRIES.findall(text)


@pytest.mark.skipif(shutil.which("git") is None, reason="git lists the files")
def test_no_file_names_a_machine_path_or_registry(root):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [root / name for name in listed.stdout.decode().split("\0")]
    contents = {str(path): path.read_bytes() for path in paths if path.is_file()}
    texts = {name: data.decode(errors="replace") for name, data in contents.items() if b"\0" not in data}
    assert {name: found for name, text in texts.items() if (found := places_in(text))} == {}


def test_planted_path_or_registry_is_found():
    assert places_in('open("/' + 'work/data.bin")')
    assert places_in("see /" + "root/.cache")
    assert places_in("index-url = https://pypi." + "org/simple")
    assert places_in("https://registry.npmjs." + "org/vite")


def test_other_paths_are_allowed():
    assert places_in("../shared/data, https://host/work/1, src/root/x, ./work/y, ~/work/z") == []
