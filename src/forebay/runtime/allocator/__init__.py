"""Caching allocators: policy, recovery steps, statistics and the out-of-memory message."""
