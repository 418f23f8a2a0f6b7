"""Prologue of test programs that fork: `forked(check)` runs a check in a child and returns its wait status."""

FORKED = """
def forked(check):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
"""
