"""The exit status of this process, written into memory by the C library when Python has ended."""

def watch(address: int, terminates: bool) -> bool:
    """Let the C library write the status of this process into memory when it exits, and a signal its negative number.

    Parameters
    ----------
    address : int
        Address of a number of 64 bits, which stays valid until `ignore` or the end of the process.
    terminates : bool
        Whether SIGTERM is recorded, too, if nothing handles it. The process ends by it as before.

    Returns
    -------
    bool
        False if the C library does not tell the status; then only the signal is written.
    """

def ignore() -> None:
    """Write no status."""
