"""Features of CUDA compute capabilities, and the binaries that run on them.

Forebay contains no GPU code. Its list of architectures is that of PyTorch 2.15 for CUDA 13.2, which programs use to
compile their own code and to check whether a device is still supported.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from forebay import backends
from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError
from forebay.runtime.tensors.creation import tensor

__all__ = [
    "DEVICE_REQUIREMENT",
    "DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION",
    "PYTORCH_RELEASES_CODE_CC",
    "get_arch_list",
    "get_gencode_flags",
    "has_half",
    "has_magma",
    "is_bf16_supported",
    "is_tf32_supported",
    "warn_unsupported_devices",
]

has_half: bool = True
has_magma: bool = True  # as in that build of PyTorch; unused

_MIN_BF16_MAJOR = 8


class _CompatInterval:
    """The compute capabilities of one major version from `start` (86 means 8.6) on, except those in `exclude`."""

    def __init__(self, start: int, exclude: set[int] | None = None) -> None:
        self.major, self.minor = divmod(start, 10)
        self.exclude = exclude or set()

    def __contains__(self, x: int) -> bool:
        major, minor = divmod(x, 10)
        return x not in self.exclude and major == self.major and minor >= self.minor

    def __str__(self) -> str:
        text = f">={self.major}.{self.minor},<{self.major + 1}.0"
        return f"{text} except {{{_format_capabilities(self.exclude)}}}" if self.exclude else text


class _CompatSet:
    """A set of individual compute capabilities."""

    def __init__(self, values: set[int]) -> None:
        self.values = values

    def __contains__(self, x: int) -> bool:
        return x in self.values

    def __str__(self) -> str:
        return f"{{{_format_capabilities(self.values)}}}"


def _format_capabilities(capabilities: Iterable[int]) -> str:
    return ", ".join(f"{each // 10}.{each % 10}" for each in sorted(capabilities))


_Requirement = _CompatInterval | _CompatSet

# The devices that run code compiled for the key: the same major version from there on. Code for integrated GPUs
# (53, 62, 72, 87, 101) and other code exclude each other; 101 was renamed to 110.
_INTEGRATED_EXCLUDED = {50: {53}, 52: {53}, 60: {62}, 61: {62}, 70: {72}, 80: {87}, 86: {87}, 100: {101}}
_INTEGRATED_ONLY = {53: {53}, 62: {62}, 72: {72}, 87: {87}, 101: {101, 110}, 110: {101, 110}}
_CODES = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121)

DEVICE_REQUIREMENT: dict[int, _Requirement] = {
    code: _CompatSet(_INTEGRATED_ONLY[code])
    if code in _INTEGRATED_ONLY
    else _CompatInterval(code, _INTEGRATED_EXCLUDED.get(code))
    for code in _CODES
}
# Since CUDA 13.2 integrated GPUs run the code for discrete ones as well.
DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION: dict[int, _Requirement] = DEVICE_REQUIREMENT | {
    code: _CompatInterval(code) for code in (70, 80, 86)
}
# The capabilities that PyTorch 2.15 is built for, by CUDA version and host architecture.
PYTORCH_RELEASES_CODE_CC: dict[str, dict[str, set[int]]] = {
    "12.6": {"x86_64": {50, 60, 70, 75, 80, 86, 90}, "aarch64": {80, 90}},
    **{
        version: {"x86_64": {75, 80, 86, 90, 100, 120}, "aarch64": {80, 90, 100, 110, 120}}
        for version in ("13.0", "13.2", "13.4")
    },
}
_CUDA_VERSION = "13.2"


# Written by tools/write_names.py from tools/names/devices.toml: edit the table, not these lines.


def get_arch_list() -> list[str]:
    """Return the architectures that PyTorch 2.15 has code for, such as "sm_90".

    As `torch.cuda.get_arch_list`. Does not initialise CUDA.

    Examples
    --------
    >>> import forebay.cuda as cuda
    >>> "sm_90" in cuda.get_arch_list()
    True
    """
    return [f"sm_{code}" for code in sorted(PYTORCH_RELEASES_CODE_CC[_CUDA_VERSION][_host_arch_key()])]


def get_gencode_flags() -> str:
    """Return the nvcc flags, separated by spaces, that compile for the architectures of `get_arch_list`.

    As `torch.cuda.get_gencode_flags`. Does not initialise CUDA.

    Examples
    --------
    >>> import forebay.cuda as cuda
    >>> "-gencode compute=compute_90,code=sm_90" in cuda.get_gencode_flags()
    True
    """
    parts = [arch.split("_") for arch in get_arch_list()]
    return " ".join(f"-gencode compute=compute_{arch},code={kind}_{arch}" for kind, arch in parts)


def is_tf32_supported() -> bool:
    """Return True if the current device computes in TensorFloat-32; False also if there is no device.

    As `torch.cuda.is_tf32_supported`. Initialises CUDA if there is a device.

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda", profile="v100"):
    ...     cuda.is_tf32_supported()
    False
    """
    return is_bf16_supported(including_emulation=False)


def warn_unsupported_devices() -> None:
    """Warn about each real device that PyTorch 2.15 does not support.

    Emulated devices are skipped: they run no GPU code. CUDA's first use calls this, as in PyTorch.

    Warns
    -----
    UserWarning
        If PyTorch 2.15 has no code for a device.
    """
    if not CUDA.describe().emulated:
        _check_capability()
        _check_cubins()


# End of the written lines.


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True if the current device supports bfloat16; False also if there is no device.

    As `torch.cuda.is_bf16_supported`. Initialises CUDA if there is a device.

    Parameters
    ----------
    including_emulation : bool, default True
        Accept a device that stores bfloat16 but does not compute in it (compute capability below 8.0).

    Examples
    --------
    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda", profile="h100"):
    ...     cuda.is_bf16_supported()
    True
    """
    if not CUDA.count():
        return False
    index = CUDA.current_index()
    if _capability(index)[0] >= _MIN_BF16_MAJOR:
        return True
    return including_emulation and _check_bf16_tensor_supported(index)


