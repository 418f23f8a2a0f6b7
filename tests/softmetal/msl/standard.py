"""Errors of clang in MSL that was translated to C++14, by libclang (a package of PyPI).

The compiler that makes libraries may be another one and permits extensions; here clang parses strict C++14, over the
stub of Metal's library in `include`.
"""

from __future__ import annotations

import re
from pathlib import Path

from .address_spaces import lines_of
from .compiler import preprocess
from .translate import entry_of, translate

_INCLUDE = Path(__file__).parent / "include"
_NAME = "program_source.cpp"
_ARGUMENTS = (
    *("-x", "c++", "-std=c++14", "-nostdinc", "-pedantic-errors", "-ferror-limit=0", f"-I{_INCLUDE}"),
    *("-include", str(_INCLUDE / "softmetal.hpp")),
)
_ERROR = 3  # severities of libclang from here on


def problems(source: str, macros: dict[str, str] | None = None, standard: int = 310) -> list[str]:
    """Return the errors of a source in the form of a compiler's messages."""
    from clang.cindex import Index

    translation = translate(preprocess(source, macros or {}, standard))
    entries = "".join(entry_of(kernel, number) for number, kernel in enumerate(translation.kernels))
    text = re.sub("^#.*", "", f"{translation.text}\n{entries}", flags=re.MULTILINE)
    unit = Index.create().parse(_NAME, args=[*_ARGUMENTS], unsaved_files=[(_NAME, text)])
    lines = lines_of(f"{translation.text}\n{entries}")
    return [
        f"program_source:{lines[each.location.line - 1]}: error: {each.spelling}"
        for each in unit.diagnostics
        if each.severity >= _ERROR
    ]
