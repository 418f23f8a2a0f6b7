"""Memory history: recording, annotations, and the two snapshot schemas."""
