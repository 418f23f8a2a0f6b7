"""Runs without values that change no file of the user: their files are a private overlay over the real ones."""
