"""The backend that emulates a named device on the host."""
