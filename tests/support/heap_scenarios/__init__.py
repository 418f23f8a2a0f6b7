"""Scenarios that run on the heap allocator and on its model."""
