"""The versions that a program asks for in files beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.interop.torch import program_versions
from forebay.interop.torch.program_versions import Versions, find_versions

INSTALLED = {"torch": "2.13.0", "bitsandbytes": "0.50.0"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_versions, "_installed", lambda name: INSTALLED.get(name, ""))


@pytest.mark.parametrize(
    ("line", "is_other"),
    [
        ("torch==2.1.2", True),
        ("torch == 2.1.2+cu118  # as published", True),
        ("torch[opt-einsum]<2.2,>=2", True),
        ("Torch~=2.1.0", True),
        ("torch==2.1.*", True),
        ("torch!=2.13.*", True),
        ("torch>2.13", True),
        ("bitsandbytes<=0.41.1", True),
        ("torch", False),
        ("torch>=2", False),
        ("torch==2.13", False),
        ("torch===2.13.0", False),
        ("torch~=2.1", False),
        ("torch==2.13.*", False),
        ("torch!=2.13.1", False),
        ("torchvision==0.1", False),
        ("transformers==4.1", False),  # which is not installed here
        ("# torch==2.1.2", False),
        ("-r other.txt", False),
        ("torch @ https://example.com/torch-2.1.whl", False),
        ("torch==nightly", True),
    ],
)
def test_requirements_that_exclude_the_installed_version_are_named(tmp_path: Path, line: str, is_other: bool):
    (tmp_path / "requirements-dev.txt").write_text(f"numpy\n{line}\n")
    found = find_versions(tmp_path)
    assert bool(found.warnings) is is_other
    assert found.text == "Valid for PyTorch 2.13.0 and CUDA 13.0."


def test_warning_names_file_and_both_versions(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(
        "[project]\ndependencies = [\"torch >=2.0, <2.2; python_version > '3'\"]\n"
    )
    (warning,) = find_versions(tmp_path).warnings
    assert warning.startswith("pyproject.toml asks for torch>=2.0,<2.2, but this is the answer for torch 2.13.0")


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[project", b"project = 3\n", b"[project]\ndependencies = 3\n", b"[project]\ndependencies = [3]\n"],
)
def test_files_that_cannot_be_read_are_ignored(tmp_path: Path, content: bytes):
    (tmp_path / "pyproject.toml").write_bytes(content)
    (tmp_path / "requirements.txt").write_bytes(content)
    (tmp_path / "requirements-x.txt").mkdir()
    assert find_versions(tmp_path) == Versions("2.13.0")
    assert find_versions(tmp_path / "missing") == Versions("2.13.0")


def test_without_pytorch_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_versions, "_installed", lambda _: "")
    (tmp_path / "requirements.txt").write_text("torch==2.1.2\n")
    assert find_versions(tmp_path).text == ""
    assert find_versions(tmp_path).warnings == ()


def test_hostile_files_are_harmless(tmp_path: Path):
    """A pipe would block, a large file fill the memory, and a name change the terminal."""
    os.mkfifo(tmp_path / "requirements.txt")
    with (tmp_path / "pyproject.toml").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "requirements\x1b[31m.txt").write_text("torch==2.1")
    (warning,) = find_versions(tmp_path).warnings
    assert warning.startswith("requirements\\x1b[31m.txt asks for torch==2.1")
