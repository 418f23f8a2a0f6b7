"""Directive that lists the device profiles of a kind: `{profile-table} cuda`.

A new file in src/forebay/profiles is in the reference without a line in the page.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from forebay import profiles
from forebay.profiles import Profile

COLUMNS = {
    "cuda": {
        "device": "{name}",
        "capability": "{major}.{minor}",
        "memory": "{total_memory_mib}",
        "L2": "{L2_cache_size_mib}",
        "SMs": "{multi_processor_count}",
        "threads": "{max_threads_per_multi_processor}",
        "clock": "{clock_rate_mhz}",
    },
    "mps": {
        "device": "{name}",
        "cores": "{core_count}",
        "memory": "{total_memory_mib}",
        "recommended": "{recommended_max_memory_mib}",
        "buffer": "{max_buffer_length_mib}",
    },
    "mtia": {
        "device": "{name}",
        "capability": "{major}.{minor}",
        "cores": "{core_count}",
        "memory": "{total_memory_mib}",
        "on the chip": "{on_chip_memory_mib}",
    },
}


def table(kind: str) -> list[str]:
    """Return the lines of a Markdown table with one row for each profile of a kind."""
    columns = COLUMNS[kind]
    lines = [f"| profile | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in profiles.names(kind):
        values = _formatted(profiles.load(name))
        lines.append(f"| `{name}` | {' | '.join(cell.format(**values) for cell in columns.values())} |")
    return lines


def _formatted(profile: Profile) -> dict[str, object]:
    """Return the properties, with sizes also in MiB (`_mib`) and clock rates also in MHz (`_mhz`)."""
    numbers = {key: value for key, value in profile.properties.items() if isinstance(value, int)}
    mib = {f"{key}_mib": f"{value >> 20:,}" for key, value in numbers.items()}
    mhz = {f"{key}_mhz": f"{value // 1000:,}" for key, value in numbers.items()}
    return {**profile.properties, **mib, **mhz}


class ProfileTable(SphinxDirective):
    """The table of the profiles of one kind."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        folder = Path(profiles.__file__).parent
        for file in [folder, *folder.glob("*.toml")]:  # the folder's time changes with a new file
            self.env.note_dependency(str(file))
        found = nodes.Element()
        self.state.nested_parse(StringList(table(self.arguments[0]), str(folder)), self.content_offset, found)
        return found.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("profile-table", ProfileTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
