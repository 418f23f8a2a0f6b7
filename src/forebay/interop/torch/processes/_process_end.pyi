"""The end of this process, written into memory by the C library when Python has ended."""

def watch(address: int, terminates: bool) -> bool:
    """Let the C library write the time and the status into memory when this process exits.

    Parameters
    ----------
    address : int
        Address of two numbers of 64 bits, which stay valid until `ignore` or the end of the process: nanoseconds of the
        monotonic clock, which are kept if they are not 0, and the status.
    terminates : bool
        Whether SIGTERM is recorded, too, if nothing handles it: with its negative number. The process ends by it as
        before.

    Returns
    -------
    bool
        False if the C library does not tell the status; then only the signal is recorded.
    """

def ignore() -> None:
    """Write nothing."""
