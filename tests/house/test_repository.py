"""Files about the repository agree with it: versions, and the tasks that workflows and hooks run."""

from __future__ import annotations

import re
import tomllib

import pytest


def test_citation_has_the_version(root):
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()


@pytest.mark.parametrize("folder", [".github/workflows", "."])
def test_workflows_and_hooks_run_tasks_that_exist(root, folder):
    tasks = set(re.findall(r'"(\w+)": \1\b', (root / "dev.py").read_text()))
    files = [*(root / folder).glob("*.yml"), *(root / folder).glob(".*.yaml")]
    used = {task for file in files for task in re.findall(r"python3 dev\.py (\w+)", file.read_text())}
    assert used
    assert used <= tasks


def test_workflows_run_nothing_but_tasks(root):
    """Every command of a workflow also runs on a developer's machine."""
    lines = [line for file in (root / ".github/workflows").glob("*.yml") for line in file.read_text().splitlines()]
    commands = [found[1] for line in lines if (found := re.search(r"\brun: (.*)", line))]
    assert commands
    assert [command for command in commands if not re.match(r"python3 dev\.py \w+", command)] == []
