"""The result of `forebay fit` for other programs: a table for a comment, and requests of Slurm and Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay import profiles
from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay._base.verdicts import Verdict

if TYPE_CHECKING:
    from forebay.interop.torch.fit import FitResult, FitTable
    from forebay.interop.torch.program_versions import Versions

__all__ = ["FORMATS", "About"]

_MARK = "<!-- forebay fit -->"  # by which a bot finds its comment
_HEADINGS = ("card", "", "allocated", "reserved", "nvidia-smi", "of")
_SAME = 1 << 20  # bytes of a change that is not worth a remark


@dataclass(frozen=True)
class About:
    """Facts that a format shows besides the results."""

    versions: Versions
    count: int  # devices that the program uses
    base: Sequence[dict[str, Any]] = ()  # the results of another commit, as JSON


def _markdown(found: FitTable, about: About) -> str:
    versions, earlier = about.versions, {each["profile"]: each for each in about.base}
    headings = [*_HEADINGS, "before", "change"] if earlier else [*_HEADINGS]
    lines = [_MARK, f"### {_headline(found)}", "", _row(headings), _row(["---"] * 2 + ["---:"] * (len(headings) - 2))]
    for each in found:
        sizes = (each.peak_allocated, each.peak_reserved, each.in_use.value, each.capacity)
        cells = [each.profile, str(each.text or each.verdict), *map(format_bytes, sizes)]
        lines.append(_row([*cells, *(_change(each, earlier.get(each.profile)) if earlier else ())]))
    lines.append("")
    for each in found:
        if not each.fits:
            reasons = " ".join(each.reasons) or each.message
            lines.append(f"* {each.profile}: {_plain(reasons)}" if reasons else "")
        if each.settings:
            lines.append(f"* {each.profile}: fits with `{_plain(each.settings[0])}`")
    if assumed := {line.line for each in found for line in each.assumptions}:
        lines.append(f"* values were assumed in {len(assumed)} {'line' if len(assumed) == 1 else 'lines'}")
    for remark in filter(None, [versions.text, *versions.warnings]):
        lines += ["", f"<sub>{_plain(remark)}</sub>"]
    return "\n".join(line for at, line in enumerate(lines) if line or lines[at - 1])


def _headline(found: FitTable) -> str:
    fitting = [each.profile for each in found if each.fits]
    others = [each.profile for each in found if not each.fits]
    if not others:
        return f"The program fits on {', '.join(fitting)}"
    return f"The program does not fit on {', '.join(others)}" if fitting else "The program fits on none of the cards"


def _change(now: FitResult, before: dict[str, Any] | None) -> tuple[str, str]:
    if before is None:
        return "", ""
    verdict, peak = str(before.get("verdict", "")), before.get("peak_allocated")
    if not isinstance(peak, int):
        return _plain(verdict), ""
    more = now.peak_allocated - peak
    if verdict != str(now.verdict) and "did not finish" in (verdict, str(now.verdict)):
        return _plain(verdict), "not comparable"
    sign = "+" if more > 0 else "-"
    size = "none" if abs(more) < _SAME else f"{sign}{format_bytes(abs(more))}"
    return f"{_plain(verdict)}, {format_bytes(peak)}", size


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(each) for each in cells)} |"


def _plain(text: str) -> str:
    """Return a text that is no markup of Markdown or HTML."""
    text = printable(" ".join(text.split()))
    for character in "|<>`*_[]":
        if character in text and not (character == "_" and " " not in text):
            text = text.replace(character, {"<": "&lt;", ">": "&gt;"}.get(character, f"\\{character}"))
    return text


def _smallest(found: FitTable) -> FitResult | None:
    """Return the result of the smallest card on which the program fits; a tight one if there is no other."""
    fitting = [each for each in found if each.fits]
    return min(fitting, key=lambda each: (each.verdict is Verdict.TIGHT, each.capacity), default=None)


def _comments(found: FitTable, chosen: FitResult | None) -> list[str]:
    lines = []
    if chosen is not None:
        use, of = format_bytes(chosen.in_use.value), format_bytes(chosen.capacity)
        lines.append(f"# forebay fit: {chosen.text or chosen.verdict} on {chosen.profile}, {use} of {of} in use")
    others = [each for each in found if not each.fits]
    lines += [f"# {each.profile}: {printable(str(each.text or each.verdict))}" for each in others]
    return [*lines, *([] if chosen else ["# no card of these suffices: no request"])]


def _slurm(found: FitTable, about: About) -> str:
    chosen = _smallest(found)
    lines = _comments(found, chosen)
    if chosen is not None:
        lines += [
            "# the names of the types are the cluster's: sinfo --format=%G",
            f"#SBATCH --gres=gpu:{_type(chosen)}:{about.count}",
        ]
    return "\n".join(lines)


def _type(chosen: FitResult) -> str:
    """Return the usual name of a card in a cluster, which has neither the memory nor the slot."""
    return re.sub(r"_(?:pcie|\d+gb)", "", chosen.profile)


def _kubernetes(found: FitTable, about: About) -> str:
    chosen = _smallest(found)
    lines = _comments(found, chosen)
    if chosen is not None:
        name = str(profiles.load(chosen.profile).properties["name"])
        selector = ["  nodeSelector:", f"    nvidia.com/gpu.product: {name.replace(' ', '-')}"]
        vendor = "amd.com" if name.startswith("AMD") else "nvidia.com"
        lines += [
            *([] if vendor == "amd.com" else ["# the label is that of NVIDIA's GPU feature discovery"]),
            "spec:",
            *([] if vendor == "amd.com" else selector),
            "  containers:",
            "    - name: main",
            "      resources:",
            "        limits:",
            f"          {vendor}/gpu: {about.count}",
        ]
    return "\n".join(lines)


FORMATS: dict[str, Callable[[FitTable, About], str]] = {
    "markdown": _markdown,
    "slurm": _slurm,
    "k8s": _kubernetes,
}
