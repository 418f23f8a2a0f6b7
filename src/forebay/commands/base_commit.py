"""The results of `forebay fit` for another commit of the program's repository, with which its changes are compared."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay._base.temporary_folders import temporary_folder
from forebay.commands import CommandError

__all__ = ["check_commit", "results_of_commit"]


def check_commit(commit: str) -> str:
    """Return the full name of a commit. Raises CommandError if no repository here has it."""
    _git("rev-parse", "--show-toplevel")
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except CommandError:
        raise CommandError(
            f"--base: there is no commit {commit!r} here: fetch it (git fetch), as a shallow clone lacks most"
        ) from None


def results_of_commit(commit: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Run `forebay fit` with the same arguments in the files of a commit, and return its results as --json has them.

    The files are those that git tracks, in a temporary folder; the repository does not change. CommandError is raised
    if the working directory is in no git repository, the commit is unknown, or the command fails there.
    """
    top, below = Path(_git("rev-parse", "--show-toplevel")), _git("rev-parse", "--show-prefix")
    known = check_commit(commit)
    with temporary_folder("forebay-base-") as folder:
        with tarfile.open(fileobj=io.BytesIO(_archive(top, known))) as archive:
            archive.extractall(folder, filter="data")
        where = folder / below
        if not where.is_dir():
            return []  # the folder of the program is new
        words = [each.replace(f"{top}/", f"{folder}/") for each in _without_format(arguments)]
        environment = dict(os.environ)
        paths = [str(each) for each in (folder / "src", folder) if each.is_dir()]  # before an editable installation
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [environment.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "forebay", "fit", "--json", *words]
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
        try:
            found: list[dict[str, Any]] = json.loads(done.stdout)
        except ValueError:
            reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            if "there is no such file" in reason or "there is none of that name" in reason:
                return []  # the program is new
            raise CommandError(f"--base {commit}: {reason.removeprefix('forebay: error: ')}") from None
    return found


def _without_format(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `fit` without those of the output: only those before the program are forebay's."""
    words, found, at = [*arguments], list[str](), 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "-m", "-c", "--"):
        name, has_value, _ = words[at].partition("=")
        takes = 0 if has_value or name in _FLAGS else 1
        if name not in ("--base", "--format", "--json"):
            found += words[at : at + 1 + takes]
        at += 1 + takes
    return [*found, *words[at:]]


_FLAGS = ("--json", "--shapes-only", "--strict", "--compute", "--check-assumptions")  # without a value


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise CommandError("--base needs git, which is not on PATH") from error
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["git failed"])[0]
        raise CommandError(f"--base: {reason.removeprefix('fatal: ')}") from error
    return done.stdout.strip()


def _archive(top: Path, commit: str) -> bytes:
    try:
        return subprocess.run(
            ["git", "archive", "--format=tar", commit], cwd=top, capture_output=True, check=True
        ).stdout
    except subprocess.CalledProcessError as error:
        raise CommandError(f"--base: git archive failed: {error.stderr.decode(errors='replace').strip()}") from error
