"""Functions that tools/write_names.py writes from tables are those of the tables, and tables repeat nothing."""

from __future__ import annotations

import importlib
import tomllib

import pytest

TABLE = """
[modules]
all = { file = "a.py", torch = "torch" }
methods = { file = "a.py", class = "Numbers" }

[parameters]
number = ["number: int", "int", "The number."]
other = ["number", "Another number."]
first = ["input: int  # noqa: A002 -- PyTorch's name", "int", "The first."]

[raises]
negative = ["ValueError", "If the number is negative."]

[root]
parameters = ["number"]
raises = ["negative"]

[root.all]
summary = "Return the root."
returns = [["float", "The root."]]
notes = "{as} Exact."
examples = '''
>>> root(4)
2.0
'''
code = "return number**0.5"

[root.methods]
summary = "Print the root."
parameters = ["first", "*", "other"]
code = "print(input, number**0.5)"
"""
MODULE = """import math

# Written by tools/write_names.py from tools/names/numbers.toml: edit the table, not these lines.
# End of the written lines.


class Numbers:
    # Written by tools/write_names.py from tools/names/numbers.toml: edit the table, not these lines.
    # End of the written lines.

    pass
"""
WRITTEN = '''import math

# Written by tools/write_names.py from tools/names/numbers.toml: edit the table, not these lines.


def root(number: int) -> float:
    """Return the root.

    Parameters
    ----------
    number : int
        The number.

    Returns
    -------
    float
        The root.

    Raises
    ------
    ValueError
        If the number is negative.

    Notes
    -----
    As `torch.root`. Exact.

    Examples
    --------
    >>> root(4)
    2.0
    """
    return number**0.5


# End of the written lines.


class Numbers:
    # Written by tools/write_names.py from tools/names/numbers.toml: edit the table, not these lines.

    def root(
        self,
        input: int,  # noqa: A002 -- PyTorch's name
        *,
        number: int,
    ) -> None:
        """Print the root.

        Parameters
        ----------
        input : int
            The first.
        number : int
            Another number.

        Raises
        ------
        ValueError
            If the number is negative.
        """
        print(input, number**0.5)

    # End of the written lines.

    pass
'''


@pytest.fixture(scope="module")
def write_names(root):
    """Return tools/write_names.py."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(root / "tools")
        yield importlib.import_module("write_names")


@pytest.fixture
def planted(tmp_path, write_names):
    """Return a function that makes a checkout of one table and one module, and returns the module's path and text."""

    def plant(table=TABLE, module=MODULE):
        (tmp_path / "tools/names").mkdir(parents=True)
        (tmp_path / "src/forebay").mkdir(parents=True)
        (tmp_path / "tools/names/shared.toml").write_text("")
        (tmp_path / "tools/names/numbers.toml").write_text(table)
        path = tmp_path / "src/forebay/a.py"
        path.write_text(module)
        return path, write_names.written_files(tmp_path)[path]

    return plant


def tables(root):
    return {path.name: tomllib.loads(path.read_text()) for path in sorted((root / "tools/names").glob("*.toml"))}


def test_modules_are_what_the_tables_describe(root, write_names):
    differing = [path for path, text in write_names.written_files(root).items() if path.read_text() != text]
    assert differing == [], "edit the tables in tools/names/ and run python3 tools/write_names.py"


def test_written_lines_of_every_module_have_a_table(root, write_names):
    described = write_names.written_files(root).keys()
    begin = write_names.BEGIN.partition("{")[0]
    assert {path for path in root.glob("src/**/*.py") if begin in path.read_text()} == described


def spelled_names(value):
    """Return all names of entries in a part of a table, and all other texts."""
    if isinstance(value, dict):
        return {name for each in value.values() for name in spelled_names(each)}
    if isinstance(value, list):
        return {name for each in value for name in spelled_names(each)}
    return {value}


def test_every_named_entry_is_used(root, write_names):
    found, sections = tables(root), ("parameters", *write_names.SECTIONS)
    used = set().union(*(spelled_names(table) for table in found.values()))
    named = {(file, name) for file, table in found.items() for key in sections for name in table.get(key, {})}
    assert sorted(file + " " + name for file, name in named if name not in used) == []


def test_planted_table_is_written(planted):
    assert planted()[1] == WRITTEN


def test_written_text_stays_as_it_is(planted):
    assert planted(module=WRITTEN)[1] == WRITTEN


def test_change_of_a_written_line_is_undone(planted):
    assert planted(module=WRITTEN.replace("Exact.", "Rounded."))[1] == WRITTEN


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.replace("summary", "sumary"), "root has the unknown key 'sumary'"),
        (TABLE.replace('raises = ["negative"]', 'raises = ["positive"]'), "root of a.py needs 'positive'"),
        (TABLE.replace('code = "return number**0.5"', ""), "root of a.py needs 'code'"),
        (TABLE.replace(', torch = "torch"', ""), "root of a.py needs 'torch'"),
    ],
)
def test_mistake_in_a_table_is_named(planted, table, message):
    with pytest.raises(SystemExit, match=message):
        planted(table)


def test_module_without_the_comments_is_named(planted):
    with pytest.raises(SystemExit, match=r"a\.py needs the lines '# Written by"):
        planted(module="import math\n")
