"""Snapshot reports: HTML page, terminal tables, flame graph, and PyTorch's text formats."""
