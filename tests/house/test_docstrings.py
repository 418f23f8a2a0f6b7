"""Public docstrings are complete and in NumPy style, as numpydoc validates them.

A section about the result says more than the summary and the annotation, or is left out: the reference documentation
takes the type from the annotation. Docstrings of functions that are not public have a summary, and say of parameters
and results only what names and types do not: units, shapes, the meaning of None, errors, and reasons. Fields of classes
that are not public have comments instead of a section.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import warnings
from collections.abc import Iterator

import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import validate

MODULES = (
    "forebay",
    "forebay.accelerator",
    "forebay.accelerator.graphs",
    "forebay.accelerator.memory",
    "forebay.accelerator.random",
    "forebay.cuda",
    "forebay.cuda.comm",
    "forebay.cuda.graphs",
    "forebay.cuda.memory",
    "forebay.cuda.nccl",
    "forebay.cuda.nvtx",
    "forebay.cuda.profiler",
    "forebay.cuda.random",
    "forebay.cuda.streams",
    "forebay.cuda.tunable",
    "forebay.flight_recorder",
    "forebay.interop.numpy",
    "forebay.interop.torch",
    "forebay.memory",
    "forebay.mps",
    "forebay.mps.event",
    "forebay.mps.profiler",
    "forebay.mtia",
    "forebay.mtia.memory",
    "forebay.observe",
    "forebay.observe.races",
    "forebay.observe.ranges",
    "forebay.profiles",
    "forebay.random",
    "forebay.simulate",
    "forebay.snapshot",
    "forebay.spi",
    "forebay.vendor",
)
# Checks of numpydoc that hold. Not checked: extended summaries, examples and See Also sections for every function,
# descriptions that begin with a capital letter and end with a full stop, and the type of every return value.
CHECKS = {
    "GL06",  # unknown section
    "GL07",  # sections in the wrong order
    "GL08",  # no docstring
    "SS01",  # no summary
    "SS02",  # summary without a capital letter
    "SS03",  # summary without a full stop
    "SS05",  # summary of a function in the third person
    "PR01",  # parameter not documented
    "PR02",  # documented parameter that does not exist
    "PR03",  # parameters in the wrong order
    "PR04",  # parameter without a type
    "PR07",  # parameter without a description
}


def public_callables() -> Iterator[tuple[str, object]]:
    """Yield each function, class and public method once, under the first public name that it has."""
    seen: set[int] = set()
    for module in MODULES:
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # legacy types warn at their first use
                try:
                    found = getattr(loaded, name)
                except ModuleNotFoundError as error:
                    if error.name != "torch":
                        raise
                    continue  # in an environment without PyTorch
            if not callable(found) or id(found) in seen or not getattr(found, "__module__", "").startswith("forebay"):
                continue
            if isinstance(found, type) and issubclass(found, (enum.Enum, tuple)):
                continue  # their members are values
            if found.__module__ == "forebay._core":
                continue  # documented in the stub of the compiled core
            seen.add(id(found))
            yield f"{module}.{name}", found
            if isinstance(found, type):
                yield from methods(f"{module}.{name}", found, seen)


def methods(owner: str, found: type, seen: set[int]) -> Iterator[tuple[str, object]]:
    for name, member in vars(found).items():
        function = getattr(member, "__func__", member)
        if name.startswith("_") or id(function) in seen or not inspect.isroutine(function):
            continue
        if any(name in vars(base) and getattr(vars(base)[name], "__doc__", "") for base in found.__mro__[1:]):
            continue  # an implementation of what its base documents
        seen.add(id(function))
        yield f"{owner}.{name}", function


def errors_of(found: object) -> list[str]:
    try:
        checks = CHECKS - {"PR01"} if getattr(found, "_is_protocol", False) else CHECKS  # a protocol has no parameters
        return [f"{code}: {text}" for code, text in validate(get_doc_object(found))["errors"] if code in checks]
    except OSError:  # numpydoc reads the source, which functions of forebay.names.unsupported do not have
        names = inspect.signature(found).parameters.keys() - {"self", "cls"}
        return [f"PR01: {name}" for name in sorted(names) if f"{name} : " not in (found.__doc__ or "")]


CALLABLES = dict(public_callables())


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # at the first use of a legacy type
@pytest.mark.parametrize("name", CALLABLES)
def test_docstring_is_complete(name):
    assert errors_of(CALLABLES[name]) == []


def test_there_are_public_callables():
    assert len(CALLABLES) > 300


def undocumented(nbytes: int) -> int:
    """Returns the number"""
    return nbytes


def test_planted_errors_are_found():
    assert {error.split(":")[0] for error in errors_of(undocumented)} >= {"SS03", "SS05", "PR01"}
