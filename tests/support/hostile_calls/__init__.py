"""Calls of every name of a compiled module with hostile arguments, for child processes: a death is a fault."""
