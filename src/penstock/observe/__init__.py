"""Looking at devices and programs without disturbing them; each part is imported by name."""
