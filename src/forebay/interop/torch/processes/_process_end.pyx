# cython: language_level=3
"""The end of this process, written into memory by the C library; documented in _process_end.pyi."""

from libc.stdint cimport uintptr_t

cdef extern from * nogil:
    """
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <time.h>
    #include <unistd.h>

    static int64_t* volatile forebay_end = NULL; /* the time, and the status */
    static volatile pid_t forebay_owner = 0;
    static int forebay_registered = 0;

    /* In a child that C code has forked, the address is that of its parent's record. */
    static void forebay_record(int64_t value) {
        struct timespec now;
        if (forebay_end == NULL || forebay_owner != getpid()) return;
        if (!forebay_end[0] && clock_gettime(CLOCK_MONOTONIC, &now) == 0)
            forebay_end[0] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        forebay_end[1] = value;
    }

    static void forebay_on_signal(int number) {
        struct sigaction standard;
        forebay_record(-number);
        memset(&standard, 0, sizeof standard);
        standard.sa_handler = SIG_DFL;
        sigaction(number, &standard, NULL);
        raise(number); /* takes effect when this function returns, as the signal is blocked until then */
    }

    #ifdef __GLIBC__
    static void forebay_on_exit(int status, void* unused) {
        (void)unused;
        forebay_record(status & 0xff);
    }
    #endif

    static int forebay_watch(uintptr_t address, int terminates) {
        forebay_end = (int64_t*)address;
        forebay_owner = getpid();
    #ifdef __GLIBC__
        if (!forebay_registered) forebay_registered = on_exit(forebay_on_exit, NULL) == 0;
    #endif
        if (terminates) {
            struct sigaction found;
            if (sigaction(SIGTERM, NULL, &found)) return forebay_registered;
            if (!(found.sa_flags & SA_SIGINFO) && found.sa_handler == SIG_DFL) {
                memset(&found, 0, sizeof found);
                found.sa_handler = forebay_on_signal;
                sigaction(SIGTERM, &found, NULL);
            }
        }
        return forebay_registered;
    }

    static void forebay_ignore(void) { forebay_end = NULL; }
    """
    int forebay_watch(uintptr_t address, int terminates)
    void forebay_ignore()


def watch(uintptr_t address, bint terminates):
    return bool(forebay_watch(address, terminates))


def ignore():
    forebay_ignore()
