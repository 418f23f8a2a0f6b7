"""Write the functions that tables describe: PyTorch's names that several device kinds have, and tensor factories.

Such functions repeat parameters and entries of docstrings, and differ in a line of code. A table in tools/names/ states
what differs; tools/names/README.md describes the format. The script writes ordinary functions between two comments of
the modules that the table names, so that editors, type checkers and help() need nothing from the tables. It adds them
to `__all__` of the module, and to the imports and `__all__` of the package that the table names.
`docs/written_functions.py` shows them in the reference.

`--check` writes nothing and fails if a file differs, as tests/house/test_written_names.py does.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from name_lists import with_imported, with_listed
from steps import ROOT, fail

Row = dict[str, Any]  # a function of one module, by the keys below
Entries = dict[str, dict[str, list[str]]]  # the named parameters, errors, ... of a table, by section

TABLES = ROOT / "tools/names"
SHARED = "shared"  # the table whose entries all others may use
WIDTH = 120
SECTIONS = ("returns", "yields", "raises", "warns")
PLACES = {"package", "internal"}  # keys that tell where a name is known
TEXTS = {"summary", "details", "parameters", "result", "notes", "examples", "code", "comment", "decorator", *SECTIONS}
KEYS = TEXTS | PLACES
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


class Written(NamedTuple):
    """The functions that a table describes for one module."""

    table: str
    column: str
    place: dict[str, str]
    lines: dict[str, list[str]]  # of each function
    rows: dict[str, Row]

    def in_package(self) -> list[str]:
        """Return the functions that are names of the package, too."""
        keys = self.rows.items() if "package" in self.place else ()
        return [name for name, row in keys if row.get("package", True) and not row.get("internal", False)]

    def documented(self) -> list[str]:
        """Return the full names under which the reference has the functions."""
        in_package = {*self.in_package()}
        home, package = (module_name(self.place[key]) if key in self.place else "" for key in ("file", "package"))
        return [
            f"{package if name in in_package else home}.{name}"
            for name, row in self.rows.items()
            if not row.get("internal", False)
        ]


def written_files(root: Path = ROOT) -> dict[Path, str]:
    """Return the text that each file should have, by path."""
    texts: dict[Path, str] = {}

    def text_of(file: Path) -> str:
        return texts[file] if file in texts else file.read_text()

    for each in described(root):
        file = root / "src/forebay" / each.place["file"]
        indent = "    " if "class" in each.place else ""
        lines = [[f"{indent}{line}" if line else "" for line in code] for code in each.lines.values()]
        begin, end = indent + BEGIN.format(table=f"tools/names/{each.table}.toml"), indent + END
        text = text_of(file)
        gone = written_functions(text, begin, end) - each.lines.keys()
        gap = "\n\n" if indent else "\n\n\n"
        texts[file] = with_region(text, begin, end, ["\n".join(function) for function in lines], file, gap)
        if "class" in each.place:
            continue
        try:
            texts[file] = with_listed(texts[file], (name for name in each.lines if name[0] != "_"), gone)
            if "package" in each.place:
                file = root / "src/forebay" / each.place["package"]
                text = with_imported(text_of(file), module_name(each.place["file"]), each.in_package(), gone)
                texts[file] = with_listed(text, each.in_package(), gone)
        except LookupError as error:
            fail(f"{file} needs {error.args[0]}")
    return texts


def documented_names(table: str, column: str, root: Path = ROOT) -> list[str]:
    """Return the full names under which the reference has the functions that a table describes for one module."""
    return [
        name for each in described(root) if (each.table, each.column) == (table, column) for name in each.documented()
    ]


def module_name(file: str) -> str:
    """Return the name of a module below src/forebay: "forebay.cuda.streams" of "cuda/streams.py"."""
    return ".".join(["forebay", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


def comments(lines: list[str], begin: str, end: str) -> tuple[int, int] | None:
    """Return the places of the two comments, of which the second may be that of several tables."""
    first = lines.index(begin) if begin in lines else len(lines)
    return (first, lines.index(end, first)) if end in lines[first:] else None


def written_functions(text: str, begin: str, end: str) -> set[str]:
    """Return the names of the functions that a file has between its two comments; none without the comments."""
    lines, define = text.split("\n"), begin[: -len(begin.lstrip())] + "def "
    inside = slice(*comments(lines, begin, end) or (0, 0))
    return {line.removeprefix(define).partition("(")[0] for line in lines[inside] if line.startswith(define)}


def described(root: Path = ROOT) -> Iterator[Written]:
    """Yield the functions of each module of each table."""
    tables = {path.stem: tomllib.loads(path.read_text()) for path in sorted((root / "tools/names").glob("*.toml"))}
    shared = tables.pop(SHARED)
    for name, table in tables.items():
        entries = {key: {**shared.get(key, {}), **table.pop(key, {})} for key in ("parameters", *SECTIONS)}
        for column, place in table.pop("modules").items():
            functions: dict[str, list[str]] = {}
            rows = dict(rows_of(table, column))
            for called, row in rows.items():
                if unknown := row.keys() - KEYS:
                    fail(f"{name}.toml: {called} has the unknown key {min(unknown)!r}")
                try:
                    functions[called] = function(called, row, place, entries)
                except KeyError as error:
                    fail(f"{name}.toml: {called} of {place['file']} needs {error}")
            yield Written(name, column, place, functions, rows)


def rows_of(table: dict[str, Any], column: str) -> Iterator[tuple[str, Row]]:
    """Yield the functions of one module: what all modules share, and what is the module's own."""
    for name, row in table.items():
        if column in row:
            yield name, {**{key: value for key, value in row.items() if not isinstance(value, dict)}, **row[column]}


def with_region(text: str, begin: str, end: str, functions: list[str], file: Path, gap: str) -> str:
    """Return the text of a file with these functions between its two comments."""
    lines = text.split("\n")
    first, last = comments(lines, begin, end) or fail(f"{file} needs the lines {begin.strip()!r} and {end.strip()!r}")
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
    notes = row.get("notes", "")
    if "{as}" in notes:
        notes = notes.replace("{as}", f"As `{place['torch']}.{name}`.")
    has_section = "\n\n" in notes  # of a single paragraph, it would be longer than what it contains
    if notes and not has_section:
        lines += ["", *wrapped(notes, width)]
    # Parameters that have only code are documented elsewhere.
    texts = [[f"{each[0].partition(':')[0]} : {each[1]}", each[2]] for each in parameters if len(each) > 1]
    lines += section("Parameters", texts, width)
    for key in SECTIONS:
        lines += section(key.capitalize(), [entry(each, entries[key]) for each in row.get(key, [])], width)
    if has_section:
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