@lru_cache(maxsize=16)
def _check_bf16_tensor_supported(device: Any) -> bool:
    place = f"{CUDA.name}:{device}" if isinstance(device, int) else device
    try:
        tensor([1.0], dtype="bfloat16", device=place)
    except (ForebayError, AttributeError, ValueError):  # AttributeError: ml_dtypes is not installed
        return False
    return True


def _capability(index: int) -> tuple[int, int]:
    details = CUDA.describe(index).details
    return details["major"], details["minor"]


def _extract_arch_version(arch_string: str) -> int:
    """Return the number in names such as "sm_90a" or "compute_120f"."""
    return int(arch_string.split("_", maxsplit=2)[1].removesuffix("a").removesuffix("f"))


def _host_arch_key() -> str:
    return "aarch64" if platform.machine().lower() == "aarch64" else "x86_64"


def _device_requirement(code_cc: int) -> _Requirement | None:
    return DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION.get(code_cc)


def _code_compatible_with_device(device_cc: int, code_cc: int) -> bool:
    """Return True if a device runs code compiled for a capability. Warns if that capability is unknown."""
    compatible = _device_requirement(code_cc)
    if compatible is None:
        warnings.warn(
            f"forebay was compiled with an unknown compute capability {code_cc // 10}.{code_cc % 10}. "
            " Please create an issue on Github if this is a valid compute capability.",
            stacklevel=2,
        )
        return device_cc in _CompatInterval(start=code_cc)
    return device_cc in compatible


def _warn_unsupported_code(device_index: int, device_cc: int, code_ccs: list[int]) -> None:
    """Warn that no code compiled for these capabilities runs on a device, and name the PyTorch builds that do."""
    name, capability = CUDA.describe(device_index).name, f"{device_cc // 10}.{device_cc % 10}"
    lines = [
        f"Found GPU{device_index} {name} which is of compute capability (CC) {capability}.",
        "The following list shows the CCs this version of PyTorch was built for and the hardware CCs it supports:",
        *(f"- {code // 10}.{code % 10} which supports hardware CC {_device_requirement(code)}" for code in code_ccs),
    ]
    supporting = [
        version
        for version, machines in PYTORCH_RELEASES_CODE_CC.items()
        if any(_code_compatible_with_device(device_cc, code) for code in machines.get(_host_arch_key(), ()))
    ]
    if supporting:
        lines.append(f"PyTorch 2.15 supports this GPU in its builds for CUDA {', '.join(supporting)}.")
    else:
        lines.append("No published build of PyTorch 2.15 supports this GPU.")
    warnings.warn("\n".join(lines), stacklevel=2)


def _check_capability() -> None:
    """Warn about each device, emulated or not, that PyTorch 2.15 has no code for."""
    codes = [_extract_arch_version(arch) for arch in get_arch_list()]
    for index in range(CUDA.count()):
        major, minor = _capability(index)
        if codes and not any(_code_compatible_with_device(10 * major + minor, code) for code in codes):
            _warn_unsupported_code(index, 10 * major + minor, codes)


def _check_cubins() -> None:
    """Warn about each device, emulated or not, for whose major version PyTorch 2.15 has no binary."""
    archs = get_arch_list()
    majors = {_extract_arch_version(arch) // 10 for arch in archs if "sm_" in arch}
    for index in range(CUDA.count()):
        major, minor = _capability(index)
        if archs and major not in majors:
            name = CUDA.describe(index).name
            warnings.warn(
                f"\n{name} with CUDA capability sm_{major * 10 + minor} is not compatible with the current PyTorch "
                f"installation.\nThe current PyTorch install supports CUDA capabilities {' '.join(archs)}.\n"
                f"If you want to use the {name} GPU with PyTorch, please check the instructions at "
                "https://pytorch.org/get-started/locally/\n",
                stacklevel=2,
            )
