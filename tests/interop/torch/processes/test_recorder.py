"""Records of processes that end in every way. The programs record as PyTorch's devices do, without importing it."""

from __future__ import annotations

import signal
import sys

import pytest
from support.recorded_programs import sections

from forebay._base.verdicts import How, Verdict, judge
from forebay.interop.torch.processes import read_records

GIB = 1 << 30


SYNTAX = "SyntaxError: invalid syntax (<string>, line 1)"
MAIN = {
    "end": ("use()", How.FINISHED, "", ""),
    "exception": ("use()\ndef f(): {}[1]\nf()", How.EXCEPTION, "KeyError: 1", "program.py:3"),
    "exception before use": ("{}[1]", How.EXCEPTION, "KeyError: 1", "program.py:2"),
    "syntax error": ("use()\nexec('x = = 1')", How.EXCEPTION, SYNTAX, "program.py:3"),
    "Ctrl-C": ("use()\nsignal.raise_signal(signal.SIGINT)", How.EXCEPTION, "KeyboardInterrupt", "program.py:3"),
    "SIGTERM": ("use()\nos.kill(os.getpid(), signal.SIGTERM)", How.SIGNAL, "SIGTERM", ""),
    "SIGKILL": ("use()\nos.kill(os.getpid(), signal.SIGKILL)", How.SIGNAL, "SIGKILL", ""),
    "abort": ("use()\nos.abort()", How.SIGNAL, "SIGABRT", ""),
    "status": ("use()\nsys.exit(3)", How.STATUS, "exit status 3", ""),
    "status 256": ("use()\nsys.exit(256)", How.FINISHED, "", ""),
    "text": ("use()\nsys.exit('text')", How.STATUS, "exit status 1", ""),
    "os._exit(0)": ("use()\nos._exit(0)", How.FINISHED, "", ""),
    "os._exit(3)": ("use()\nos._exit(3)", How.STATUS, "exit status 3", ""),
    "caught": ("use()\ntry: {}[1]\nexcept KeyError: pass", How.FINISHED, "", ""),
    "own hook": ("use()\nsys.excepthook = lambda *_: None\n{}[1]", How.EXCEPTION, "KeyError: 1", "program.py:4"),
    "C library": ("use()\nimport ctypes\nctypes.CDLL(None).exit(5)", How.STATUS, "exit status 5", ""),
}  # fmt: skip


@pytest.mark.parametrize(("source", "how", "what", "line"), MAIN.values(), ids=MAIN)
def test_end_of_a_program_is_known_with_its_peak(programs, source, how, what, line):
    found = programs.run(source)
    ending = found.processes[0].ending
    assert (ending.how, ending.what) == (how, what), programs.output
    assert ending.line.removeprefix(f"{programs.folder}/") == line
    assert found.judge().verdict is (Verdict.FITS if how is How.FINISHED else Verdict.DID_NOT_FINISH)
    if source.startswith("use()"):
        assert found.devices[0].events.reserved == GIB


CHILDREN = {
    "exception": ("python('use()\\n{}[1]')", How.EXCEPTION),
    "raised status": ("python('use()\\nraise SystemExit(3)')", How.STATUS),
    "os._exit(0)": ("python('use()\\nos._exit(0)')", How.FINISHED),
    "os._exit(3)": ("python('use()\\nos._exit(3)')", How.STATUS),
    "SIGTERM": ("python('use()\\nos.kill(os.getpid(), 15)')", How.TERMINATED),
    "SIGKILL": ("python('use()\\nos.kill(os.getpid(), 9)')", How.LOST),
    "Ctrl-C": ("python('use()\\nsignal.raise_signal(2)')", How.EXCEPTION),
    "C library": ("python('use()\\nimport ctypes\\nctypes.CDLL(None).exit(5)')", How.STATUS),
    "finished": ("python('use()')", How.FINISHED),
}


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries do not tell the status of an exit")
def test_end_of_a_process_that_the_program_starts_is_known_without_its_parent(programs):
    found = programs.run("\n".join(f"subprocess.run({command})" for command, _ in CHILDREN.values()))
    assert [each.ending.how for each in found.processes[1:]] == [how for _, how in CHILDREN.values()], programs.output
    main, *children = found.processes
    for child, (name, (_, how)) in zip(children, CHILDREN.items(), strict=True):
        fits = how in (How.FINISHED, How.TERMINATED)
        verdict = judge([main, child], child.devices).verdict
        assert verdict is (Verdict.FITS if fits else Verdict.DID_NOT_FINISH), name


