"""A program whose device has growing segments, because the environment says so."""

from __future__ import annotations

import os

import pytest

GROWING = {**os.environ, "FOREBAY_ALLOC_CONF": "expandable_segments:True"}


def test_arrays_and_tensors_in_growing_segments(runner):
    """Zeroed memory is zero whatever came and went there, and all of it goes back."""
    runner.write("""
import numpy as np
import forebay
from forebay.interop import numpy as served

forebay.memory.set_capacity("64MiB", "host:0")
made = [forebay.full((700_000,), i, dtype=np.float32, device="host:0") for i in range(8)]
stats = forebay.memory.memory_stats("host:0")
assert (stats["segment.all.current"], stats["reserved_bytes.all.current"]) == (0, 22 << 20)
assert [tensor[-1].item() for tensor in made] == list(range(8))
del made
served.install("host:0")
kept = [np.zeros(300_000) for _ in range(16)]
for array in kept:
    assert not array.any()
    array += 1
del kept[::2], array
forebay.memory.empty_cache("host:0")
assert 19 << 20 < forebay.memory.memory_reserved("host:0") < 40 << 20
more = [np.zeros(700_000) for _ in range(4)]
assert not any(array.any() for array in more)
assert all((array == 1).all() for array in kept)
del more, kept
served.uninstall()
forebay.memory.empty_cache("host:0")
assert forebay.memory.mem_get_info("host:0") == (64 << 20, 64 << 20)
""")
    done = runner.command("-W", "error", "script.py", env=GROWING)
    assert (done.status, done.out, done.err) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_grows_segments_of_its_own(runner):
    runner.write("""
import os, signal, traceback
import numpy as np
import forebay
from forebay.interop import numpy as served

served.install("host:0")
kept = np.ones(300_000)
idle = np.ones(900_000)
del idle
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        assert (kept == 1).all()
        arrays = [np.zeros(n * 100_000) for n in range(2, 20)]
        assert not any(array.any() for array in arrays)
        for array in arrays:
            array[:] = 2
        kept += 1
        assert (kept == 2).all()
        del arrays, array, kept
        forebay.reopen("host:0")
        assert forebay.zeros(1000, 1000, device="host:0").tolist()[-1][-1] == 0
        forebay.memory.empty_cache("host:0")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (kept == 1).all()
del kept
forebay.memory.empty_cache("host:0")
assert forebay.memory.memory_reserved("host:0") == 0
""")
    done = runner.command("-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py", env=GROWING)
    assert (done.status, done.out, done.err) == (0, "", "")
