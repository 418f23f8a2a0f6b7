// Signal mask of the calling thread.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace forebay {

// Blocks all signals except those of faults, while it exists. A thread inherits the mask of its creator, so that
// threads created during that time get no signals. Otherwise a program that blocks a signal in its own threads and
// waits for it (sigwait) would not get it. Signals of faults stay unblocked, as the access guard handles them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace forebay
