"""Integrations with other libraries. Each module is imported explicitly and imports its library."""
