"""All heap scenarios, run on the heap allocator and on its model."""

from __future__ import annotations

from types import FunctionType

import pytest
from support.heap_scenarios import limits, placement, recovery, reuse
from support.heaps_under_test import HeapsUnderTest
from support.model.heaps import HeapModel

GIB = 1 << 30
MODULES = (placement, reuse, recovery, limits)
SCENARIOS = [
    scenario
    for module in MODULES
    for name, scenario in vars(module).items()
    if isinstance(scenario, FunctionType) and scenario.__module__ == module.__name__ and not name.startswith("_")
]
IMPLEMENTATIONS = {"allocator": HeapsUnderTest, "model": HeapModel}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_scenario(implementation, scenario):
    def make(recommended=64 * GIB, longest=48 * GIB, **options):
        return IMPLEMENTATIONS[implementation](recommended, longest, **options)

    scenario(make)
