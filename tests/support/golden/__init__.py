"""Golden traces of PyTorch's allocator: files, replay, and the command that compares them."""
