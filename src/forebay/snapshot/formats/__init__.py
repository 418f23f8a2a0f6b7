"""Snapshot files: the columnar format of this project and PyTorch's pickle."""
