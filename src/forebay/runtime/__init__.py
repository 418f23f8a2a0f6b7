"""Meaning over a backend: devices, streams, events, the allocator, its statistics and history, tensors."""
