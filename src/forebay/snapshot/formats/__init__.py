"""Snapshot file formats: forebay's columnar zip and PyTorch's pickle."""
