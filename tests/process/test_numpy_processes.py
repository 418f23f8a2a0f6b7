"""The NumPy allocator hook in whole processes: forks, exit, signals, subinterpreters, libraries, NumPy's own tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
import forebay
from forebay import memory
from forebay.interop import numpy as hook
CPU, MIB = "cpu", 1 << 20
hook.install(CPU)
"""


def run(program, *, prologue=PROLOGUE, seconds=60, env=(), python=()):
    """Run a program, which must succeed without output on stderr, and return the words of its output."""
    source = prologue + textwrap.dedent(program)
    command = [sys.executable, "-X", "faulthandler", "-W", "error", *python, "-c", source]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, env=os.environ | dict(env)
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


with_and_without_history = pytest.mark.parametrize("history", ["", "memory.record_history(device=CPU)\n"])


@with_and_without_history
def test_forked_child_keeps_its_arrays(history):
    program = """
    kept = [np.full(3 * MIB, n, np.uint8) for n in range(5)]
    if not (pid := os.fork()):
        assert hook.installed() is None
        kept[0].resize(50 * MIB, refcheck=False)
        made, zeros = np.full(100 * MIB, 9, np.uint8), np.zeros(30 * MIB, np.uint8)
        assert [array[7] for array in kept] == [0, 1, 2, 3, 4] and not zeros.any()
        kept[1][:] = 77
        del kept[2:], made
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert all((array == n).all() for n, array in enumerate(kept))
    assert hook.installed() is not None and memory.memory_allocated(CPU) == 15 * MIB
    """
    assert run(program, prologue=PROLOGUE + history) == []


def test_forked_child_can_reinstall():
    program = """
    before = np.ones(3 * MIB, np.uint8)
    if not (pid := os.fork()):
        hook.install(CPU)
        after = np.ones(5 * MIB, np.uint8)
        assert memory.memory_allocated(CPU) == 8 * MIB
        before.resize(40 * MIB, refcheck=False)
        assert memory.memory_allocated(CPU) == 45 * MIB and before[: 3 * MIB].all()
        del before
        assert memory.memory_allocated(CPU) == 5 * MIB
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """
    assert run(program) == []


def test_fork_while_threads_allocate():
    program = """
    stop = threading.Event()
    def allocate(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            arrays = [np.full(int(size), seed, np.uint8) for size in rng.integers(MIB // 8, 4 * MIB, 10)]
            assert all((array == seed).all() for array in arrays)
    threads = [threading.Thread(target=allocate, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        if not (pid := os.fork()):
            assert all(not np.zeros(2 * MIB).any() for _ in range(5))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        memory.empty_cache(CPU)
    stop.set()
    for thread in threads:
        thread.join()
    assert memory.memory_allocated(CPU) == 0
    """
    assert run(program) == []


def test_forked_pool_workers_return_arrays():
    program = """
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print([int(array.sum()) for array in pool.map(np.ones, [MIB, MIB + 1])])
    """
    assert run(program) == ["[1048576,", "1048577]"]


@with_and_without_history
def test_arrays_may_outlive_the_interpreter(history):
    program = """
    import atexit
    class Last:
        def __init__(self):
            self.np, self.circle, self.array = np, self, np.ones(3 * MIB)
        def __del__(self):
            self.array.resize(5 * MIB, refcheck=False)
            self.other, self.zeros = self.np.ones(40 * MIB, self.np.uint8), self.np.zeros(MIB)
            assert self.array[0] and not self.zeros.any()
    def endless():
        while True:
            np.ones(2 * MIB).sum()
    in_globals, sys.last = Last(), [Last(), np.ones(5 * MIB)]
    atexit.register(lambda: globals().update(late=np.ones(9 * MIB)))
    threading.Thread(target=endless, daemon=True).start()
    with hook.serving(CPU, smallest=1):
        inside = np.ones(10)
    print("end")
    """
    assert run(program, prologue=PROLOGUE + history) == ["end"]


def test_ctrl_c_during_allocation_is_raised_once():
    program = """
    try:
        print("ready", flush=True)
        while True:
            np.ones(30 * MIB, np.uint8)
            memory.empty_cache(CPU)
    except KeyboardInterrupt:
        print("interrupted")
    for _ in range(100):
        np.ones(MIB)
    """
    command = [sys.executable, "-W", "error", "-c", PROLOGUE + textwrap.dedent(program)]
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "interrupted\n", "")


