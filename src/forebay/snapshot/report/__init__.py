"""Renderings of a snapshot: HTML page, terminal text, flame graph, PyTorch's text."""
