"""Backends of other packages: contract checks, probing, and closing with a timeout."""
