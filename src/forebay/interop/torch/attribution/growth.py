"""Memory that grows over the iterations of a program, or that an exception or a closure keeps, with its holder."""

from __future__ import annotations

import ast
import linecache
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.interop.torch.attribution.records import Record
    from forebay.interop.torch.attribution.user_frames import Site
    from forebay.interop.torch.attribution.variables import Variable

__all__ = ["Kept", "kept_memory"]

# What a program keeps on purpose, and what lives no longer than the program's own variables.
_LASTING = {"parameters", "buffers", "gradients", "optimizer state", "gathered parameters", "gradient buckets",
            "copies of parameters", "loaded checkpoints"}  # fmt: skip
_FEWEST = 3  # iterations that are growth
_SHARE = 0.05  # of the peak that is worth a line
_SHARE_THROUGH = 0.01  # of what an exception or a closure keeps, which is easily missed
_ADDS = {"append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put", "push"}


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory at the peak that one variable holds, of several iterations or through an exception or a closure."""

    category: str  # of most of it
    nbytes: int
    count: int  # allocations
    share: float  # of the peak
    iterations: int  # in which it was allocated
    holder: str  # variable, attribute or entry, such as "self.history"; "" for an exception that is being handled
    file: str  # where the variable gets it
    line: int  # 0 if unknown
    through: str  # "closure" or "exception" if one holds it, else ""
    detail: str  # the exception and its variable, or the function

    @property
    def text(self) -> str:
        """A sentence."""
        where = f", {Path(self.file).name}:{self.line}" if self.line else ""
        whose = f" of {self.iterations:,} iterations" if self.iterations >= _FEWEST else ""
        verb = "is" if self.category.endswith("state") else "are"
        if self.through == "exception":
            kind, _, variable = self.detail.partition(" ")
            kept = f"`{variable}`" if variable else "being handled"
            return (
                f"{self.category.capitalize()}{whose} {verb} kept by the exception {kind} ({kept}): its traceback has "
                f"`{self.holder}`{where}."
            )
        if self.through == "closure":
            where = f" of the closure {self.detail}{where}"
        return f"{self.category.capitalize()}{whose} {verb} held by `{self.holder}`{where}."


def kept_memory(
    records: Iterable[Record], sites: Mapping[Site, Variable], category: Callable[[Record], str], total: int,
    usual_calls: int,
) -> tuple[Kept, ...]:  # fmt: skip
    """Return what grows or is kept among the records of a peak, largest first.

    `sites` are the holders by the line that allocates. `usual_calls` is how often modules are called before a backward
    pass: several calls are no growth if each backward pass has as many.
    """
    groups: defaultdict[Variable, list[Record]] = defaultdict(list)
    for record in records:
        if category(record) not in _LASTING:
            holder = record.holder or (sites.get(record.site) if record.site is not None else None)
            if holder is not None:
                groups[holder].append(record)
    found = []
    for holder, held in groups.items():
        nbytes = sum(each.size for each in held)
        iterations = _iterations(held, usual_calls)
        least = _SHARE_THROUGH if holder.through else _SHARE if iterations >= _FEWEST else 2
        if nbytes >= least * total:
            sizes: Counter[str] = Counter()
            for each in held:
                sizes[category(each)] += each.size
            name, _ = sizes.most_common(1)[0]
            share, line = nbytes / max(total, 1), _line_of(holder)
            where = holder.name, holder.file, line, holder.through, holder.detail
            found.append(Kept(name, nbytes, len(held), share, iterations, *where))
    return tuple(sorted(found, key=lambda each: -each.nbytes))


def _iterations(records: Iterable[Record], usual_calls: int) -> int:
    """Return in how many iterations records were allocated: backward passes, or calls of the same module."""
    backwards, calls, lines = set(), defaultdict(set), Counter[object]()
    for each in records:
        backwards.add(each.backward)
        if each.call:
            calls[each.module.partition(".")[0]].add(each.call)
        elif each.grad:  # a program without modules
            lines[each.site, each.size] += 1
    most = max(map(len, calls.values()), default=0) // max(usual_calls, 1)
    return max(len(backwards), most, *lines.values(), 1)


def _line_of(variable: Variable) -> int:
    """Return the line at which a variable gets what it holds, best where it gets more; 0 if the source is unknown."""
    names = variable.name.partition("[")[0].split(".")
    if not variable.file or not names[-1]:
        return 0
    code = variable.function
    last = 0 if code is None else max((line for _, _, line in code.co_lines() if line), default=0)
    if code is None or len(names) > 1:
        lines = (1, 1 << 30)
    else:  # a closure has its variable from a function around it
        lines = (1 if variable.through == "closure" else code.co_firstlineno, last)
    best = (0, 0)
    for node in _nodes(variable.file):
        line = getattr(node, "lineno", 0)
        if lines[0] <= line <= lines[1]:
            best = max(best, (_rank(node, names), line))
    return best[1] if best[0] else 0


@cache
def _nodes(file: str) -> tuple[ast.AST, ...]:
    try:
        return tuple(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _rank(node: ast.AST, names: list[str]) -> int:
    """Return how well a statement tells that a variable gets more: 3 if it adds, 1 if it replaces, 0 for others."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return 3 if node.func.attr in _ADDS and _is(node.func.value, names) else 0
    if isinstance(node, ast.AugAssign):
        return 3 if _is(node.target, names) else 0
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.withitem)):
        value = getattr(node, "value", None)
        for target in _targets(node):
            if isinstance(target, ast.Subscript) and _is(target.value, names):
                return 3
            if _is(target, names):
                return 2 if value is not None and any(_is(each, names) for each in ast.walk(value)) else 1
    return 0


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    found = getattr(node, "targets", None) or [getattr(node, "target", None) or getattr(node, "optional_vars", None)]
    for each in found:
        yield from each.elts if isinstance(each, (ast.Tuple, ast.List)) else [each]


def _is(node: ast.AST | None, names: list[str]) -> bool:
    if isinstance(node, ast.Subscript) and len(names) == 1:
        return _is(node.value, names)
    if isinstance(node, ast.Attribute):
        return len(names) > 1 and node.attr == names[-1]
    return isinstance(node, ast.Name) and len(names) == 1 and node.id == names[0]
