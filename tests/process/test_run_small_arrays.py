"""Arrays that NumPy allocates itself, and the process's memory, in the report of `forebay run`."""

from __future__ import annotations

import json
import re


def sizes(text: str, name: str) -> float:
    """Return the size in MiB that follows a name."""
    number, unit = re.search(rf"{re.escape(name)} +([\d.]+) (B|KiB|MiB|GiB)", text).groups()
    return float(number) * {"B": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


def test_arrays_below_the_size_that_is_served_have_sampled_sites(runner):
    source = """
import numpy as np
def keep():
    return [np.ones(117 << 10, np.uint8) for _ in range(1000)]
def drop():
    return [np.ones(1000, np.uint8) for _ in range(50_000)]
kept, dropped = keep(), drop()
del dropped
"""
    observed = runner.forebay(source, options=("--sample", "256KiB", "--sample-seed", "1"))
    assert 160 <= sizes(observed.err, "arrays below 128 KiB, peak") <= 175
    assert int(re.search(r"([\d,]+) allocations, ", observed.err)[1].replace(",", "")) >= 51_000
    assert "Nothing was allocated" not in observed.err
    head = " ".join(observed.err.split("\n\n")[0].split())
    share = float(re.search(r"^Resident memory grew by .* \(([\d.]+)%\) of it are arrays with a site\.", head)[1])
    assert 75 <= share <= 100
    assert observed.err.index("Memory of small arrays (sampled)") < observed.err.index("Memory of cpu")
    summary = json.loads((observed.output / "summary.json").read_text())
    sample = summary["other_arrays"]["sample"]
    assert (sample["sampled"], sample["seed"], sample["mean_bytes"]) == (True, 1, 256 << 10)
    found = {use["site"].rpartition(" ")[2].partition(".")[0]: use for use in sample["sites_at_peak"]}
    for name, truth in (("keep", 1000 * (117 << 10)), ("drop", 50_000_000)):
        assert abs(found[name]["bytes"] / truth - 1) < 4 * found[name]["relative_error"] < 1
    assert summary["resident_growth"]["share_with_site"] > 0.75
    assert summary["other_arrays"]["total_bytes"] >= summary["other_arrays"]["peak_bytes"]
    page = (observed.output / "report.html").read_text()
    assert "Sampled. Sizes are estimates from" in page
    assert "Resident memory grew by" in page
    assert (observed.output / "snapshot-small-arrays.forebay").exists()


def test_memory_without_a_site_is_named(runner):
    """Objects of Python have no site. A growing array counts once, although only NumPy's allocator knows each size."""
    source = """
import numpy as np
objects = [str(number) * 2 for number in range(400_000)]
for _ in range(100):
    np.fromiter(range(100_000), np.float64)
"""
    observed = runner.forebay(source, options=("--no-history",))
    head = " ".join(observed.err.split("\n\n")[0].split())
    assert re.search(r"none of it has a site\. Without a site: .*Python objects [\d.]+ MiB", head)
    assert "Nothing was allocated" not in observed.err
    assert sizes(observed.err, "arrays below 128 KiB, peak") <= 5
    assert sizes(observed.err, "Python objects") >= 20
