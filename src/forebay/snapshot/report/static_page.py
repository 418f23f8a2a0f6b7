"""An HTML page of paragraphs: one file without scripts and requests, the same bytes for the same paragraphs."""

from __future__ import annotations

from collections.abc import Sequence

from forebay._base.html_repr import Html, escape_text
from forebay.snapshot.report.paragraph import Paragraph

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --page: #f5f6f8; --card: #fff; --line: #e2e5ea; --ink: #1b2330; --soft: #566070;
  --accent: #0b6e99; --bar: #cfe3ee; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --card: #151b23; --line: #2a323d; --ink: #e8ecf1;
  --soft: #9aa5b3; --accent: #5cc1ea; --bar: #1d4053; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 24px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0; }
section { margin-top: 18px; padding: 18px 22px; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
p { margin: 4px 0 0; max-width: 90ch; overflow-wrap: anywhere; }
pre { margin: 10px 0 0; padding: 8px 12px; border: 1px solid var(--line); border-radius: 8px; overflow-x: auto;
  font: 13.5px/1.4 ui-monospace, Menlo, Consolas, monospace; color: var(--accent); }
.scroll { overflow-x: auto; margin-top: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 500; color: var(--soft); border-bottom: 1px solid var(--line); }
th, td { padding: 4px 18px 4px 0; vertical-align: top; }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td:not(.n) { min-width: 14em; overflow-wrap: anywhere; }
tr + tr td { border-top: 1px solid var(--line); }
i { display: block; height: 5px; margin-top: 2px; border-radius: 3px; background: var(--bar);
  background: linear-gradient(var(--accent) 0 0) 0 / var(--share) 100% no-repeat, var(--bar); }
figure { margin: 12px 0 0; }
figcaption span { margin-right: 18px; color: var(--soft); font-size: 13px; white-space: nowrap; }
figcaption b { display: inline-block; width: 16px; margin-right: 6px; vertical-align: middle; border-top: 3px solid; }
svg { display: block; width: 100%; height: 200px; margin-top: 8px; border-bottom: 1px solid var(--line); }
path { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
path.c0 { stroke: var(--soft); } path.c1 { stroke: var(--accent); }
.c0 b { border-color: var(--soft); } .c1 b { border-color: var(--accent); }
.axis { display: flex; justify-content: space-between; color: var(--soft); font-size: 13px; }
footer { margin-top: 18px; color: var(--soft); font-size: 13px; }
@media (max-width: 600px) { body { padding: 12px; } section { padding: 14px; } }
"""


def page(title: str, parts: Sequence[Paragraph]) -> str:
    """Return an HTML page.

    Parameters
    ----------
    title : str
        Its title.
    parts : sequence of Paragraph
        Its sections.

    Returns
    -------
    str
        The page. Text is escaped, and the content security policy permits nothing but the page's own style.

    Examples
    --------
    >>> text = page("Growth", [Paragraph("Sites", ("Two <b> grew.",), ("site", "bytes"), (("a.py:1 f", "2 B"),))])
    >>> "<h2>Sites</h2><p>Two &lt;b&gt; grew.</p>" in text
    True
    """
    name = escape_text(title)
    sections = "".join(map(_section, parts))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="generator" content="forebay">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} · forebay</title>\n<style>{_STYLE}</style>\n"
        f"<body>\n<main>\n<h1>{name}</h1>\n{sections}</main>\n"
        "<footer>Live: bytes that the program requested and has not freed. Reserved: device memory in the allocator's "
        "segments. Site: the innermost stack frame outside the libraries.</footer>\n</body>\n</html>\n"
    )


def _section(part: Paragraph) -> str:
    text = "".join(f"<p>{escape_text(sentence)}</p>" for sentence in part.sentences)
    line = f'<pre tabindex="0">{escape_text(part.line)}</pre>' if part.line else ""
    return f"<section><h2>{escape_text(part.heading)}</h2>{text}{line}{_chart(part)}{_table(part)}</section>\n"


def _chart(part: Paragraph) -> str:
    """Return the curves as steps of a picture, with the texts outside of it, as its width follows the page."""
    chart = part.chart
    if chart is None:
        return ""
    count = len(chart.curves[0][1])
    paths = "".join(
        f'<path class="c{number}" d="{_path(values, chart.top)}"/>' for number, (_, values) in enumerate(chart.curves)
    )
    legend = "".join(
        f'<span class="c{number}"><b></b>{escape_text(name)}</span>' for number, (name, _) in enumerate(chart.curves)
    )
    label = escape_text(f"{part.heading}: {', '.join(name for name, _ in chart.curves)}")
    return (
        f"<figure><figcaption>{legend}</figcaption>"
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {count} 100" preserveAspectRatio="none">{paths}</svg>'
        f'<div class="axis"><span>{escape_text(chart.start)}</span><span>{escape_text(chart.end)}</span></div></figure>'
    )


def _path(values: Sequence[int | None], top: int) -> str:
    parts, drawn = [], False
    for at, nbytes in enumerate(values):
        if nbytes is not None:
            height = f"{100 - nbytes / top * 98:.2f}"
            parts.append(f"{'V' if drawn else f'M{at} '}{height}H{at + 1}")
        drawn = nbytes is not None
    return "".join(parts)


def _table(part: Paragraph) -> str:
    if not part.rows:
        return ""
    kinds = ["" if number in part.text_columns else ' class="n"' for number in range(len(part.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{escape_text(name)}</th>' for kind, name in zip(kinds, part.columns, strict=True)
    )
    shares: Sequence[float | None] = part.shares or [None] * len(part.rows)
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, _cells(row, share), strict=True))
        + "</tr>"
        for row, share in zip(part.rows, shares, strict=True)
    )
    label = escape_text(part.heading)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], share: float | None) -> list[str]:
    first, *others = (escape_text(cell) for cell in row)
    bar = "" if share is None else f'<i style="--share:{min(max(share, 0.0), 1.0):.2%}"></i>'
    return [Html(first + bar), *others]
