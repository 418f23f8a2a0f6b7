"""The sample of small NumPy arrays: estimates by line, growing arrays, threads, and the snapshot."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from forebay._core import Pool
from forebay.interop import array_samples
from forebay.interop import numpy as hook
from forebay.records.model import Action
from forebay.snapshot.analysis.sampling import peak_error
from forebay.snapshot.analysis.summary import sites
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import native

KIB = 1 << 10


@pytest.fixture(autouse=True)
def _installed():
    hook.install("cpu")
    yield
    hook.newest_hook().sample(Pool(), 0, 0)
    array_samples._sample.pool = None
    hook.uninstall()
    gc.collect()


def narrow():
    return [np.ones(KIB, np.uint8) for _ in range(4000)]


def wide():
    return [np.ones(60 * KIB, np.uint8) for _ in range(200)]


def test_estimates_of_two_sites_are_within_their_error():
    array_samples.start(100_000, mean=16 * KIB, seed=3)
    kept = narrow(), wide()
    taken = array_samples.snapshot("sample")
    found = {use.frame.name.partition(".")[0]: use for use in sites(taken)}
    for name, truth in (("narrow", 4000 * KIB), ("wide", 12_000 * KIB)):
        use = found[name]
        assert 0 < use.error < 0.1
        assert abs(use.live_bytes / truth - 1) < 4 * use.error
    assert found["narrow"].error > found["wide"].error
    assert 0 < peak_error(taken, reconstruct(taken)) < 0.1
    assert kept


def test_freed_arrays_leave_the_sample():
    array_samples.start(100_000, mean=KIB, seed=1)
    kept = wide()
    assert array_samples.sampled_pool().counts()[0] > 0
    kept.clear()
    taken = array_samples.snapshot("sample")
    assert not len(taken.blocks)
    line = reconstruct(taken)
    assert line.allocated[-1] == 0
    assert line.allocated.max() == pytest.approx(200 * 60 * KIB, rel=0.01)


def test_growing_array_counts_with_its_last_size():
    array_samples.start(1000, mean=KIB, seed=1)
    array = np.ones(10)
    array.resize(2_000_000, refcheck=False)
    taken = array_samples.snapshot("sample")
    assert [use.live_bytes for use in sites(taken)] == [16_000_000]
    assert sites(taken)[0].error == pytest.approx(0, abs=1e-6)
    totals = hook.other_arrays()
    assert totals.nbytes >= totals.peak >= 16_000_000


def test_seed_repeats_the_choice():
    chosen = []
    for seed in (5, 5, 6):
        array_samples.start(100_000, mean=KIB, seed=seed)
        wide()
        taken = array_samples.snapshot("sample", {"program": "p"})
        noted = taken.notes["sampled"]
        assert noted == {"mean_bytes": KIB, "seed": seed, "smaller_than_bytes": hook.SMALLEST} | noted
        assert noted["exact_peak_bytes"] >= 200 * 60 * KIB
        array_samples.start(100_000, mean=400 * KIB, seed=seed)
        narrow()
        taken = array_samples.snapshot("sample")
        chosen.append([*taken.trace["nbytes"].tolist(), len(taken.trace)])
        gc.collect()
    assert chosen[0] == chosen[1]
    assert chosen[0][-1] > 0


def test_arrays_of_threads_are_sampled():
    array_samples.start(100_000, mean=KIB, seed=1)
    kept = []
    threads = [threading.Thread(target=lambda: kept.extend(wide())) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (use,) = sites(array_samples.snapshot("sample"))
    assert use.live_bytes == pytest.approx(4 * 200 * 60 * KIB, rel=0.01)
    assert array_samples.sampled_pool().check_invariants() is None


def test_sample_is_stored_in_a_file(tmp_path):
    array_samples.start(1000, mean=KIB, seed=1)
    kept = wide()
    taken = array_samples.snapshot("sample")
    native.write(taken, tmp_path / "sample.forebay")
    again = native.read(tmp_path / "sample.forebay")
    assert again.notes["sampled"] == taken.notes["sampled"]
    assert [use.live_bytes for use in sites(again)] == [use.live_bytes for use in sites(taken)]
    assert (taken.trace["action"] == Action.ALLOC).any()
    assert kept


def test_ring_keeps_live_arrays():
    array_samples.start(100, mean=KIB, seed=1)
    kept = wide()
    for _ in range(1000):
        np.ones(60 * KIB, np.uint8)
    taken = array_samples.snapshot("sample")
    assert taken.lost > 0
    assert sum(use.live_bytes for use in sites(taken, len(taken.trace))) >= 200 * 60 * KIB
    assert kept


@pytest.mark.parametrize("arguments", [{"mean": 0}, {"mean": 1 << 60}, {"seed": -1}, {"seed": 1 << 64}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        array_samples.start(1000, **arguments)


def test_nothing_is_returned_without_samples():
    array_samples.start(1000, mean=1 << 50, seed=1)
    np.ones(10)
    assert array_samples.snapshot("sample") is None
