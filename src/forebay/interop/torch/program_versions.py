"""The versions for which a result is valid, and those that a program asks for in files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from forebay._base.untrusted import open_regular, printable

__all__ = ["CUDA_VERSION", "CUDNN_VERSION", "Versions", "find_versions"]

CUDNN_VERSION = 92600  # nvidia-cudnn-cu13 9.26.0.51, which the wheel of PyTorch 2.15 for CUDA 13 requires
CUDA_VERSION = "13.0"  # that of the wheels of PyTorch 2.11 and later on PyPI
# Packages whose version decides how much memory a program needs. Programs of 2023 needed up to 18 % more with the
# versions of their time: PyTorch 2.1 kept the argument of mean(), bitsandbytes 0.41 the dequantized weights.
_PACKAGES = ("torch", "bitsandbytes", "transformers")
_REQUIREMENT = re.compile(r"\s*([A-Za-z][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?\s*((?:[=<>!~]=?=?\s*[\w.*+!-]+\s*,?\s*)+)")
_CONDITION = re.compile(r"(===?|[<>!~]=|<|>)\s*([\w.*+!-]+)")
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions with which a program ran, and what it asks for instead."""

    torch: str  # "" if PyTorch is not installed
    cuda: str = CUDA_VERSION  # of the emulated devices
    warnings: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        """The sentence about the versions."""
        return f"Valid for PyTorch {self.torch} and CUDA {self.cuda}." if self.torch else ""


def find_versions(folder: Path) -> Versions:
    """Return the installed versions, with a warning for each other one that files of a program's folder ask for."""
    installed = {name: _installed(name) for name in _PACKAGES}
    warnings = []
    for file, name, conditions in _requirements(folder):
        version = installed.get(name, "")
        if version and not _allows(conditions, version):
            asked = f"{name}{conditions}".replace(" ", "")
            warnings.append(
                f"{file} asks for {asked}, but this is the answer for {name} {version}: others may need more memory."
            )
    return Versions(installed["torch"], warnings=tuple(dict.fromkeys(warnings)))


def _installed(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # imported late: takes longer than the rest

    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


def _requirements(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the file, the package and the conditions of each requirement with a version, as far as it can be read."""
    for path in [*sorted(folder.glob("requirements*.txt")), folder / "pyproject.toml"]:
        for line in _lines(path):
            if match := _REQUIREMENT.match(line):
                yield printable(path.name), match[1].lower().replace("_", "-"), match[2].strip().rstrip(",").strip()


def _lines(path: Path) -> list[str]:
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            return []
        text = content.decode()
    except (OSError, ValueError):  # it is not the program's fault if it cannot be read
        return []
    if path.suffix == ".txt":
        return [line.partition("#")[0].partition(";")[0] for line in text.splitlines()]
    import tomllib

    try:
        found = tomllib.loads(text).get("project", {}).get("dependencies", [])
    except (tomllib.TOMLDecodeError, AttributeError):
        return []
    return [each.partition(";")[0] for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _allows(conditions: str, version: str) -> bool:
    """Return True if a version meets all conditions; of releases such as 2.1.0, without pre-releases."""
    return all(_meets(match[1], match[2], version) for match in _CONDITION.finditer(conditions))


def _meets(operator: str, wanted: str, version: str) -> bool:
    wanted = wanted.partition("+")[0]
    if operator in ("==", "!=", "===") and wanted.endswith(".*"):
        begins = _numbers(version)[: wanted.count(".")] == _numbers(wanted[:-2])
        return begins == (operator != "!=")
    found, asked = _compared(version, wanted)
    if operator == "~=":
        length = len(_numbers(wanted)) - 1
        return found >= asked and found[:length] == asked[:length]
    return {
        "==": found == asked, "===": found == asked, "!=": found != asked, "<": found < asked, "<=": found <= asked,
        ">": found > asked, ">=": found >= asked,
    }[operator]  # fmt: skip


def _compared(one: str, other: str) -> tuple[list[int], list[int]]:
    pairs = [*zip_longest(_numbers(one), _numbers(other), fillvalue=0)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _numbers(version: str) -> list[int]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return [int(each) for each in match[0].split(".")] if match else []
