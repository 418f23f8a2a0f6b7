"""`torch.version`: the PyTorch version whose behaviour forebay has. forebay's own version is `forebay.__version__`."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["TorchVersion", "cuda", "debug", "git_version", "hip", "rocm", "xpu"]


class TorchVersion(str):
    """A version as a string that compares with strings and tuples by its numbers.

    As `torch.torch_version.TorchVersion`. A version with a suffix such as `+cu132` is above the one without it, one
    such as `rc1` or `.dev20250101` below. A string that is no version is compared as a string.

    Examples
    --------
    >>> from forebay.version import TorchVersion
    >>> TorchVersion("2.15.0") > "2.9", TorchVersion("2.15.0") >= (2, 15), TorchVersion("2.15.0rc1") < "2.15"
    (True, True, True)
    """

    __slots__ = ()
    __hash__: Final = str.__hash__

    def __eq__(self, other: object) -> bool:
        keys = _keys(self, other)
        return str.__eq__(self, other) if keys is None else keys[0] == keys[1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        keys = _keys(self, other)
        return str.__lt__(self, other) if keys is None else keys[0] < keys[1]

    def __le__(self, other: Any) -> bool:
        keys = _keys(self, other)
        return str.__le__(self, other) if keys is None else keys[0] <= keys[1]

    def __gt__(self, other: Any) -> bool:
        keys = _keys(self, other)
        return str.__gt__(self, other) if keys is None else keys[0] > keys[1]

    def __ge__(self, other: Any) -> bool:
        keys = _keys(self, other)
        return str.__ge__(self, other) if keys is None else keys[0] >= keys[1]


_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)[.\-_]?((?:a|b|rc|alpha|beta|dev)[a-z0-9.]*)?(.*)")


def _keys(own: str, other: object) -> tuple[Any, Any] | None:
    """Return sort keys of both versions, or None if one is not a version."""
    keys = [_key(".".join(map(str, each)) if isinstance(each, tuple | list) else each) for each in (str(own), other)]
    return None if None in keys else (keys[0], keys[1])


def _key(text: object) -> tuple[list[int], bool, str, str] | None:
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    release, early, rest = found.groups(default="")
    numbers = [int(number) for number in release.split(".")]
    while numbers[-1:] == [0]:
        numbers.pop()
    return numbers, not early, early, rest


__version__ = TorchVersion("2.15.0+forebay")
debug = False
cuda = "13.2"  # of the build whose list of architectures `forebay.cuda.get_arch_list()` returns
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
git_version: str | None = None
