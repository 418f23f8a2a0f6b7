"""Traces of device work: recording, resolution and the Perfetto file."""
