"""Allocator events and call stacks as columns, which the runtime records and snapshots read."""
