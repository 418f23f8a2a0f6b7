"""Every suppressed lint or type rule states its reason in place."""

from __future__ import annotations

import re


def unexplained_settings(pyproject: str) -> list[str]:
    """Return the lines of ruff's ignore lists that have a rule but no comment."""
    sections = re.split(r"^(?=\[)", pyproject, flags=re.MULTILINE)
    lint = next(section for section in sections if section.startswith("[tool.ruff.lint]"))
    ignore = re.search(r"^ignore = \[$(.*?)^\]$", lint, re.MULTILINE | re.DOTALL)
    per_file = next(section for section in sections if section.startswith("[tool.ruff.lint.per-file-ignores]"))
    lines = (ignore[1] if ignore else "no ignore list\n" + lint) + per_file
    return [line.strip() for line in lines.splitlines() if '"' in line and not re.search(r'= \[$|",? +# .*\w', line)]


def unexplained_comments(source: str) -> list[str]:
    """Return the `noqa` and `type: ignore` comments without a code or without a reason."""
    noqa = r"noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*\W+\w.*\w"
    ignore = r"type: ignore\[[\w, -]+\]\W+\w.*\w"
    comments = re.findall(r"# ?(?:noqa|type: ?ignore).*", source)
    return [comment for comment in comments if not re.match(rf"# (?:{noqa}|{ignore})", comment)]


def test_ruff_exceptions_have_reasons(root):
    assert unexplained_settings((root / "pyproject.toml").read_text()) == []


def test_suppression_comments_have_reasons(root):
    sources = [*root.glob("src/**/*.py*"), root / "dev.py", root / "setup.py"]
    texts = {path: path.read_text() for path in sources if path.suffix in {".py", ".pyi", ".pyx"}}
    assert {path.name: found for path, text in texts.items() if (found := unexplained_comments(text))} == {}


def test_planted_setting_without_reason_is_found():
    good = """\
[tool.ruff.lint]
ignore = [
    "D1", # said already
]
[tool.ruff.lint.per-file-ignores]
"a/**" = [
    "S", # ours
]
"""
    assert unexplained_settings(good) == []
    assert unexplained_settings(good.replace(" # said already", "")) == ['"D1",']
    assert unexplained_settings(good.replace(" # ours", "")) == ['"S",']
    assert unexplained_settings(good.replace('[\n    "S", # ours\n]', '["S"]')) == ['"a/**" = ["S"]']


def test_planted_comment_without_reason_is_found():
    good = "x  # noqa: F403, S301 -- a list is the suite\ny  # type: ignore[misc]  # Cython's classes are final\n"
    assert unexplained_comments(good) == []
    for bad in ("# noqa", "# noqa: F403", "# type: ignore", "# type: ignore[misc]", "# type: ignore  # why"):
        assert unexplained_comments(f"x  {bad}\n") == [bad]
