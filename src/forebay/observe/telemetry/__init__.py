"""Sensors of NVIDIA and AMD devices."""
