"""Arrays that NumPy allocates itself, and the process's memory, in the report of `forebay run`."""

from __future__ import annotations

import re


def sizes(text: str, name: str) -> float:
    """Return the size in MiB that follows a name."""
    number, unit = re.search(rf"{re.escape(name)} +([\d.]+) (B|KiB|MiB|GiB)", text).groups()
    return float(number) * {"B": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


def test_arrays_below_the_size_that_is_served_are_counted(runner):
    source = "import numpy as np\nkept = [np.ones(117 << 10, np.uint8) for _ in range(1000)]\ndel kept[500:]"
    observed = runner.forebay(source, options=("--no-history",))
    assert 114 <= sizes(observed.err, "arrays below 128 KiB, peak") <= 125
    assert int(re.search(r"([\d,]+) allocations, ", observed.err)[1].replace(",", "")) >= 1000
    assert sizes(observed.err, "resident memory, peak") >= 114
    assert "Resident memory includes what forebay does not see" in observed.err


def test_arrays_that_grow_are_counted_once(runner):
    """Only the first size of each remains, as only NumPy's own allocator knows it."""
    source = "import numpy as np\nfor _ in range(200): np.fromiter(range(100_000), np.float64)"
    observed = runner.forebay(source, options=("--no-history",))
    assert sizes(observed.err, "arrays below 128 KiB, peak") <= 5
