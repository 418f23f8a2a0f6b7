"""The GitHub Action and the hook of pre-commit, run by an imitation of the runner."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="PyYAML, which the documentation needs, is not installed")

from support.action_runner import run_action
from support.beside import TORCH, needs_torch, paths_of_sources

import forebay
from forebay.commands.cli import make_parser

ROOT = Path(forebay.__file__).parents[2]
ACTION = ROOT / "action.yml"
FAKE = """#!{python}
import sys
print("table of", sys.argv[1:])
sys.exit({status})
"""


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "workspace"
    (folder / "below").mkdir(parents=True)
    return folder


def interpreter(folder, status):
    python = folder.parent / "python"
    python.write_text(FAKE.format(python=sys.executable, status=status))
    python.chmod(0o700)
    return str(python)


@pytest.mark.parametrize(("status", "fits"), [(0, "true"), (3, "true"), (1, "false"), (4, "false"), (2, "false")])
def test_status_of_fit_is_that_of_the_step(workspace, status, fits):
    ran = run_action(ACTION, workspace, {}, program="train.py", python=interpreter(workspace, status), install="")
    assert (ran.status, ran.outputs["fits"]) == (0 if fits == "true" else status, fits)
    assert ran.summary == ran.printed == Path(ran.outputs["table"]).read_text()


def test_inputs_are_arguments_and_not_commands(workspace):
    python = interpreter(workspace, 0)
    event = {"pull_request": {"base": {"sha": "0123abc"}}}
    inputs = {"cards": "t4,l4", "memory": "24GiB", "options": "--count 2", "working-directory": "below"}
    ran = run_action(ACTION, workspace, event, program="train.py $(touch made) ; touch made", python=python, **inputs)
    installed, printed = ran.printed.splitlines()
    assert installed == "table of ['-m', 'pip', 'install', '--quiet', 'forebay']"
    words = "-m forebay fit --cards t4,l4 --format markdown --count 2 --memory 24GiB --base 0123abc train.py"
    assert printed == f"table of {[*shlex.split(words), '$(touch', 'made)', ';', 'touch', 'made']}"
    assert not [*workspace.rglob("made")]


@needs_torch
def test_action_compares_a_change_with_the_base_commit(workspace):
    program = workspace / "train.py"
    program.write_text("import torch\nx = torch.ones(4 << 28, device='cuda')\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "."], ["add", "-A"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=workspace, check=True)
    program.write_text(program.read_text().replace("4 <<", "6 <<"))
    python = workspace.parent / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(paths_of_sources())} exec {TORCH} "$@"\n')
    python.chmod(0o700)
    event = {"pull_request": {"base": {"sha": "HEAD"}}}
    ran = run_action(ACTION, workspace, event, program="train.py", cards="t4", python=str(python), install="")
    assert ran.outputs["fits"] == "true", ran.printed
    assert "| t4 | fits | 6.00 GiB | 6.00 GiB | 6.14 GiB | 14.75 GiB | fits, 4.00 GiB | +2.00 GiB |" in ran.summary
    status = subprocess.run(["git", "status", "--short"], cwd=workspace, capture_output=True, text=True, check=True)
    assert status.stdout == " M train.py\n"


def test_hook_and_examples_pass_arguments_that_fit_knows():
    import yaml

    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["entry"], hook["pass_filenames"]) == ("forebay fit", False)
    config = yaml.safe_load((ROOT / "examples/ci/pre-commit-config.yaml").read_text())
    for words in (config["repos"][0]["hooks"][0]["args"], *_commands()):
        args = make_parser(["fit"]).parse_args(["fit", *words])
        assert (args.cards, args.memory) == (["rtx_4090"], 24 << 30)
        assert args.program == ["train.py", "--batch", "8"]


def _commands():
    """Return the arguments of the commands in the examples for other CI."""
    for name in ("gitlab-ci.yml", "fit.sh"):
        for line in (ROOT / "examples/ci" / name).read_text().splitlines():
            if "forebay fit" in line and not line.startswith("#"):
                yield shlex.split(line.partition("forebay fit")[2].partition("|")[0])


def test_workflow_uses_inputs_and_outputs_that_the_action_has():
    import yaml

    action = yaml.safe_load(ACTION.read_text())
    job = yaml.safe_load((ROOT / "examples/ci/github-workflow.yml").read_text())["jobs"]["fit"]
    step = next(each for each in job["steps"] if each.get("id") == "fit")
    assert {*step["with"]} <= {*action["inputs"]}
    assert Path(step["uses"]).name.startswith("forebay@v")
    assert {*action["outputs"]} == {"fits", "table"}