def test_exception_of_a_timer_handler_is_raised():
    program = """
    class Timeout(Exception): pass
    def raise_timeout(number, frame): raise Timeout
    signal.signal(signal.SIGALRM, raise_timeout)
    caught = 0
    for _ in range(50):
        memory.empty_cache(CPU)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            end = time.monotonic() + 10
            while time.monotonic() < end:
                np.empty(30 * MIB, np.uint8)
                memory.empty_cache(CPU)
        except Timeout:
            caught += 1
    print(caught, len(np.ones(MIB)))
    """
    assert run(program) == ["50", str(1 << 20)]


def test_out_of_memory_traceback_explains_the_request():
    source = PROLOGUE + "memory.set_capacity('4MiB', CPU)\nkept = [np.ones(MIB, np.uint8) for _ in range(9)]"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Exception ignored" not in done.stderr
    assert "forebay.OutOfMemory: cpu out of memory. Tried to allocate 2.00 MiB. " in done.stderr
    assert "\n  The request of 1.00 MiB needs a segment of 2.00 MiB.\n" in done.stderr
    assert done.stderr.endswith("Requested for a NumPy array of shape (1048576,) and dtype uint8.\n")


def test_subinterpreter_is_rejected():
    program = """
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        import _interpreters as interpreters
    name = interpreters.create()
    for line in ("import forebay.interop.numpy", "import numpy; numpy.ones(9_000_000)"):
        try:
            answer = interpreters.run_string(name, line)  # since Python 3.13 the error is returned
            print("ImportError" in repr(answer) or "ran")
        except Exception as error:
            print("ImportError" in str(error) + repr(error))
    interpreters.destroy(name)
    assert np.ones(3 * MIB).all()
    """
    assert run(program)[:1] == ["True"]


def test_debug_allocators_find_no_error():
    program = """
    old = np.arange(10.0)
    for size in (1000, MIB, 10 * MIB, 100):
        old.resize(size, refcheck=False)
        assert old[:10].tolist() == list(range(10))
    with hook.serving(CPU, smallest=1):
        arrays = [np.zeros(n, np.uint8) for n in range(2000)]
        for array in arrays:
            array.resize(3 * array.size + 1, refcheck=False)
    hook.uninstall()
    assert not any(array.any() for array in arrays)
    """
    assert run(program, python=["-X", "dev"], env={"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "85"}.items()) == []


def test_scipy_and_scikit_learn_work():
    pytest.importorskip("sklearn")
    program = """
    from scipy import linalg, sparse
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    data, target = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=30).fit(data / 16, target)
    assert model.score(data / 16, target) > 0.9
    a = sparse.random(3000, 3000, 0.01, format="csr")
    assert abs((a @ a).toarray() - a.toarray() @ a.toarray()).max() < 1e-9
    b = data[:64] + np.eye(64)
    assert np.allclose(linalg.lu_factor(b)[0].shape, (64, 64))
    """
    prologue = PROLOGUE.replace("install(CPU)", "install(CPU, smallest=1)")
    assert run(program, prologue=prologue, python=["-W", "ignore"]) == []


@pytest.mark.timeout(300)
def test_numpy_array_tests_pass(tmp_path):
    """Run the parts of NumPy's tests that allocate, resize, sort and copy most; all of numpy._core takes minutes."""
    parts = ("test_multiarray.py", "test_nditer.py", "test_indexing.py", "test_mem_overlap.py")
    selected = "resize or sort or take or fromiter or creation or pickl or zeros or newbuffer or overlap or concat"
    selected = f"({selected}) and not share_memory and not diophantine"  # which compute for 17 seconds
    program = f"""
    import pytest
    from pathlib import Path
    folder = Path(np.__file__).parent / "_core/tests"
    status = pytest.main(
        ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "-k", {selected!r}]
        + [str(folder / part) for part in {parts}]
    )
    from forebay.runtime.devices.current import opened_for
    served = memory.memory_stats(CPU)["allocation.all.allocated"]
    assert opened_for(CPU).allocator.check_invariants() is None and served > 100_000, served
    sys.exit(status)
    """
    source = PROLOGUE.replace("install(CPU)", "install(CPU, smallest=1)") + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
