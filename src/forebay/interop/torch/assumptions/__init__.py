"""Assumed values, for programs whose values are not computed."""
