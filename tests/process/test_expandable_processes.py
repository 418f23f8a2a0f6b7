"""Programs with expandable segments, enabled by the environment."""

from __future__ import annotations

import os

import pytest

EXPANDABLE = {**os.environ, "FOREBAY_ALLOC_CONF": "expandable_segments:True"}


def test_arrays_and_tensors_in_expandable_segments(runner):
    """Zeroed arrays are zero in recommitted memory, and all memory is released at the end."""
    runner.write("""
import numpy as np
import forebay
from forebay.interop import numpy as hook

forebay.memory.set_capacity("64MiB", "cpu")
made = [forebay.full((700_000,), i, dtype=np.float32, device="cpu") for i in range(8)]
stats = forebay.memory.memory_stats("cpu")
assert (stats["segment.all.current"], stats["reserved_bytes.all.current"]) == (0, 22 << 20)
assert [tensor[-1].item() for tensor in made] == list(range(8))
del made
hook.install("cpu")
kept = [np.zeros(300_000) for _ in range(16)]
for array in kept:
    assert not array.any()
    array += 1
del kept[::2], array
forebay.memory.empty_cache("cpu")
assert 19 << 20 < forebay.memory.memory_reserved("cpu") < 40 << 20
more = [np.zeros(700_000) for _ in range(4)]
assert not any(array.any() for array in more)
assert all((array == 1).all() for array in kept)
del more, kept
hook.uninstall()
forebay.memory.empty_cache("cpu")
assert forebay.memory.mem_get_info("cpu") == (64 << 20, 64 << 20)
""")
    done = runner.command("-W", "error", "script.py", env=EXPANDABLE)
    assert (done.status, done.out, done.err) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_child_expands_its_own_segments(runner):
    runner.write("""
import os, signal, traceback
import numpy as np
import forebay
from forebay.interop import numpy as hook

hook.install("cpu")
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
        assert forebay.zeros(1000, 1000, device="cpu").tolist()[-1][-1] == 0
        forebay.memory.empty_cache("cpu")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (kept == 1).all()
del kept
forebay.memory.empty_cache("cpu")
assert forebay.memory.memory_reserved("cpu") == 0
""")
    done = runner.command(
        "-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py", env=EXPANDABLE
    )
    assert (done.status, done.out, done.err) == (0, "", "")
