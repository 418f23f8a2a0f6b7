"""The kind of a frame: the user's own code, code of a library, or a part of the interpreter that is never a site.

The rule reads texts only, as most files with stacks come from other machines: nothing is looked up there.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

__all__ = [
    "EXPRESSIONS",
    "FILE_KINDS",
    "FrameKind",
    "is_native_name",
    "is_of_forebay",
    "is_own",
    "kind_of_file",
    "kind_of_frame",
    "short_path",
]

_MAX_PATH = 1 << 12  # characters; a longer text is no path, and files of others may hold any


class FrameKind(IntEnum):
    """Kinds of frames. The site of a stack is its innermost frame of the highest kind that the stack has."""

    NEVER = 0  # native code, interpreter, launchers, generated code, forebay
    STANDARD = 1  # the standard library, and packages that only allocate on behalf of their caller
    LIBRARY = 2  # other installed packages
    TEXT = 3  # code without a file: `python -c`, or what a library executes
    OWN = 4  # the user's own code


# Note [Kinds of frames]
#
# A path is compared with slashes in place of backslashes. The first row of FILE_KINDS that is found in it decides; a
# file without one is the user's own. So an unknown place counts as the user's: a library there is named too often, the
# program never too rarely. The rule is a table because a page without Python reads it, too: Note [The viewer reads
# files in the browser]. Rejected: asking the machine (sysconfig, the file system), which gives another answer for the
# same file on another machine, and a list of the places of user code, which every notebook service extends.
#
# Test: tests/records/test_frame_kinds.py::test_kind_of_file_of_any_machine
_NATIVE = re.compile(
    r"\.(?:so(?:\.[\w.]+)?|o|obj|a|lib|dll|dylib|pyd|exe|s|asm|c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hxx|inc|inl|ipp|tcc|rs|go"
    r"|f|f90|mm?)$|^\??\??$|^\[[a-z]+\]$|::|/Python\.framework/Versions/[\d.]+/Python$|(?:^|/)python[\d.]*[a-z]?$",
    re.IGNORECASE,
)
_FOREBAY = re.compile(r"(?:-packages|/src|\.whl|\.egg)/forebay/|^forebay/")
_GENERATED = re.compile(r"(?:^|/)torchinductor_|/\.?triton/cache/|/__pycache__/numba")
_TYPED = re.compile(  # what a user has typed in a notebook or a shell
    r"^<(?:ipython-input-|python-input-|stdin|console>|input>|cell|command-|doctest |pyshell#|bpython-input-"
    r"|timed exec|timed eval|magic-|notebook)"
)
_PACKAGES = re.compile(
    r"[-/](?:site|dist)-packages/|\.(?:egg|whl)/|/__pypackages__/|/third_party/py/|/\.deps/|/(?:pyspark|py4j[^/]*)\.zip/"
)
_AFTER_PACKAGES = re.compile(r".*(?:(?:site|dist)-packages|\.(?:egg|whl)|/third_party/py|/pyspark\.zip)/")
_ALLOCATING = ("cupy", "numba", "numpy", "torch")  # packages that allocate on behalf of their caller
_ALLOCATES = re.compile(
    rf"(?:(?:site|dist)-packages|/src|/pytorch|\.(?:egg|whl)|/third_party/py)/(?:{'|'.join(_ALLOCATING)})/"
    rf"|^(?:{'|'.join(_ALLOCATING)})/(?=.*/|_|functional|random|overrides)"
)
_STANDARD = re.compile(
    r".*/(?:lib(?:32|64)?/(?:python|pypy)\d+(?:\.\d+)?t?|python\d+\.zip)/"
    r"|[A-Za-z]:/(?:.*/)?(?:(?:[Pp]ython|pypy)[\d.]+[\w.-]*|[\w.]*conda\d*|envs/[^/]+)/Lib/"
)
_LAUNCHER = re.compile(  # of the standard library
    r"(?:runpy|threading|_bootstrap\w*|bdb|pdb|cProfile|profile|trace|site|code|codeop|timeit|contextlib|functools)\.py$"
    r"|(?:multiprocessing|concurrent/futures|asyncio|importlib|wsgiref|socketserver)(?:/|\.py$)"
)
_IN_BIN = re.compile(r"(?:^|/)s?bin/[^/]+$|/Scripts/[^/]+(?:/__main__\.py)?$")
# Old recordings have names without folders: these are files of the packages whose frames most stacks have.
_BARE_LIBRARY = re.compile(
    r"(?:_tensor|module|functional|_functional|function|optimizer|_ops|_contextlib|grad_mode|checkpoint|memory|container"
    r"|_foreach_utils|clip_grad|eval_frame|autocast_mode|grad_scaler|_compile|pin_memory|einops|_backends"
    r"|interactiveshell|async_helpers|zmqshell|ipkernel|kernelbase|kernelapp|ipykernel_launcher)\.py"
)
_BARE_LAUNCHER = re.compile(r"(?:threading|runpy|base_events|events|asyncio|process|thread|spawn|popen_fork)\.py")
_NATIVE_NAME = re.compile(
    r"::|\(|^\?\?$|^_start$|^__libc_start|^clone3?$|^start_thread$|^_?Py[A-Z]\w*_\w|^Py_\w|^execute_native_thread"
)


def _rule(pattern: str, kind: FrameKind) -> tuple[re.Pattern[str], FrameKind]:
    return re.compile(pattern), kind


#: Expressions that are searched in a path, in this order, and the kind of the files that have them.
FILE_KINDS = (
    _rule(r"^<string>$", FrameKind.TEXT),
    (_TYPED, FrameKind.OWN),
    _rule(r"^<", FrameKind.NEVER),  # other code that is in no file
    (_NATIVE, FrameKind.NEVER),
    (_FOREBAY, FrameKind.NEVER),
    (_GENERATED, FrameKind.NEVER),
    (_ALLOCATES, FrameKind.STANDARD),
    _rule(rf"(?:{_PACKAGES.pattern}).*_launcher\.py$", FrameKind.NEVER),
    (_PACKAGES, FrameKind.LIBRARY),
    _rule(rf"^(?:{_STANDARD.pattern})(?:{_LAUNCHER.pattern})", FrameKind.NEVER),
    _rule(rf"^(?:{_STANDARD.pattern})", FrameKind.STANDARD),
    (_IN_BIN, FrameKind.NEVER),
    _rule(rf"^(?:{_BARE_LAUNCHER.pattern})$", FrameKind.NEVER),
    _rule(rf"^(?:{_BARE_LIBRARY.pattern})$", FrameKind.STANDARD),
)


@lru_cache(maxsize=1 << 14)
def kind_of_file(file: str) -> FrameKind:
    r"""Return the kind of the frames of a file.

    Parameters
    ----------
    file : str
        The file name of a code object or of a native frame, from any machine.

    Examples
    --------
    >>> kind_of_file("/home/ada/train.py").name, kind_of_file(r"C:\Python312\Lib\site-packages\pandas\io.py").name
    ('OWN', 'LIBRARY')
    """
    if len(file) > _MAX_PATH:
        return FrameKind.NEVER
    path = file.replace("\\", "/")
    return next((kind for pattern, kind in FILE_KINDS if pattern.search(path)), FrameKind.OWN)


def kind_of_frame(file: str, name: str) -> FrameKind:
    """Return the kind of a frame: that of its file, unless its name is one of native code.

    Parameters
    ----------
    file : str
        The file name.
    name : str
        The qualified name of the function.
    """
    return FrameKind.NEVER if is_native_name(name) else kind_of_file(file)


@lru_cache(maxsize=1 << 14)
def is_native_name(name: str) -> bool:
    """Return True for the name of a function in C++, or of the interpreter."""
    return bool(_NATIVE_NAME.search(name[:_MAX_PATH]))


def is_own(file: str) -> bool:
    """Return True for a file of the user's own code."""
    return kind_of_file(file) >= FrameKind.TEXT


