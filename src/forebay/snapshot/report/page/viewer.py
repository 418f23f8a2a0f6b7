"""The viewer page: a report without a snapshot, into which a file is dropped. The same bytes for the same version.

# Note [The viewer reads files in the browser]
A page without Python has to read the same files, with the same figures and the same limits. Each step runs where its
rule has one home, or where the least of it is repeated. Bytes become values, entries and stacks in native/pickle, which
is WebAssembly in the page (report-page/reader/), and frees are matched by native/snapshot/lifetimes.hpp; Python calls
both, too. Rules over texts (what a site is, what is printable, words and limits) are Python's tables and expressions,
which `rules` writes into the page; therefore the kind of a file is a table (Note [Kinds of frames]). The steps between
them, checks of columns and walks over stacks, are TypeScript (report-page/src/viewer/), whose files name the Python
module that they follow; all columns and figures are compared with a report's, for each file that the tests have. What
needs the allocator is not in the page, which names the commands. A pickle that PyTorch does not write so is refused
with the conversion to use. Rejected: Python in the browser (Pyodide), an interpreter and NumPy in each page for 50 KB
of reader; and all steps in C++, which has no regular expressions with the rules' syntax.
Test: tests/snapshot/report/page/test_viewer.py::test_figures_are_those_of_the_report
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from string import Template
from typing import Any, TextIO

from forebay._base import untrusted
from forebay.records import backward_nodes, frame_kinds, site_labels, sites
from forebay.records.model import VERSION
from forebay.snapshot.analysis import spans
from forebay.snapshot.formats import budget, byte_source, forward_frames, generated_frames
from forebay.snapshot.formats.torch_schema import ACTIONS, SEGMENT_TYPES, STATES
from forebay.snapshot.report.page.parts import BRAND, DEFINITIONS

__all__ = ["rules", "write"]

_FOLDER = Path(__file__).parent
# Flags of an expression in JavaScript: "y" for Python's `match`, "g" for `findall` and `sub` of all.
_FLAGS = {
    **dict.fromkeys(("after_packages", "standard", "allocator_name", "runtime_name", "plumbing", "absolute"), "y"),
    "forward_line": "y",
    "generated_line": "g",
    "unprintable": "gu",  # otherwise each half of a letter beyond 2^16 would be one
}


def write(out: TextIO) -> None:
    """Write the page to a file opened with encoding="utf-8"."""
    read = {name: _FOLDER.joinpath(name).read_text("utf-8") for name in _TEXTS}
    script, worker = read["viewer.js"], read["viewer-worker.js"]
    page = Template(read["viewer.html"]).substitute(
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        style=read["report.css"] + read["viewer.css"],
        brand=BRAND,
        footer=DEFINITIONS,
        rules=json.dumps(rules(), separators=(",", ":")).replace("<", "\\u003c"),
        reader=base64.b64encode(_FOLDER.joinpath("reader.wasm").read_bytes()).decode(),
        worker=worker,
        script=script,
    )
    out.write(page)


_TEXTS = ("viewer.html", "report.css", "viewer.css", "viewer.js", "viewer-worker.js")


def rules() -> dict[str, Any]:
    """Return the rules that the page reads: `Rules` of report-page/src/viewer/rules.ts."""
    kinds = frame_kinds.FrameKind
    expressions = {
        **frame_kinds.EXPRESSIONS, **sites.EXPRESSIONS, **backward_nodes.EXPRESSIONS, **site_labels.EXPRESSIONS,
        "unprintable": untrusted.UNPRINTABLE, "forward_line": forward_frames.LINE,
        "generated_line": generated_frames.LINE, "span_number": spans.NUMBER,
    }  # fmt: skip
    return {
        "version": VERSION,
        "actions": {word: int(action) for word, action in ACTIONS.items()},
        "states": {word: int(state) for word, state in STATES.items()},
        "segment_types": SEGMENT_TYPES,
        "budget": {**budget.LIMITS, "most_ratio": byte_source.MAX_RATIO, "always": byte_source.ALWAYS},
        "file_kinds": [[*_expression(pattern), int(kind)] for pattern, kind in frame_kinds.FILE_KINDS],
        **{kind.name.lower(): int(kind) for kind in (kinds.OWN, kinds.TEXT, kinds.LIBRARY, kinds.STANDARD)},
        "expressions": {name: _expression(each, _FLAGS.get(name, "")) for name, each in expressions.items()},
        "thin": [*sites.THIN],
        "not_nodes": sorted(backward_nodes.NOT_NODES),
        "before_recording": sites.BEFORE_RECORDING.file,
        "no_stack": sites.NO_STACK.file,
        "no_code": sites.NO_CODE.file,
    }


def _expression(pattern: re.Pattern[str], flags: str = "") -> list[str]:
    """Return an expression as JavaScript has it."""
    return [pattern.pattern.replace("(?P<", "(?<"), flags + "i" * bool(pattern.flags & re.IGNORECASE)]
