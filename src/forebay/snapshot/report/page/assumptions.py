"""The lines of the program that received assumed values, in place of those that were not computed."""

from __future__ import annotations

from forebay._base.html_repr import escape_text
from forebay.snapshot.formats.known_notes import assumption_check_of, assumptions_of
from forebay.snapshot.report.page.view import View

__all__ = ["section"]


def section(view: View) -> str:
    """Return the section; "" if the snapshot lists none."""
    found = assumptions_of(view.snapshot.notes)
    if not found:
        return ""
    folder = view.folder or "\0"
    rows = "".join(
        f'<tr><td class="path">{escape_text(each.line.replace(folder, ""))}</td><td>{escape_text(each.text)}</td>'
        f"<td>{'once' if each.times == 1 else f'{each.times:,} times'}</td></tr>"
        for each in found
    )
    sentences = assumption_check_of(view.snapshot.notes)
    items = "".join(f'<li class="path">{escape_text(each.replace(folder, ""))}</li>' for each in sentences)
    check = f'<ul aria-label="Check">{items}</ul>' if items else ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("line", "assumed", "how often"))
    return (
        '<section class="card settings assumptions" aria-label="Assumed values"><h2>Assumed values</h2>'
        '<p class="note">No values were computed: these lines received assumed ones. The answer is as good as they '
        f'are.</p><div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f"</div>{check}</section>\n"
    )
