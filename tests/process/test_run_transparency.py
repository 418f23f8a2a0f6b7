"""Programs under `forebay run` behave as under plain Python."""

from __future__ import annotations

import py_compile
import zipfile

import pytest

from .conftest import without_addresses

INSPECT_INTERPRETER = """
    import inspect, sys, warnings
    print(globals())
    print(sys.argv, sys.path[0], sys.stdin.read(), sys.flags, sys.warnoptions, sys.getrecursionlimit())
    print(sys.modules["__main__"].__dict__ is globals(), sys.gettrace(), sys.excepthook is sys.__excepthook__)
    def function(): return 1
    print(inspect.getsource(function), function.__module__, inspect.getfile(function))
    warnings.warn("old", DeprecationWarning)
"""


def test_main_module_and_interpreter_state_are_unchanged(runner):
    runner.same(INSPECT_INTERPRETER, "a", "--", "--memory", "-m", "", input="words\n")


def test_script_in_other_folder_imports_its_neighbours(runner):
    runner.write("VALUE = 7", "sub/beside.py")
    runner.write("import beside, sys; print(beside.VALUE, sys.argv, sys.path[0], __file__)", "sub/main.py")
    (runner.folder / "link.py").symlink_to("sub/main.py")
    for name in ("sub/main.py", "./sub/../sub/main.py", "link.py"):
        observed = runner.command("-m", "forebay", "run", name, "x")
        assert observed.out == runner.command(name, "x").out != ""


EXITS = {
    "at the end": "print('done')",
    "exit 3": "import sys; sys.exit(3)",
    "exit None": "import sys; sys.exit()",
    "exit True": "import sys; sys.exit(True)",
    "exit text": "import sys; sys.exit('enough')",
    "exit by a class": "raise SystemExit",
    "exit with a tuple": "raise SystemExit((1, 2))",
    "os._exit": "import os; print('lost?', flush=True); os._exit(7)",
    "exception": "def f(): return 1 / 0\nprint('so far')\nf()",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise OSError(2, 'no') from e",
    "in a group": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "with a note": "e = ValueError(1)\ne.add_note('and so')\nraise e",
    "traceback thrown away": "raise ValueError(1).with_traceback(None)",
    "syntax error": "x = 1\ndef (:\n",
    "indentation error": "if 1:\nx = 1\n",
    "no such import": "import no_such_module",
    "assertion": "assert 1 == 2, 'no'",
    "own hook": "import sys\nsys.excepthook = lambda *what: print(what, what[2].tb_next, what[2].tb_lineno)\n1/0",
    "own hook that exits": "import sys\nsys.excepthook = lambda *_: sys.exit(9)\n1/0",
    "own hook that raises": "import sys\ndef hook(*_): raise KeyError(1)\nsys.excepthook = hook\n1/0",
    "post mortem": "import atexit, sys\natexit.register(lambda: print(sys.last_traceback.tb_lineno))\n1/0",
    "exception in an exit handler": "import atexit\n@atexit.register\ndef f(): 1/0",
    "recursion": "import sys\nsys.tracebacklimit = 1\ndef f(): f()\nf()",
}  # fmt: skip


@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in EXITS.items()])
def test_exit_status_and_output_are_unchanged(runner, source):
    runner.same(source)


def test_exit_without_handlers_writes_the_report_and_flushes_nothing(runner):
    observed = runner.same("import os; print('buffered'); os._exit(7)")
    assert (observed.status, observed.out) == (7, "")
    assert (observed.output / "report.html").exists()


def test_program_that_another_one_replaces_is_reported_before(runner):
    source = """
        import os, sys
        try:
            os.execv("/no/such/program", ["x"])
        except FileNotFoundError:
            print("missing", flush=True)
        os.execvp(sys.executable, [sys.executable, "-c", "print('replaced')"])
    """
    observed = runner.forebay(source)
    assert (observed.status, observed.out) == (0, "missing\nreplaced\n")
    assert "another program replaces this one (os.exec*); a report of its own follows" in observed.err
    assert not (observed.output / "processes.log").exists()
    assert (observed.output / "report.html").exists()


STREAMS = {
    "stdout closed": "import sys; print(1); sys.stdout.close()",
    "stdout's descriptor closed": "import os, sys; print(1, flush=True); os.close(1)",
    "stdout's descriptor closed too early": "import os; print(1); os.close(1)",
    "stdout replaced": "import io, sys; print(1); sys.stdout = io.StringIO(); print(2)",
    "stdout is None": "import sys; print(1); sys.stdout = None; print(2)",
    "stderr closed": "import sys; print(1); sys.stderr.close()",
    "stderr replaced": "import io, sys; sys.stderr = io.StringIO(); print(1); print(2, file=sys.stderr)",
    "stderr is None": "import sys; sys.stderr = None; 1/0",
    "stderr's descriptor closed": "import os; print(1); os.close(2)",
    "stderr redirected": "import os; os.dup2(os.open('log', os.O_CREAT | os.O_RDWR), 2); os.write(2, b'x'); 1/0",
}


@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in STREAMS.items()])
def test_standard_streams_are_unchanged(runner, source):
    observed = runner.same(source)
    assert "Memory of cpu" in observed.err
    assert observed.output.joinpath("report.html").exists()
    log = runner.folder / "log"
    assert not log.exists() or "Memory" not in log.read_text()


def test_file_descriptor_numbers_are_unchanged(runner):
    # The pause lets the thread of the endpoint get to its wait for connections.
    runner.same("""
        import os, time
        time.sleep(0.1)
        print(os.dup(0), os.dup(1))
        os.closerange(3, 1000)
        print(open('a', 'w').fileno())
    """)


