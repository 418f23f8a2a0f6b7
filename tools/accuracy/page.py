"""The page docs/accuracy.md: figures of all tools on the same rows, plots, and each miss with its cause."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from accuracy.measurements import Measurement
from accuracy.predictions import Prediction
from accuracy.scores import Score, Summary, score_rows, summary

__all__ = ["report", "write_page"]

DOCS = Path(__file__).parents[2] / "docs"
CAUSES = Path(__file__).parent / "causes.toml"
MISS = 0.03  # relative error above which a row gets a cause
MIB = 1 << 20
TITLES = {
    "xmem": "xMem's table: RTX 3060 and 4060",
    "gpumemnet_cnn18": "GPUMemNet's networks with public scripts: A100",
    "timm_a100": "GPUMemNet's timm models: A100",
}
TOOLS = {"xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune", "llmem": "LLMem", "FakeTensor": "FakeTensor"}
COLUMNS = ("median error", "90th percentile", "worst", "wrong or failing")


def report(rows: Mapping[str, Sequence[Measurement]], known: Mapping[str, Prediction]) -> str:
    """Return the figures of all tables as Markdown."""
    return "\n".join(line for table, scores in score_rows(rows, known).items() for line in section(table, scores))


def section(table: str, scores: Sequence[Score]) -> Iterator[str]:
    """Yield the lines about a table: figures by family and tool, then the misses."""
    if not scores:
        return
    yield from ("", f"## {TITLES[table]}", "", f"![Predicted beside measured](images/accuracy-{table}.svg)", "")
    yield f"| rows | tool | {' | '.join(COLUMNS)} |"
    yield "|---|---|" + "--:|" * len(COLUMNS)
    for title, group in groups(scores):
        yield line(
            title, "forebay", summary(errors(group), [each.is_wrong or each.fails_under_answer for each in group])
        )
        for tool, name in TOOLS.items():
            yield from others(title, tool, name, group)
    yield from ("", *facts(scores), "")
    yield from misses(scores)


def groups(scores: Sequence[Score]) -> Iterator[tuple[str, list[Score]]]:
    """Yield the rows of each family, without those whose lengths vary, and these."""
    for family in dict.fromkeys(each.row.family for each in scores):
        of_family = [each for each in scores if each.row.family == family]
        for varies, title in ((False, family), (True, f"{family}, random lengths")):
            if found := [each for each in of_family if each.row.varies == varies]:
                yield title, found


def errors(scores: Iterable[Score]) -> list[float]:
    """Return the errors of the rows that have a peak."""
    return [each.error for each in scores if not each.row.ran_out]


def others(title: str, tool: str, name: str, scores: Sequence[Score]) -> Iterator[str]:
    """Yield the line of another tool on the same rows, if it answered."""
    answers = [(each.row, each.row.published[tool]) for each in scores if tool in each.row.published]
    found = [answer.nbytes / row.recorded - 1 for row, answer in answers if not row.ran_out]
    if figures := summary(found, [answer.failed for _, answer in answers]):
        yield line(title, name, figures)


def line(title: str, tool: str, found: Summary | None) -> str:
    """Return a line of the table."""
    if found is None:
        return f"| {title} | {tool} | | | | |"
    shares = " | ".join(f"{each:.1%}" for each in found[1:])
    return f"| {title} ({found.rows}) | {tool} | {shares} |"


def facts(scores: Sequence[Score]) -> Iterator[str]:
    """Yield sentences about ranges and verdicts."""
    peaks = [each for each in scores if not each.row.ran_out]
    inside = sum(each.row.recorded <= each.high for each in peaks)
    yield f"The GPU's peak was at most the upper end of the range in {inside} of {len(peaks)} rows."
    wrong = [each for each in scores if each.is_wrong]
    tight = sum(each.verdict == "tight" for each in scores)
    false = sum(each.row.ran_out for each in wrong)
    yield (
        f"Verdicts at the card's capacity: {len(scores) - len(wrong) - tight} of {len(scores)} right, {tight} tight,"
        f" {len(wrong)} wrong, of which {false} said of a program that ran out of memory that it fits."
    )


def misses(scores: Sequence[Score]) -> Iterator[str]:
    """Yield a table of the rows beyond MISS, with the cause of each."""
    found = [each for each in scores if not each.row.ran_out and abs(each.error) > MISS]
    if not found:
        return
    causes = tomllib.loads(CAUSES.read_text(encoding="utf-8"))
    yield "| row beyond 3 % | measured, MiB | predicted, MiB | error | cause |"
    yield "|---|--:|--:|--:|---|"
    for each in sorted(found, key=lambda score: -abs(score.error)):
        low, value, high = (f"{end / MIB:,.0f}" for end in each[1:4])
        sizes = value if low == high else f"{value} ({low} to {high})"
        row = each.row
        name = f"{row.model} {row.optimizer} {row.batch}"
        cause = causes.get(row.table, {}).get(row.model) or causes.get(row.table, {}).get(row.family, "unknown")
        yield f"| {name} | {row.recorded / MIB:,.0f} | {sizes} | {each.error:+.1%} | {cause} |"


def write_page(rows: Mapping[str, Sequence[Measurement]], known: Mapping[str, Prediction]) -> None:
    """Write the page and its plots."""
    for table, scores in score_rows(rows, known).items():
        if scores:
            plot(scores, DOCS / "images" / f"accuracy-{table}.svg")
    path = DOCS / "accuracy.md"
    introduction, _, _ = path.read_text(encoding="utf-8").partition("\n## ")
    path.write_text(f"{introduction.rstrip()}\n{report(rows, known)}\n", encoding="utf-8")


def plot(scores: Sequence[Score], path: Path) -> None:
    """Draw the error of each row over its measured size, with the range of its workspaces."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "forebay", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for (title, group), color in zip(groups(scores), ("#2f7ed8", "#d8762f", "#7a7a7a", "#3f9b54"), strict=False):
        shown = [each for each in group if not each.row.ran_out]
        sizes = [each.row.recorded / (1 << 30) for each in shown]
        values = [100 * each.error for each in shown]
        ends = [
            [100 * (each.value - each.low) / each.row.recorded for each in shown],
            [100 * (each.high - each.value) / each.row.recorded for each in shown],
        ]
        axes.errorbar(sizes, values, yerr=ends, fmt="o", ms=3.5, lw=0.8, color=color, label=title, alpha=0.8)
    axes.axhline(0, color="#888888", lw=0.8)
    axes.set_xlabel("measured peak, GiB")
    axes.set_ylabel("predicted, % above measured")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes.grid(alpha=0.25)
    figure.patch.set_facecolor("white")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
