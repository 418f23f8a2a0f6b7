"""Tensors, the functions that create them, and NumPy functions queued on streams."""
