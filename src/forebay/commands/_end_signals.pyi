"""Signals that end this process, passed to Python's main thread."""

# Let a signal whose action is the system's call Python's handler of the signal `handled`; False if it has another
# action. For Python, the action of the signal remains SIG_DFL.
def watch(number: int, handled: int) -> bool: ...
def end() -> None: ...  # end this process by the signal that arrived in it, with the system's action, if one has
