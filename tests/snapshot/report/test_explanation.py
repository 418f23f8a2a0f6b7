"""Explanations: the cause of an error, figures that add up, and text that says so."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from support.snapshot_programs import MIB, dumped, fragmented, without_allocations
from support.snapshot_scenes import training

from forebay import OutOfMemory, simulate
from forebay.records.model import Action
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.report.explanation import Cause, Explanation, explanation
from forebay.snapshot.report.explanation_text import paragraphs


def snapshot_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    return snapshot


def run_out(gpu, nbytes: int, stream: int = 0):
    with pytest.raises(OutOfMemory):
        gpu.allocate(nbytes, stream)
    return snapshot_of(gpu)


def recording(total: int, settings: str = "") -> simulate.Device:
    gpu = simulate.Device(total, settings)
    gpu.record_history()
    return gpu


def fragmented_history():
    return snapshot_of(fragmented(60))


def too_large(settings: str = ""):
    gpu = recording(96 * MIB, settings)
    gpu.allocate(60 * MIB)
    return run_out(gpu, 60 * MIB)


def other_queue():
    gpu = recording(100 * MIB)
    gpu.free(gpu.allocate(60 * MIB, 1))
    gpu.allocate(2 * MIB, 1)
    return run_out(gpu, 50 * MIB)


def other_pool():
    gpu = recording(100 * MIB)
    with gpu.use_pool(gpu.new_pool()):
        address = gpu.allocate(60 * MIB)
    gpu.free(address)
    return run_out(gpu, 50 * MIB)


def limited():
    gpu = recording(1000 * MIB)
    gpu.set_memory_fraction(0.1)
    gpu.allocate(60 * MIB)
    return run_out(gpu, 50 * MIB)


def segment_too_large():
    gpu = recording(36 * MIB)
    gpu.allocate(18 * MIB)
    return run_out(gpu, 6 * MIB)


def other_class():
    """Two MiB remain for small blocks, which are used; a large segment has 28 MiB free."""
    gpu = recording(32 * MIB)
    gpu.free(gpu.allocate(30 * MIB))
    gpu.allocate(2 * MIB)
    gpu.allocate(MIB)
    gpu.allocate(MIB)
    return run_out(gpu, MIB)


CAUSES = {
    Cause.OTHER_CLASS: (other_class, "Larger blocks are free, but in segments for another size class"),
    Cause.FRAGMENTED: (
        fragmented_history,
        "The memory is fragmented: 38.00 MiB of the reserved memory",
    ),
    Cause.TOO_LARGE: (too_large, "blocks in use take 60.00 MiB, with the request 120.00 MiB; it could reserve 96.00"),
    Cause.OTHER_QUEUE: (other_queue, "A free block of 58.00 MiB is large enough, but it belongs to another stream"),
    Cause.OTHER_POOL: (other_pool, "A free block of 60.00 MiB is large enough, but it belongs to another pool"),
    Cause.LIMIT: (limited, "so a limit of the process was reached, with 60.00 MiB reserved"),
    Cause.SEGMENT: (segment_too_large, "the allocator reserves 20.00 MiB for a request of 6.00 MiB"),
}


def pool_needed():
    """The private pool's 40 MiB and the device's 30 MiB are enough together, but no one else can use the former."""
    gpu = recording(96 * MIB)
    with gpu.use_pool(gpu.new_pool()):
        kept = [gpu.allocate(20 * MIB), gpu.allocate(20 * MIB)]
    for address in kept:
        gpu.free(address)
    gpu.allocate(26 * MIB)
    return run_out(gpu, 60 * MIB)


def test_memory_of_private_pools_is_named_as_such():
    found = explanation(pool_needed())
    assert found.cause == Cause.OTHER_POOL
    assert "40.00 MiB of the reserved memory are free, but in private pools" in text(found)
    assert "Without them 30.00 MiB are free, less than the request" in text(found)
    (pools,) = [part for part in paragraphs(found) if part.heading == "Free memory of private pools"]
    assert pools.rows[0][2:] == ("40.00 MiB", "0 B")
    assert "live blocks keep" not in text(found)


def test_blocks_outside_the_segments_are_said():
    gpu = recording(1 << 30)
    gpu.allocate(20 * MIB)
    gpu.allocate(30 * MIB)
    snapshot = snapshot_of(gpu)
    trace = snapshot.trace[snapshot.trace["action"] == Action.ALLOC]
    broken = replace(snapshot, segments=snapshot.segments[:0], blocks=snapshot.blocks[:0], trace=trace)
    found = explanation(broken)
    assert (found.use.live, found.use.outside) == (0, 20 * MIB)
    assert "The most memory was live after entry 1: 20.00 MiB." in text(found)
    assert "20.00 MiB of live blocks are in no segment of the file" in text(found)


def test_history_without_allocations_says_how_to_record():
    found = explanation(snapshot_of(without_allocations()))
    (settings,) = [part for part in paragraphs(found) if part.heading == "Allocator settings"]
    assert "has no allocation, so no settings can be tried" in settings.sentences[0]
    assert "_record_memory_history(max_entries=100000)" in settings.sentences[1]
    assert settings.rows == ()


def text(found) -> str:
    lines = []
    for part in paragraphs(found):
        lines += [part.heading, " ".join(part.sentences), *(" | ".join(row) for row in (part.columns, *part.rows))]
        lines.append(part.line)
    return "\n".join(lines)


@pytest.mark.parametrize("cause", CAUSES)
def test_cause_of_an_error_is_named(cause):
    scene, words = CAUSES[cause]
    found = explanation(scene())
    assert found.cause == cause
    assert "cuda:0 ran out of memory" in text(found)
    assert words in text(found)


@pytest.mark.parametrize("cause", CAUSES)
def test_parts_of_the_memory_add_up(cause):
    found = explanation(CAUSES[cause][0](), replay=False)
    use = found.use
    assert use.live + use.rounding + use.pending + use.cached + use.fragmented == use.reserved
    assert sum(site.live_bytes for site in found.sites) == use.live
    assert found.remedies is None


def test_claimed_setting_is_printed_for_the_environment():
    found = explanation(fragmented_history())
    (settings,) = [part for part in paragraphs(found) if part.heading == "Allocator settings"]
    assert settings.line == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert "reserve and release the same segments as recorded (1 event)" in settings.sentences[0]
    (pinned,) = [part for part in paragraphs(found) if "pinned" in part.heading]
    assert "1 segment with 38.00 MiB free" in pinned.sentences[0]


def test_no_setting_is_claimed_for_a_request_that_is_too_large():
    words = text(explanation(too_large()))
    assert "None of the 6 settings that were replayed would avoid this error." in words
    assert "PYTORCH" not in words


def test_errors_with_expandable_segments_are_explained():
    found = explanation(too_large("expandable_segments:True"))
    assert (found.cause, found.settings) == (Cause.TOO_LARGE, "expandable_segments:True")


def test_one_of_several_errors_is_explained():
    gpu = recording(96 * MIB)
    address = gpu.allocate(80 * MIB)
    run_out(gpu, 60 * MIB)
    gpu.free(address)
    gpu.allocate(50 * MIB)
    snapshot = run_out(gpu, 70 * MIB)
    last, first = explanation(snapshot), explanation(snapshot, error=0)
    assert (last.request.event.wanted, first.request.event.wanted) == (70 * MIB, 60 * MIB)
    assert (last.use.live, first.use.live) == (50 * MIB, 80 * MIB)
    assert "The history has 2 out-of-memory events, of which one is explained above" in text(last)
    with pytest.raises(IndexError):
        explanation(snapshot, error=2)


def test_peak_is_explained_where_memory_did_not_run_out():
    gpu = recording(1 << 30)
    first = gpu.allocate(40 * MIB)
    second = gpu.allocate(30 * MIB)
    gpu.free(first)
    gpu.free(second)
    found = explanation(snapshot_of(gpu))
    assert (found.cause, found.moment, found.use.live) == (Cause.PEAK, 4, 70 * MIB)
    assert "Memory did not run out in this history of 8 entries." in text(found)
    with pytest.raises(IndexError, match="has no out-of-memory event"):
        explanation(snapshot_of(gpu), error=0)


def test_cpu_device_is_explained_by_arrays_and_the_memory_of_the_machine():
    found = explanation(training())
    words = text(found)
    assert found.remedies is None
    assert not {word for word in ("stream", "ALLOC_CONF", "expandable", "batch size") if word in words}
    words = text(explanation(replace(too_large(), device="cpu")))
    assert "or make the largest of the arrays below smaller (dtype, parts of the data)" in words
    assert "give the program more memory (forebay run --memory)" in words


def test_growth_and_leak_candidates_are_described():
    found = explanation(replace(training(), device="cuda:0"))
    words = text(found)
    assert "The history repeats a pattern of 49 allocations 14 times. Live memory grows by 34.00 MiB in each" in words
    assert "metrics.py:27 History.append | 34.00 MiB | 476.00 MiB | 14 | never" in words
    assert "This growth is more than the 168.00 MiB that the request was short of." in words
    assert "So no setting is claimed to help" in words  # recorded by another allocator


def test_snapshot_without_a_history_is_explained_by_its_final_state():
    snapshot = fragmented_history()
    found = explanation(replace(snapshot, trace=snapshot.trace[:0]))
    assert (found.cause, found.use.live, found.remedies, found.growth) == (Cause.FINAL, 2 * MIB, None, None)
    assert "The file has no history, so only its last moment can be explained: 2.00 MiB were live" in text(found)


def test_device_without_memory_is_explained():
    found = explanation(snapshot_of(recording(1 << 30)))
    assert (found.use.reserved, found.sites) == (0, ())
    assert "0 B were live" in text(found)


def test_dropped_entries_and_earlier_errors_are_remarked():
    snapshot = replace(fragmented_history(), lost=1234, stats={"num_ooms": 3}, notes={})
    words = text(explanation(snapshot))
    assert "The ring buffer dropped the first 1,234 entries" in words
    assert "2 earlier out-of-memory errors happened outside the recorded history." in words
    assert "The file does not contain the settings of the recording" in words


def test_pending_frees_and_other_processes_are_shown():
    gpu = recording(100 * MIB)
    gpu.hold_events()
    address = gpu.allocate(30 * MIB)
    gpu.record_stream(address, 5)
    gpu.free(address)
    snapshot = snapshot_of(gpu)
    trace = np.append(snapshot.trace, snapshot.trace[-1:])
    trace[-1]["action"], trace[-1]["address"], trace[-1]["nbytes"] = Action.OOM, 50 * MIB, 90 * MIB
    found = explanation(replace(snapshot, trace=trace, capacity=100 * MIB), replay=False)
    assert found.use.pending == 30 * MIB
    assert "freed, but in use by other streams | 30.00 MiB" in text(found)
    assert "other processes, libraries and the driver | 20.00 MiB" in text(found)


def test_names_from_files_are_printable():
    snapshot = fragmented_history()
    strings = tuple(f"{word}\x1b[31m\u202e" for word in snapshot.strings)
    words = text(explanation(replace(snapshot, strings=strings, device="cuda\x1b:0")))
    assert "\x1b" not in words
    assert "\u202e" not in words


def test_explanation_is_json():
    for snapshot in (fragmented_history(), replace(training(), device="cuda:0"), too_large()):
        value = json.loads(json.dumps(explanation(snapshot).as_json()))
        assert {*value} == {field.name for field in fields(Explanation)}
        assert value["use"]["reserved"] > 0
        assert value["request"]["event"]["wanted"] > 0
        assert value["remedies"]["proved"] in (True, False)
