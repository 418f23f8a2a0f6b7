"""NumPy on a device, whole processes: forks, exits, interrupts, sub-interpreters, other libraries, NumPy's tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import os, signal, sys, threading, time
import numpy as np
import forebay
from forebay import memory
from forebay.interop import numpy as hook
HOST, MIB = "host:0", 1 << 20
hook.install(HOST)
"""


def child(program, *, begin=BEGIN, seconds=60, env=(), python=()):
    """What the program writes. It must end well and say nothing on stderr."""
    source = begin + textwrap.dedent(program)
    command = [sys.executable, "-X", "faulthandler", "-W", "error", *python, "-c", source]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, env=os.environ | dict(env)
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


with_and_without_history = pytest.mark.parametrize("history", ["", "memory.record_history(device=HOST)\n"])


@with_and_without_history
def test_a_forked_child_goes_on_with_memory_of_its_own(history):
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
    assert hook.installed() is not None and memory.memory_allocated(HOST) == 15 * MIB
    """
    assert child(program, begin=BEGIN + history) == []


def test_a_forked_child_is_served_again_when_it_asks():
    program = """
    before = np.ones(3 * MIB, np.uint8)
    if not (pid := os.fork()):
        try:
            hook.install(HOST)
        except forebay.errors.Forked:
            forebay.reopen(HOST)
        hook.install(HOST)
        after = np.ones(5 * MIB, np.uint8)
        assert memory.memory_allocated(HOST) == 5 * MIB
        before.resize(40 * MIB, refcheck=False)
        assert memory.memory_allocated(HOST) == 45 * MIB and before[: 3 * MIB].all()
        del before
        assert memory.memory_allocated(HOST) == 5 * MIB
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """
    assert child(program) == []


def test_forks_while_threads_allocate():
    program = """
    stop = threading.Event()
    def hammer(seed):
        chance = np.random.default_rng(seed)
        while not stop.is_set():
            arrays = [np.full(int(size), seed, np.uint8) for size in chance.integers(MIB // 8, 4 * MIB, 10)]
            assert all((array == seed).all() for array in arrays)
    threads = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        if not (pid := os.fork()):
            assert all(not np.zeros(2 * MIB).any() for _ in range(5))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        memory.empty_cache(HOST)
    stop.set()
    for thread in threads:
        thread.join()
    assert memory.memory_allocated(HOST) == 0
    """
    assert child(program) == []


def test_a_pool_of_forked_workers_sends_arrays():
    program = """
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print([int(array.sum()) for array in pool.map(np.ones, [MIB, MIB + 1])])
    """
    assert child(program) == ["[1048576,", "1048577]"]


@with_and_without_history
def test_arrays_may_outlive_everything(history):
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
    with hook.serving(HOST, smallest=1):
        inside = np.ones(10)
    print("end")
    """
    assert child(program, begin=BEGIN + history) == ["end"]


def test_ctrl_c_while_arrays_are_made_is_heard_once():
    program = """
    try:
        print("ready", flush=True)
        while True:
            np.ones(30 * MIB, np.uint8)
            memory.empty_cache(HOST)
    except KeyboardInterrupt:
        print("heard")
    for _ in range(100):
        np.ones(MIB)
    """
    command = [sys.executable, "-W", "error", "-c", BEGIN + textwrap.dedent(program)]
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            said, complained = process.communicate(timeout=60)
        assert (process.returncode, said, complained) == (0, "heard\n", "")


def test_a_timer_that_raises_is_not_lost():
    program = """
    class Late(Exception): pass
    def late(number, frame): raise Late
    signal.signal(signal.SIGALRM, late)
    heard = 0
    for _ in range(50):
        memory.empty_cache(HOST)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            end = time.monotonic() + 10
            while time.monotonic() < end:
                np.empty(30 * MIB, np.uint8)
                memory.empty_cache(HOST)
        except Late:
            heard += 1
    print(heard, len(np.ones(MIB)))
    """
    assert child(program) == ["50", str(1 << 20)]


def test_a_device_too_small_ends_a_program_with_the_reason():
    source = BEGIN + "memory.set_capacity('4MiB', HOST)\nkept = [np.ones(MIB, np.uint8) for _ in range(9)]"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Exception ignored" not in done.stderr
    assert "forebay.OutOfMemory: host out of memory. Tried to allocate 2.00 MiB. " in done.stderr
    assert "\n  1.00 MiB were asked for, for which a segment of 2.00 MiB is needed.\n" in done.stderr
    assert done.stderr.endswith("It was wanted for a NumPy array of shape (1048576,) and dtype uint8.\n")


def test_a_subinterpreter_is_refused_politely():
    program = """
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        import _interpreters as interpreters
    name = interpreters.create()
    for line in ("import forebay.interop.numpy", "import numpy; numpy.ones(9_000_000)"):
        try:
            answer = interpreters.run_string(name, line)  # from 3.13 on it tells instead of raising
            print("ImportError" in repr(answer) or "ran")
        except Exception as error:
            print("ImportError" in str(error) + repr(error))
    interpreters.destroy(name)
    assert np.ones(3 * MIB).all()
    """
    assert child(program)[:1] == ["True"]


def test_the_debug_allocators_find_nothing():
    program = """
    old = np.arange(10.0)
    for size in (1000, MIB, 10 * MIB, 100):
        old.resize(size, refcheck=False)
        assert old[:10].tolist() == list(range(10))
    with hook.serving(HOST, smallest=1):
        arrays = [np.zeros(n, np.uint8) for n in range(2000)]
        for array in arrays:
            array.resize(3 * array.size + 1, refcheck=False)
    hook.uninstall()
    assert not any(array.any() for array in arrays)
    """
    assert child(program, python=["-X", "dev"], env={"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "85"}.items()) == []


def test_scipy_and_scikit_learn():
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
    begin = BEGIN.replace("install(HOST)", "install(HOST, smallest=1)")
    assert child(program, begin=begin, python=["-W", "ignore"]) == []


def test_numpys_own_tests_of_arrays_pass(tmp_path):
    """The parts that allocate, grow, sort and copy most, with every array served; all of numpy._core takes minutes."""
    parts = ("test_multiarray.py", "test_nditer.py", "test_indexing.py", "test_mem_overlap.py")
    chosen = "resize or sort or take or fromiter or creation or pickl or zeros or newbuffer or overlap or concat"
    program = f"""
    import pytest
    from pathlib import Path
    folder = Path(np.__file__).parent / "_core/tests"
    status = pytest.main(
        ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "-k", {chosen!r}]
        + [str(folder / part) for part in {parts}]
    )
    from forebay.runtime.devices.current import opened_for
    served = memory.memory_stats(HOST)["allocation.all.allocated"]
    assert opened_for(HOST).allocator.broken() is None and served > 100_000, served
    sys.exit(status)
    """
    source = BEGIN.replace("install(HOST)", "install(HOST, smallest=1)") + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
