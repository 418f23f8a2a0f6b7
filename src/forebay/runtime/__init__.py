"""Runtime over a backend: devices, streams, events, allocators, statistics, memory history, tensors and graphs."""
