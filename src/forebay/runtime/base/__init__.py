"""Process-wide state that the other runtime packages read: lazy initialisation, observers, capture state."""
