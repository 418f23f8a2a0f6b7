# cython: language_level=3
"""Signals that end this process, passed to Python's main thread; documented in _end_signals.pyi."""

cdef extern from * nogil:
    """
    #include <Python.h>
    #include <signal.h>
    #include <string.h>
    #include <unistd.h>

    static volatile sig_atomic_t forebay_number = 0; /* the first signal that arrived */
    static volatile pid_t forebay_process = 0; /* the process in which it arrived: a forked child has a copy */
    static volatile sig_atomic_t forebay_handled = 0; /* the number whose handler Python calls */

    static void forebay_on_signal(int number) {
        if (!forebay_number || forebay_process != getpid()) {
            forebay_process = getpid();
            forebay_number = number;
        }
        PyErr_SetInterruptEx(forebay_handled);
    }

    static int forebay_watch(int number, int handled) {
        struct sigaction found;
        if (sigaction(number, NULL, &found)) return 0;
        if ((found.sa_flags & SA_SIGINFO) || found.sa_handler != SIG_DFL) return 0;
        forebay_handled = handled;
        memset(&found, 0, sizeof found);
        found.sa_handler = forebay_on_signal;
        found.sa_flags = SA_ONSTACK;
        return sigaction(number, &found, NULL) == 0;
    }

    static void forebay_end(void) {
        struct sigaction standard;
        sigset_t only;
        int number = forebay_number;
        if (!number || forebay_process != getpid()) return;
        memset(&standard, 0, sizeof standard);
        standard.sa_handler = SIG_DFL;
        sigaction(number, &standard, NULL);
        sigemptyset(&only);
        sigaddset(&only, number);
        sigprocmask(SIG_UNBLOCK, &only, NULL);
        raise(number);
    }
    """
    int forebay_watch(int number, int handled)
    void forebay_end()


def watch(int number, int handled):
    return bool(forebay_watch(number, handled))


def end():
    forebay_end()
