"""Allocator settings: the data, the grammar of PYTORCH_CUDA_ALLOC_CONF, and the current value of the process."""
