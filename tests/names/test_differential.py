"""Random programs leave in forebay, step by step, what they left in PyTorch (support/differential.py)."""

from __future__ import annotations

import base64

from support import differential

_POOLS = "the deletion of a pool synchronizes a device where it was used and has no memory left; to be repaired"
# Recorded programs that differ, by seed, and why.
KNOWN: dict[int, str] = {
    115: _POOLS,
    132: "the program skips copies within a storage by its address, and addresses of empty storages differ",
    133: _POOLS,
}


def test_random_programs_do_as_recorded():
    recorded = differential.recorded()
    found = differential.run_programs("forebay", "digests", recorded)
    different = [seed for seed, digests in recorded.items() if found[seed] != digests]
    assert sorted(different) == sorted(KNOWN), "see `python3 dev.py differential --seeds SEED..SEED`"


def test_records_have_thousands_of_steps():
    steps = [len(base64.b64decode(text)) // differential.DIGEST for text in differential.recorded().values()]
    assert min(steps) >= 50
    assert sum(steps) > 2_000


def test_first_difference_names_the_step():
    one, other = [["a", {"x": 1}], ["b", {"x": [1, 2]}]], [["a", {"x": 1}], ["b", {"x": [1, 3]}]]
    assert differential.first_difference(one, one) == ""
    assert differential.first_difference(one, other) == "step 1: b\n  x/1: 2 instead of 3"
    assert differential.first_difference(one, one[:1]) == "2 steps, PyTorch 1"
