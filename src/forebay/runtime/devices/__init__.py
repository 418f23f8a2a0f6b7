"""The devices that are open in this process, and the current device of each thread."""