def is_of_forebay(file: str) -> bool:
    """Return True for a file of forebay."""
    return bool(_FOREBAY.search(file[:_MAX_PATH].replace("\\", "/")))


def short_path(file: str) -> str:
    """Return a path as reports show it: a file of a package begins with the package, a cell has its number.

    Parameters
    ----------
    file : str
        The path.

    Examples
    --------
    >>> short_path("/opt/conda/lib/python3.11/site-packages/pandas/core/frame.py"), short_path("<ipython-input-7-9b3a>")
    ('pandas/core/frame.py', 'cell [7]')
    """
    if len(file) > _MAX_PATH:
        return file
    path = file.replace("\\", "/")
    if cell := _CELL.search(path):
        return f"cell [{cell[1] or cell[2]}]"
    if cell := _UNNUMBERED_CELL.search(path):
        return f"cell {cell[1]}"
    if inside := _AFTER_PACKAGES.match(path):
        return path[inside.end() :]
    if (inside := _STANDARD.match(path)) and kind_of_file(file) <= FrameKind.STANDARD:
        return path[inside.end() :]
    return file


_CELL = re.compile(r"^<ipython-input-(\d+)-[\w-]+>$|/ipython-input-(\d{1,6})-\d+\.py$")
# The number of the file is a hash of the text of the cell; that of the cell is known in the process of the notebook.
_UNNUMBERED_CELL = re.compile(r"/(?:ipykernel_\d+/|ipython-input-)(\d+)\.py$")

#: The other expressions of the rule, by their names in the viewer page.
EXPRESSIONS = {
    "native_name": _NATIVE_NAME, "forebay": _FOREBAY, "cell": _CELL, "unnumbered_cell": _UNNUMBERED_CELL,
    "after_packages": _AFTER_PACKAGES, "standard": _STANDARD,
}  # fmt: skip
