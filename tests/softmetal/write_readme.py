"""Write the table of rules in README.md.

python tests/softmetal/write_readme.py
"""

from __future__ import annotations

import sys
from pathlib import Path

README = Path(__file__).with_name("README.md")
_BEGIN = "<!-- rules, written by write_readme.py -->\n"


def table(rules: dict[str, tuple[str, str]]) -> str:
    """Return the rules as a table of Markdown."""
    rows = [f"| `{key}` | {text} | {source} |\n" for key, (text, source) in rules.items()]
    return "".join(["| name | rule | source |\n|---|---|---|\n", *rows])


def with_table(readme: str, rules: dict[str, tuple[str, str]]) -> str:
    """Return the README with the current table at its end."""
    return readme[: readme.index(_BEGIN)] + _BEGIN + table(rules)


if __name__ == "__main__":
    sys.path[0] = str(README.parents[1])  # not this folder, whose modules belong to the package
    from softmetal.rules import RULES

    README.write_text(with_table(README.read_text(encoding="utf-8"), RULES), encoding="utf-8")