DESCENDANTS = sections("""
    = subprocess
    subprocess.run(python('use()'))
    = shell
    subprocess.run(sys.executable + ' -c "from use import *; use()"; true', shell=True)
    = shell of a process
    command = sys.executable + " -c 'from use import *; use()'"
    subprocess.run(python(f"subprocess.run({command!r}, shell=True)"))
    = system
    os.system(sys.executable + " -c 'from use import *; use()'")
    = fork
    pid = os.fork()
    if not pid:
        use()
        os._exit(0)
    os.waitpid(pid, 0)
    = fork after records began
    recorder.start()
    pid = os.fork()
    if not pid:
        use()
        os._exit(0)
    os.waitpid(pid, 0)
    = fork that ends normally
    recorder.start()
    pid = os.fork()
    if not pid:
        use()
    else:
        os.waitpid(pid, 0)
    = exec
    os.execv(sys.executable, python('use()'))
    = execvp with environment
    os.execvpe(sys.executable, python('use()'), dict(os.environ))
    = exec after use
    use()
    os.execv(sys.executable, python('pass'))
    = failed exec
    use()
    try: os.execv('/no/such', ['x'])
    except OSError: pass
    = spawn
    if __name__ == '__main__':
        process = multiprocessing.get_context('spawn').Process(target=use)
        process.start()
        process.join()
    = forkserver
    if __name__ == '__main__':
        process = multiprocessing.get_context('forkserver').Process(target=use)
        process.start()
        process.join()
    = posix_spawn
    os.waitpid(os.posix_spawn(sys.executable, python('use()'), os.environ), 0)
    = pool
    if __name__ == '__main__':
        with multiprocessing.Pool(1) as pool: pool.apply(use)
    = pool of executors
    with ProcessPoolExecutor(1) as pool: pool.submit(use).result()
""")


@pytest.mark.parametrize("source", DESCENDANTS.values(), ids=DESCENDANTS)
def test_memory_of_a_process_counts_however_it_was_started(programs, source):
    found = programs.run(source)
    assert programs.status == 0, programs.output
    assert found.judge().verdict is Verdict.FITS, found
    (device,) = found.devices
    assert device.events.reserved == GIB
    assert device.is_exact


def test_processes_that_are_terminated_one_after_the_other_do_not_add_up(programs):
    found = programs.run("""
        source = "use(20)\\nprint(flush=True)\\nsignal.pause()"
        for _ in range(2):
            child = subprocess.Popen(python(source), stdout=subprocess.PIPE)
            child.stdout.readline()
            child.terminate()
            child.wait()
    """)
    assert [each.ending.how for each in found.processes[1:]] == [How.TERMINATED] * 2
    (device,) = found.devices
    assert (device.events.reserved, device.is_exact) == (20 * GIB, True)
    assert found.judge().verdict is Verdict.FITS


def test_exception_of_a_process_of_multiprocessing_is_known(programs):
    found = programs.run("""
        def fail(): {}[1]
        recorder.start()  # as the import of PyTorch does
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                process = multiprocessing.get_context(method).Process(target=fail)
                process.start()
                process.join()
    """)
    endings = [each.ending for each in found.processes[1:] if each.ending.how is not How.FINISHED]
    assert [(each.what, each.line.rpartition("/")[2]) for each in endings] == [("KeyError: 1", "program.py:3")] * 2
    assert found.judge().verdict is Verdict.DID_NOT_FINISH


