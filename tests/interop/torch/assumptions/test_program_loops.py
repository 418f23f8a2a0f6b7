"""Conditions that end a loop, found in its source."""

from __future__ import annotations

import linecache
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="a package of modules that need PyTorch")

from forebay.interop.torch.assumptions.program_loops import check_at, loops_around  # noqa: E402 -- after the check

# Programs whose line with "read" reads an assumed value, and whether nothing else ends the loop.
PROGRAMS = {
    "condition": ("while read() > 1:\n    pass", True),
    "condition and limit": ("while read() > 1 and n < 3:\n    n += 1", False),
    "condition or limit": ("while read() > 1 or n < 3:\n    n += 1", True),
    "neither condition nor limit": ("while not (read() < 1 or n > 9):\n    n += 1", False),
    "break or limit": ("while True:\n    n += 1\n    if read() < 1 or n > 9:\n        break", False),
    "flag": ("while not done:\n    done = read() < 1", True),
    "flag of an object": ("while not self.done:\n    self.done = read() < 1", True),
    "break": ("while True:\n    x = read()\n    if x < 1:\n        break", True),
    "break of a number of turns": ("while True:\n    x = read()\n    n += 1\n    if n > 9:\n        break", False),
    "two breaks": ("while True:\n    if read() < 1:\n        break\n    if n > 9:\n        break\n    n += 1", False),
    "patience": (
        "while w < 5:\n    x = read()\n    if x < best:\n        best, w = x, 0\n    else:\n        w += 1",
        True,
    ),
    "return": ("def f():\n    while True:\n        if read():\n            return", True),
    "exit": ("while True:\n    if read():\n        sys.exit()", True),
    "nothing": ("while True:\n    read()", True),
    "raise": ("while True:\n    if read():\n        raise ValueError", True),
    "yield": ("def f():\n    while True:\n        yield read()", False),
    "await": ("async def f():\n    while True:\n        await g(read())", False),
    "caught": (
        "while True:\n    read()\n    try:\n        next(i)\n    except StopIteration:\n        break",
        False,
    ),
    "inner break": ("while True:\n    for i in range(3):\n        break\n    if read():\n        break", True),
    "length of a list": ("while len(xs) < 9:\n    xs.append(read())", False),
    "elements of a list": ("while xs[-1] < 9:\n    xs.append(read())", True),
    "count": ("for i in itertools.count():\n    if read():\n        break", True),
    "count with a limit": ("for i in itertools.count():\n    x = read()\n    if i > 9:\n        break", False),
    "walrus": ("while (x := read()) > 1:\n    pass", True),
    "match": ("while True:\n    match read():\n        case 1:\n            break", True),
    "clock": ("while time.time() < end:\n    read()", False),
    "progress": ("while True:\n    bar.set_postfix(x=read())\n    if bar.n > 9:\n        break", False),
}


@pytest.fixture
def file(request):
    name = f"<program {request.node.name}>"
    yield name
    linecache.cache.pop(name, None)


def keep(file, text):
    lines = textwrap.dedent(text).splitlines(keepends=True)
    linecache.cache[file] = (len(text), None, lines, file)
    return [number for number, line in enumerate(lines, 1) if "read()" in line]


@pytest.mark.parametrize("name", PROGRAMS)
def test_loop_ends_by_itself_or_not(name, file):
    text, only_by_values = PROGRAMS[name]
    reads = keep(file, text)
    outermost = [*loops_around(file, reads[0])][-1]
    assert outermost.is_ended_by(set(reads)) is only_by_values


def test_line_that_no_exit_depends_on_decides_nothing(file):
    reads = keep(file, "while True:\n    print(read())\n    x = read()\n    if x < 1:\n        break")
    (loop,) = loops_around(file, reads[0])
    assert [loop.depends_on(line) for line in reads] == [False, True]
    assert loop.is_ended_by(set(reads))
    assert not loop.is_ended_by({reads[0]})


def test_checks_are_found(file):
    keep(file, "assert x\nif read():\n    raise ValueError\nif x:\n    y = 1")
    assert [check_at(file, line) for line in range(1, 6)] == [{True}, {False}, None, None, None]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("assert a > b, read()", {True}),
        ("assert not a > b", {False}),
        ("assert a > b and (c or not d)", {True, False}),
        ("if not (a > b or c):\n    raise ValueError", {True}),
        ("if a > b:\n    read()\n    raise ValueError\nelse:\n    read()", {False}),
    ],
)
def test_check_passes_with_values_of_its_conditions(text, values, file):
    keep(file, text)
    assert check_at(file, 1) == values


@pytest.mark.parametrize("text", ["while True", "\0", "", "while " + "(" * 500])
def test_source_that_is_no_python_has_no_loops(text, file):
    linecache.cache[file] = (len(text), None, [text], file)
    assert [*loops_around(file, 1)] == []
