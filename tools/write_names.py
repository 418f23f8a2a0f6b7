"""Write the functions that tables describe: PyTorch's names that several device kinds have, and tensor factories.

Such functions repeat parameters and entries of docstrings, and differ in a line of code. A table in tools/names/ states
what differs; tools/names/README.md describes the format. The script writes ordinary functions between two comments of
the modules that the table names, so that editors, type checkers and help() need nothing from the tables.

`--check` writes nothing and fails if a file differs, as tests/house/test_written_names.py does.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steps import ROOT, fail

Row = dict[str, Any]  # a function of one module, by the keys below
Entries = dict[str, dict[str, list[str]]]  # the named parameters, errors, ... of a table, by section

TABLES = ROOT / "tools/names"
SHARED = "shared"  # the table whose entries all others may use
WIDTH = 120
SECTIONS = ("returns", "yields", "raises", "warns")
KEYS = {"summary", "details", "parameters", "result", "notes", "examples", "code", "comment", "decorator", *SECTIONS}
BEGIN = "# Written by tools/write_names.py from {table}: edit the table, not these lines."
END = "# End of the written lines."


def main(arguments: list[str]) -> int:
    if unknown := {*arguments} - {"--check"}:
        fail(f"unknown argument {min(unknown)!r}")
    stale = {path: text for path, text in written_files().items() if path.read_text() != text}
    if stale and "--check" in arguments:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        fail(f"tools/names/ describes something else than {names}: edit the tables and run tools/write_names.py")
    for path, text in stale.items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    return 0


def written_files(root: Path = ROOT) -> dict[Path, str]:
    """Return the text that each file should have, by path."""
    texts: dict[Path, str] = {}
    for table, place, functions in described(root):
        file = root / "src/forebay" / place["file"]
        indent = "    " if "class" in place else ""
        lines = [[f"{indent}{line}" if line else "" for line in lines] for lines in functions.values()]
        begin = indent + BEGIN.format(table=f"tools/names/{table}.toml")
        text = texts[file] if file in texts else file.read_text()
        gap = "\n\n" if indent else "\n\n\n"
        texts[file] = with_region(text, begin, indent + END, ["\n".join(each) for each in lines], file, gap)
    return texts


def described(root: Path = ROOT) -> Iterator[tuple[str, dict[str, str], dict[str, list[str]]]]:
    """Yield each table's name, each of its modules, and the lines of the module's functions by their names."""
    tables = {path.stem: tomllib.loads(path.read_text()) for path in sorted((root / "tools/names").glob("*.toml"))}
    shared = tables.pop(SHARED)
    for name, table in tables.items():
        entries = {key: {**shared.get(key, {}), **table.pop(key, {})} for key in ("parameters", *SECTIONS)}
        for column, place in table.pop("modules").items():
            functions = {}
            for called, row in rows(table, column):
                if unknown := row.keys() - KEYS:
                    fail(f"{name}.toml: {called} has the unknown key {min(unknown)!r}")
                try:
                    functions[called] = function(called, row, place, entries)
                except KeyError as error:
                    fail(f"{name}.toml: {called} of {place['file']} needs {error}")
            yield name, place, functions


def rows(table: dict[str, Any], column: str) -> Iterator[tuple[str, Row]]:
    """Yield the functions of one module: what all modules share, and what is the module's own."""
    for name, row in table.items():
        if column in row:
            yield name, {**{key: value for key, value in row.items() if not isinstance(value, dict)}, **row[column]}


def with_region(text: str, begin: str, end: str, functions: list[str], file: Path, gap: str) -> str:
    """Return the text of a file with these functions between its two comments."""
    lines = text.split("\n")
    if begin not in lines or end not in lines:
        fail(f"{file} needs the lines {begin.strip()!r} and {end.strip()!r}")
    first, last = lines.index(begin), lines.index(end)
    written = f"{begin}{gap}{gap.join(functions)}{gap}{end}"
    return "\n".join([*lines[:first], written, *lines[last + 1 :]])


def function(name: str, row: Row, place: dict[str, str], entries: Entries) -> list[str]:
    """Return the lines of one function, without the indentation of its class."""
    width = WIDTH - 4 * ("class" in place)
    parameters = [parameter(each, entries["parameters"]) for each in row.get("parameters", [])]
    documented = [entry(each, entries["returns"])[0] for each in row.get("returns", [])]
    result = row.get("result") or (documented[0] if len(documented) == 1 else "None")
    code = [*(["self"] if "class" in place else []), *(each[0] for each in parameters)]
    lines = [f"@{row['decorator']}"] if "decorator" in row else []
    lines += signature(name, code, result, row.get("comment", ""), width)
    body = [*docstring(name, row, place, entries, parameters, width - 4), *row["code"].rstrip("\n").split("\n")]
    return lines + [f"    {line}" if line else "" for line in body]


def entry(spelled: str | list[str], known: dict[str, list[str]]) -> list[str]:
    """Return an entry that a table spells out, or refers to by its name."""
    return known[spelled] if isinstance(spelled, str) else spelled


def parameter(spelled: str | list[str], known: dict[str, list[str]]) -> list[str]:
    """Return the code, type and text of a parameter; of the markers * and / only the code."""
    if spelled in ("*", "/"):
        return [str(spelled)]
    found = entry(spelled, known)
    if len(found) == len(["name", "text"]):
        return [*parameter(found[0], known)[:2], found[1]]
    return found


def signature(name: str, parameters: list[str], result: str, comment: str, width: int) -> list[str]:
    """Return the first lines of a function as ruff formats them."""
    inside, end = ", ".join(parameters), f") -> {result}:"
    tail = f"{end}  # {comment}" if comment else end
    if not any("  # " in each for each in parameters):
        if len(f"def {name}({inside}{end}") <= width:
            return [f"def {name}({inside}{tail}"]
        if len(f"    {inside}") <= width:
            return [f"def {name}(", f"    {inside}", tail]
    split = (each.partition("  # ") for each in parameters)
    return [f"def {name}(", *(f"    {code},{mark}{reason}" for code, mark, reason in split), tail]


def docstring(
    name: str, row: Row, place: dict[str, str], entries: Entries, parameters: list[list[str]], width: int
) -> list[str]:
    """Return the docstring in NumPy style."""
    lines: list[str] = []
    if "details" in row:
        lines += ["", *wrapped(row["details"], width)]
    # Parameters that have only code are documented elsewhere.
    texts = [[f"{each[0].partition(':')[0]} : {each[1]}", each[2]] for each in parameters if len(each) > 1]
    lines += section("Parameters", texts, width)
    for key in SECTIONS:
        lines += section(key.capitalize(), [entry(each, entries[key]) for each in row.get(key, [])], width)
    if "notes" in row:
        notes = row["notes"]
        if "{as}" in notes:
            notes = notes.replace("{as}", f"As `{place['torch']}.{name}`.")
        lines += ["", "Notes", "-----", *wrapped(notes, width)]
    if "examples" in row:
        lines += ["", "Examples", "--------", *row["examples"].rstrip("\n").split("\n")]
    return [f'"""{row["summary"]}', *lines, '"""'] if lines else [f'"""{row["summary"]}"""']


def section(title: str, described_entries: list[list[str]], width: int) -> list[str]:
    """Return a section of names or types, each with its text if it has one."""
    lines = ["", title, "-" * len(title)] if described_entries else []
    for head, *texts in described_entries:
        lines.append(head)
        lines += [f"    {line}" if line else "" for text in texts for line in wrapped(text, width - 4)]
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text; a line break in the table is one in the docstring."""
    return [
        line
        for part in text.rstrip("\n").split("\n")
        for line in textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
