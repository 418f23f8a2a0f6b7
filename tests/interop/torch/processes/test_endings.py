"""Exceptions as words and facts."""

from __future__ import annotations

import pytest

from forebay._base.verdicts import How
from forebay.errors import OutOfMemory
from forebay.interop.torch.processes.endings import ending_of, line_of


def caught(function):
    try:
        function()
    except BaseException as error:  # noqa: BLE001 -- the subject
        return error
    raise AssertionError("did not raise")


def out_of_memory():
    raise OutOfMemory("device full")


def from_out_of_memory():
    try:
        out_of_memory()
    except OutOfMemory as error:
        raise ValueError("training failed") from error


def while_out_of_memory():
    try:
        out_of_memory()
    except OutOfMemory:
        {}[1]


def in_a_group():
    raise BaseExceptionGroup("all", [caught(while_out_of_memory), caught(out_of_memory)])


@pytest.mark.parametrize(
    ("function", "what", "raised", "handling"),
    [
        (out_of_memory, "device full", True, True),
        (from_out_of_memory, "ValueError: training failed", True, True),
        (while_out_of_memory, "KeyError: 1", False, True),
        (in_a_group, "ExceptionGroup: all (2 sub-exceptions)", True, True),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero", False, False),
        (lambda: next(iter(())), "StopIteration", False, False),
    ],
)
def test_out_of_memory_is_found_in_the_chain_of_exceptions(function, what, raised, handling):
    found = ending_of(caught(function))
    assert (found.how, found.what) == (How.EXCEPTION, what)
    assert (found.raised_out_of_memory, found.handling_out_of_memory) == (raised, handling)
    assert __file__ in found.line


def test_interrupt_while_an_error_is_handled_is_no_error_of_memory():
    def interrupted():
        try:
            out_of_memory()
        except OutOfMemory:
            raise KeyboardInterrupt from None

    assert not ending_of(caught(interrupted)).handling_out_of_memory


@pytest.mark.parametrize(("code", "how"), [(None, How.FINISHED), (0, How.FINISHED), (2, How.STATUS), ("x", How.STATUS)])
def test_exit_is_a_status(code, how):
    assert ending_of(SystemExit(code)).how is how


def test_line_is_that_of_the_program_also_if_a_library_raises():
    error = caught(lambda: __import__("json").loads("{"))
    assert line_of(error).startswith(f"{__file__}:")
    assert line_of(ValueError("never raised")) == ""


def test_circular_chains_and_long_texts_end():
    one, other = ValueError("a" * 10_000 + "\x1b[31m"), KeyError(1)
    one.__cause__, other.__cause__ = other, one
    found = ending_of(one)
    assert len(found.what) < 400
    assert "\x1b" not in found.what


def test_extension_that_cannot_be_built_is_named_without_the_text_of_a_compiler(tmp_path):
    path = tmp_path / "torch/utils/cpp_extension.py"
    source = "def load(name, with_cuda):\n    raise RuntimeError('Error building extension: 1\\n2\\n3')\n"
    namespace = {}
    exec(compile(source, path, "exec"), namespace)
    whats = []
    for with_cuda in (True, False):
        try:
            namespace["load"]("fused_norm", with_cuda)
        except RuntimeError as error:
            whats.append(ending_of(error).what)
    assert whats == [
        "RuntimeError: the CUDA extension fused_norm cannot be built or loaded here: it needs a GPU",
        "RuntimeError: Error building extension: 1 2 3",
    ]
