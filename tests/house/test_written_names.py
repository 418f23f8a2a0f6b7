"""Functions that tools/write_names.py writes from tables are those of the tables, and tables repeat nothing."""

from __future__ import annotations

import tomllib
from collections import Counter

import pytest

SPELLED = ("parameters", "raises", "warns")
TABLE = """
[modules]
all = { file = "part/a.py", package = "part/__init__.py", torch = "torch" }
methods = { file = "part/a.py", class = "Numbers" }

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

[own_root.all]
package = false
summary = "Return the root."
code = "return 2"

[inner_root.all]
internal = true
summary = "Return the root."
code = "return 3"

[root.methods]
summary = "Print the root."
parameters = ["first", "*", "other"]
code = "print(input, number**0.5)"
"""
PACKAGE = """from forebay.part.a import LIMIT, old, sum_of
from forebay.part.a import other as _other

__all__ = ["LIMIT", "old", "sum_of"]
"""
WRITTEN_PACKAGE = """from forebay.part.a import LIMIT, root, sum_of
from forebay.part.a import other as _other

__all__ = ["LIMIT", "root", "sum_of"]
"""
MODULE = """import math

__all__ = [
    "LIMIT",
    "Numbers",
    "old",
    "sum_of",
]

# Written by tools/write_names.py from tools/names/numbers.toml: edit the table, not these lines.


def old() -> None: ...


# End of the written lines.


class Numbers:
    # Written by tools/write_names.py from tools/names/numbers.toml: edit the table, not these lines.
    # End of the written lines.

    pass
"""
WRITTEN = '''import math

__all__ = [
    "LIMIT",
    "Numbers",
    "inner_root",
    "own_root",
    "root",
    "sum_of",
]

# Written by tools/write_names.py from tools/names/numbers.toml: edit the table, not these lines.


def root(number: int) -> float:
    """Return the root.

    As `torch.root`. Exact.

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

    Examples
    --------
    >>> root(4)
    2.0
    """
    return number**0.5


def own_root() -> None:
    """Return the root."""
    return 2


def inner_root() -> None:
    """Return the root."""
    return 3


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


@pytest.fixture
def planted(tmp_path, write_names):
    """Return a function that makes a checkout of one table and one module, and returns the texts of its files."""

    def plant(table=TABLE, module=MODULE, package=PACKAGE):
        part = tmp_path / "src/forebay/part"
        (tmp_path / "tools/names").mkdir(parents=True)
        part.mkdir(parents=True)
        (tmp_path / "tools/names/shared.toml").write_text("")
        (tmp_path / "tools/names/numbers.toml").write_text(table)
        (part / "a.py").write_text(module)
        (part / "__init__.py").write_text(package)
        texts = write_names.written_files(tmp_path)
        return texts[part / "a.py"], texts[part / "__init__.py"]

    return plant


def tables(root):
    return {path.name: tomllib.loads(path.read_text()) for path in sorted((root / "tools/names").glob("*.toml"))}


def test_modules_are_what_the_tables_describe(root, write_names):
    differing = [path for path, text in write_names.written_files(root).items() if path.read_text() != text]
    assert differing == [], "edit the tables in tools/names/ and run python3 tools/write_names.py"


def test_written_lines_of_every_module_have_a_table(root, write_names):
    described = {root / "src/forebay" / each.place["file"] for each in write_names.described(root)}
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


def repeated_entries(found):
    """Return the entries that functions of a table spell out twice, or that have a name."""
    named = {
        (section, *entry)
        for table in found.values()
        for section in SPELLED
        for entry in table.get(section, {}).values()
    }
    spelled = Counter(
        (section, *entry)
        for table in found.values()
        for function in table.values()
        for row in (function, *function.values())
        if isinstance(row, dict)
        for section in SPELLED
        for entry in row.get(section, ())
        if isinstance(entry, list)
    )
    return sorted(entry for entry, count in spelled.items() if count > 1 or entry in named)


def test_parameters_and_errors_are_spelled_once(root):
    assert repeated_entries(tables(root)) == []


def test_planted_repetition_is_found():
    table = tomllib.loads(TABLE)
    assert repeated_entries({"numbers.toml": table}) == []
    table["root"]["all"]["raises"] = [["ValueError", "If the number is negative."]]
    assert repeated_entries({"numbers.toml": table}) == [("raises", "ValueError", "If the number is negative.")]
    table["root"]["all"]["raises"] = [["TypeError", "Always."]]
    assert repeated_entries({"a": table, "b": table}) == [("raises", "TypeError", "Always.")]


def test_planted_table_is_written(planted):
    assert planted()[0] == WRITTEN


def test_function_is_listed_and_imported_by_its_package(planted):
    assert planted()[1] == WRITTEN_PACKAGE


def test_written_text_stays_as_it_is(planted):
    assert planted(module=WRITTEN, package=WRITTEN_PACKAGE) == (WRITTEN, WRITTEN_PACKAGE)


def test_change_of_a_written_line_is_undone(planted):
    assert planted(module=WRITTEN.replace("Exact.", "Rounded."), package=WRITTEN_PACKAGE)[0] == WRITTEN


def test_reference_has_the_functions_that_are_not_internal(planted, tmp_path, write_names):
    planted()
    names = write_names.documented_names("numbers", "all", tmp_path)
    assert names == ["forebay.part.root", "forebay.part.a.own_root"]


def test_long_list_of_a_package_has_a_name_in_each_line(planted):
    names = [f"number_{letter * 20}" for letter in "abcd"]
    package = f"from forebay.part.a import {', '.join(names)}\n\n__all__ = {names}\n".replace("'", '"')
    changed = planted(package=package)[1]
    begin, listed = changed.split("\n\n")
    assert begin == "\n".join(["from forebay.part.a import (", *(f"    {name}," for name in [*names, "root"]), ")"])
    assert listed == "\n".join(["__all__ = [", *(f'    "{name}",' for name in [*names, "root"]), "]", ""])


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("import math\n", r"part/__init__\.py needs the line `from forebay\.part\.a import …`"),
        ("from forebay.part.a import sum_of\n", r"part/__init__\.py needs the list `__all__`"),
        ("from forebay.part.a import (  # why\n    sum_of,\n)\n", r"needs line 1 without a comment inside"),
    ],
)
def test_package_without_its_lists_is_named(planted, package, message):
    with pytest.raises(SystemExit, match=message):
        planted(package=package)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.replace("summary", "sumary"), "root has the unknown key 'sumary'"),
        (TABLE.replace('raises = ["negative"]', 'raises = ["positive"]'), "root of part/a.py needs 'positive'"),
        (TABLE.replace('code = "return number**0.5"', ""), "root of part/a.py needs 'code'"),
        (TABLE.replace(', torch = "torch"', ""), "root of part/a.py needs 'torch'"),
    ],
)
def test_mistake_in_a_table_is_named(planted, table, message):
    with pytest.raises(SystemExit, match=message):
        planted(table)


def test_module_without_the_comments_is_named(planted):
    with pytest.raises(SystemExit, match=r"part/a\.py needs the lines '# Written by"):
        planted(module="import math\n")
