"""Scenarios of the heap allocator, run on the allocator and on its model."""
