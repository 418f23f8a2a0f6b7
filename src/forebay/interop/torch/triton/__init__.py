"""Triton on emulated devices: the target and the properties of the card, and launches without machine code."""
