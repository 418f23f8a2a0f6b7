"""Streams, events and synchronisation checks."""
