"""Replay of a recorded history through the allocator: verification and what-if analysis."""
