"""Sockets for other libraries; each is imported by name, and imports its library then."""