def test_forked_child_does_not_write_into_the_record_of_its_parent(programs):
    found = programs.run("""
        use(1)
        pid = os.fork()
        if not pid:
            use(5)
            sys.exit(3)
        os.waitpid(pid, 0)
    """)
    assert [each.devices[0].reserved // GIB for each in found.processes] == [1, 5]
    assert [each.ending.how for each in found.processes] == [How.FINISHED, How.STATUS]


def test_child_that_c_code_forks_does_not_end_the_record_of_its_parent(programs):
    found = programs.run("""
        import ctypes
        use()
        libc = ctypes.CDLL(None)
        pid = libc.fork()
        if not pid:
            libc.exit(9)
        os.waitpid(pid, 0)
    """)
    assert [each.ending.how for each in found.processes] == [How.FINISHED]
    assert found.judge().verdict is Verdict.FITS


THREADS = sections("""
    = thread
    threading.Thread(target=fail).start()
    = daemon
    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    thread.join()
    = exit handler
    atexit.register(fail)
    = raw thread
    import _thread
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(raw, ())
    lock.acquire()
    = own hook
    known = threading.excepthook
    threading.excepthook = lambda args: known(args)
    threading.Thread(target=fail).start()
    = own silent hook
    threading.excepthook = lambda args: None
    threading.Thread(target=fail).start()
    = exit handler with a silent hook
    sys.unraisablehook = lambda args: None
    atexit.register(fail)
    = finalizer at exit
    import weakref
    weakref.finalize(threading, fail)
""")


@pytest.mark.parametrize("source", THREADS.values(), ids=THREADS)
def test_exception_of_a_thread_or_an_exit_handler_is_a_failure(programs, source):
    start = "def fail(): {}[1]\ndef raw():\n    try: fail()\n    finally: threading.Timer(0.2, lock.release).start()\n"
    found = programs.run(f"{start}use()\n{source}use()\n")
    assert programs.status == 0, programs.output
    (failure,) = found.processes[0].failures
    assert failure.what.startswith("KeyError: 1 (")
    assert failure.line.endswith("program.py:2")
    assert found.judge().verdict is Verdict.DID_NOT_FINISH


STATUSES = {
    "sys.exit(3)": ("def leave(): sys.exit(3)\natexit.register(leave)", "SystemExit: 3 (exit handler)", "program.py:3"),
    "text": ("def leave(): sys.exit('no')\natexit.register(leave)", "SystemExit: no (exit handler)", "program.py:3"),
    "no frame": ("atexit.register(sys.exit, 3)", "SystemExit: 3 (exit handler)", ""),
    "0": ("atexit.register(sys.exit, 0)", None, ""),
    "None": ("atexit.register(sys.exit)", None, ""),
}


@pytest.mark.parametrize(("source", "what", "line"), STATUSES.values(), ids=STATUSES)
def test_exit_in_an_exit_handler_is_a_failure_if_its_status_is_not_zero(programs, source, what, line):
    found = programs.run(f"use()\n{source}\n")
    assert programs.status == 0, programs.output
    failures = [(each.what, each.line.removeprefix(f"{programs.folder}/")) for each in found.processes[0].failures]
    assert failures == ([] if what is None else [(what, line)])
    assert found.judge().verdict is (Verdict.FITS if what is None else Verdict.DID_NOT_FINISH)


def test_memory_that_runs_out_in_a_thread_or_an_exit_handler_does_not_fit(programs):
    source = """
        from forebay.errors import OutOfMemory
        def fail():
            refuse()
            raise OutOfMemory("full")
        use()
        threading.excepthook = lambda args: None
        START
    """
    for start in ("threading.Thread(target=fail).start()", "atexit.register(fail)"):
        for path in programs.records.iterdir():
            path.unlink()
        assert programs.run(source.replace("START", start)).judge().verdict is Verdict.DOES_NOT_FIT, start


def test_errors_of_destructors_and_exits_of_threads_are_none(programs):
    found = programs.run("""
        class Broken:
            def __del__(self): {}[1]
        use()
        def destroy():
            x = Broken()
            del x
        destroy()
        kept = Broken()
        threading.Thread(target=sys.exit).start()
    """)
    assert "KeyError" in programs.output
    assert found.judge().verdict is Verdict.FITS


def test_unread_values_and_refused_requests_survive_a_kill(programs):
    found = programs.run("""
        use()
        unread_values.note("program.py:3")
        unread_values.note("program.py:4")
        unread_values.withdraw("program.py:4")
        refuse()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    (events,) = found.processes[0].devices
    assert (events.ooms, events.failed, events.idle_since_oom) == (1, 30 * GIB, True)
    assert found.processes[0].unread == ("program.py:3",)


def test_memory_error_with_another_status_is_that_of_memory(programs):
    source = """
        from forebay.errors import OutOfMemory
        use()
        try:
            refuse()
            raise OutOfMemory("full")
        except OutOfMemory as error:
            END
    """
    for end, verdict in {
        "sys.exit(1)": Verdict.DOES_NOT_FIT,
        "os._exit(1)": Verdict.DOES_NOT_FIT,
        "raise": Verdict.DOES_NOT_FIT,
        "raise ValueError('training failed') from error": Verdict.DOES_NOT_FIT,
        "{}[1]": Verdict.DOES_NOT_FIT,
        "raise ExceptionGroup('all', [error])": Verdict.DOES_NOT_FIT,
        "use(2); {}[1]": Verdict.DID_NOT_FINISH,
        "use(2); sys.exit(1)": Verdict.DID_NOT_FINISH,
        "raise KeyboardInterrupt": Verdict.DID_NOT_FINISH,
        "pass": Verdict.FITS_AFTER_ERRORS,
    }.items():
        for path in programs.records.iterdir():
            path.unlink()
        assert programs.run(source.replace("END", end)).judge().verdict is verdict, end


def test_full_folder_is_an_error_and_a_missing_one_is_none(programs, monkeypatch):
    found = programs.run("""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            use()
        except OSError as error:
            print(type(error).__name__)
        os.environ["FOREBAY_RECORDS"] = "/no/such/folder"
        use()
    """)
    assert programs.output == "OSError\n"
    assert found.devices == ()


def test_descriptors_of_the_program_are_unchanged(programs):
    programs.run("""
        before = os.open(os.devnull, os.O_RDONLY)
        use()
        print(os.open(os.devnull, os.O_RDONLY) - before)
        os.closerange(3, 256)
        use(2)
    """)
    assert programs.output == "1\n"
    (record,) = read_records(programs.records)
    assert record.events.devices[0].reserved == 2 * GIB


def test_signal_of_the_program_keeps_its_handler(programs):
    found = programs.run("""
        handled = "signal.signal(15, lambda *_: sys.exit(0))\\nuse()\\nos.kill(os.getpid(), 15)"
        default = "use()\\nprint(signal.getsignal(15) is signal.SIG_DFL, flush=True)\\nos.kill(os.getpid(), 15)"
        for each in (handled, default):
            print(subprocess.run(python(each)).returncode, flush=True)
    """)
    assert programs.output.split() == ["0", "True", str(-signal.SIGTERM)]
    assert [each.ending.how for each in found.processes] == [How.FINISHED, How.FINISHED, How.TERMINATED]
