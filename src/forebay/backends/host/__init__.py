"""Backend of the CPU device: queues are native threads, device memory is host memory."""