THREADS = """
    import atexit, logging, threading, time
    import concurrent.futures
    def late():
        threading.main_thread().join()
        print("thread", flush=True)
    def bad():
        raise ValueError("in a thread")
    atexit.register(print, "handler")
    concurrent.futures.ThreadPoolExecutor().submit(print, "pool", flush=True)
    threading.Thread(target=late).start()
    thread = threading.Thread(target=bad, name="bad")
    thread.start()
    thread.join()
    print("main", flush=True)
"""


def test_report_is_after_threads_and_exit_handlers(runner):
    observed = runner.forebay(THREADS)
    assert sorted(observed.out.split()) == ["handler", "main", "pool", "thread"]
    assert observed.out.split()[-2:] == ["thread", "handler"]
    assert observed.own == runner.python(THREADS).err
    assert "ValueError: in a thread" in observed.own


POOL = """
    import multiprocessing, sys
    import numpy as np
    class Thing:
        def __init__(self, size): self.size = size
    def work(thing): return float(np.ones(thing.size).sum()), thing.__class__.__module__
    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        with context.Pool(2) as pool:
            print(pool.map(work, [Thing(100_000), Thing(200_000)]))
        process = context.Process(target=print, args=("child",))
        process.start()
        process.join()
        print(process.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_is_unchanged(runner, method):
    observed = runner.same(POOL, method)
    assert observed.err.count("Memory of cpu") == 1


def test_module_runs_as_with_python_m(runner):
    runner.write("print('package')", "pack/__init__.py")
    runner.write("import sys; print(sys.argv, sys.path[0], __package__, __spec__.name, __file__); 1/0", "pack/inner.py")
    runner.write("from . import inner", "pack/__main__.py")
    for name in ("pack", "pack.inner"):
        observed = runner.command("-m", "forebay", "run", "-m", name, "a", "--output", "b")
        without = runner.command("-m", name, "a", "--output", "b")
        assert (observed.status, observed.out) == (without.status, without.out)
        lines = [line for line in without.err.splitlines() if "runpy" not in line]
        assert observed.own.splitlines() == lines
        assert "Memory of cpu" in observed.err


INSPECT_MAIN = """
    import sys
    print(sys.argv, sys.path[0], __name__, globals().get("__file__"), __spec__, __package__, __loader__, [*globals()])
    print(sys.stdin.read())
    assert not sys.argv[1:]
"""
FORMS = [
    "folder -m x", "folder/", "./folder -c", "program.zip --memory 3", "script.pyc a", "-mscript -q", "-m script -c",
    "- a b", "-", "-cprint(__name__,[*globals()]) -m", "-c raise(SystemExit(3)) a", "-c 1/0", "-c --x",
    "-m nowhere", "-m pack", "-m pack.nowhere", "-m json.nowhere", "-m math", "-m needs", "-m .", "empty",
]  # fmt: skip


@pytest.mark.parametrize("arguments", FORMS)
def test_every_form_of_a_program_runs_as_under_python(runner, arguments):
    source = runner.write(INSPECT_MAIN)
    runner.write(INSPECT_MAIN, "folder/__main__.py")
    runner.write("", "empty/readme")
    runner.write("", "pack/__init__.py")
    runner.write("import nowhere", "needs/__init__.py")
    with zipfile.ZipFile(runner.folder / "program.zip", "w") as archive:
        archive.write(source, "__main__.py")
    py_compile.compile(str(source), runner.folder / "script.pyc", doraise=True)
    words = arguments.split(" ")
    without = runner.command(*words, input=source.read_text())
    observed = runner.command("-m", "forebay", "run", "--entries", "99", *words, input=source.read_text())
    assert (observed.status, without_addresses(observed.out)) == (without.status, without_addresses(without.out))
    own, expected = (without_addresses(text).splitlines() for text in (observed.own, without.err))
    assert [line for line in own if "<frozen runpy>" not in line] == [
        line for line in expected if "<frozen runpy>" not in line
    ]


def test_damaged_compiled_file_fails_as_under_python(runner):
    (runner.folder / "bad.pyc").write_bytes(b"nothing")
    observed = runner.command("-m", "forebay", "run", "bad.pyc")
    assert (observed.status, observed.own) == (1, "RuntimeError: Bad magic number in .pyc file\n")
    assert runner.command("bad.pyc").status == 1


def test_program_may_use_forebay(runner):
    observed = runner.same(
        """
        import numpy as np, forebay
        tensor = forebay.zeros(1 << 20, dtype=forebay.uint8, device="cpu")
        print(tensor.numpy().sum(), np.ones(1 << 20).sum())
        """
    )
    labels = [entry.name for row in range(len(observed.snapshot.stacks)) for entry in observed.snapshot.stack(row)]
    assert "<module>" in labels
    assert "zeros" not in labels  # the stack begins in the program


def test_program_that_waits_for_blocked_signals_gets_them(runner):
    """A signal must not be delivered to a thread of the library, whose default action would end the program."""
    runner.same("""
        import os, signal
        import numpy as np
        arrays = [np.ones(2_000_000) for _ in range(5)]  # more than is kept: the thread for idle memory starts
        del arrays
        import forebay
        forebay.zeros(1000, device="cpu").tolist()  # a queue's thread
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            print(signal.sigtimedwait([signal.SIGUSR1], 10).si_signo)
    """)


def test_program_that_joins_all_threads_ends(runner):
    runner.same("""
        import threading
        import numpy as np
        arrays = [np.ones(2_000_000) for _ in range(5)]
        del arrays
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join()
        print("joined")
    """)
