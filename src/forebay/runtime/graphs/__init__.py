"""Graph capture and replay."""
