"""Decoding of pickles: the stream equals plain values, is fast and small, and truncated files are read."""

from __future__ import annotations

import gzip
import io
import pickle
import subprocess
import sys

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.equal_snapshots import assert_equal, without_stacks
from support.snapshot_programs import dumped, program
from support.synthetic_history import synthetic

from forebay import snapshot
from forebay.snapshot.formats import native, torch_pickle, torch_writer
from forebay.snapshot.formats.budget import BadSnapshot
from forebay.snapshot.formats.byte_source import ByteSource
from forebay.snapshot.formats.torch_decode import Odd, decode_stream

MEASURE = """
import resource, sys
from forebay import snapshot
from forebay.snapshot.formats import torch_pickle
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(found,) = snapshot.load(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(found.trace))
"""


def streamed(data):
    return decode_stream(ByteSource(io.BytesIO(data)))


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 1 << 30), st.sampled_from(["", "expandable_segments:True"]), st.integers(0, 2),
    st.integers(1, 3), st.integers(2, 5), st.sampled_from([3 << 30, 300 << 20]),
)  # fmt: skip
def test_stream_equals_plain_values(seed, text, pools, streams, protocol, total):
    value = program(seed, text, steps=150, pools=pools, streams=streams, total=total)
    data = dumped(value, protocol)
    streamed(data)  # does not raise Odd
    for found, expected in zip(torch_pickle.parse(data), torch_pickle.snapshots(value), strict=True):
        assert_equal(found, expected)


def test_other_pickles_are_left_to_the_reader_of_plain_values():
    value = program(steps=40)
    value["device_traces"][0].reverse()
    value["device_traces"].append(value["device_traces"][0][:3])
    data = dumped(value)
    with pytest.raises(Odd):
        streamed(data)
    assert [len(found.trace) for found in torch_pickle.parse(data)] == [len(value["device_traces"][0]), 3]


def test_frame_that_a_list_repeats_is_one_object():
    frame = {"filename": "x" * 1000, "name": "f", "line": 1}
    found = streamed(pickle.dumps({"segments": [], "other": [None, *[frame] * 1000]})).value["other"]
    assert found[1] == frame
    assert len({*map(id, found[1:])}) == 1  # else a file of a megabyte takes gigabytes


@pytest.fixture(scope="module")
def million(tmp_path_factory):
    path = tmp_path_factory.mktemp("million") / "million.pickle"
    torch_writer.write([synthetic(1_000_000)], path)
    return path


def test_million_entries_take_300_mib(million):
    done = subprocess.run([sys.executable, "-c", MEASURE, million], capture_output=True, text=True, check=True)
    kib, entries = done.stdout.split()
    assert int(entries) == 1_000_000
    assert int(kib) < 300 << 10


@pytest.mark.parametrize("fraction", [0.02, 0.5, 0.999, 1 - 1e-8])
def test_truncated_file_is_read_up_to_its_end(million, tmp_path, fraction):
    content = million.read_bytes()
    path = tmp_path / "cut.pickle"
    path.write_bytes(content[: int(len(content) * fraction)])
    (found,) = snapshot.load(path)
    (whole,) = snapshot.load(million)
    assert "the file ends after" in found.notes["truncated"]
    assert abs(len(found.trace) - 1_000_000 * fraction) < 20_000
    native.check(found)
    assert without_stacks(found.trace[-1000:]) == without_stacks(whole.trace[: len(found.trace)][-1000:])


def test_every_truncation_is_read_or_refused():
    data = dumped(program(steps=30, pools=1))
    readable = 0
    for end in range(len(data) - 1):
        try:
            for found in torch_pickle.parse(data[:end]):
                native.check(found)
                assert "truncated" in found.notes
                readable += 1
        except BadSnapshot:
            continue
    assert readable > len(data) / 2


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_compressed_files_are_read(tmp_path, compress):
    value = program(steps=300)
    path, calls = tmp_path / "compressed", []
    path.write_bytes(compress(dumped(value)))
    (found,) = snapshot.load(path, lambda done, total: calls.append((done, total)))
    assert_equal(found, torch_pickle.snapshots(value)[0])
    assert calls[-1] == (path.stat().st_size,) * 2
    path.write_bytes(compress(dumped(value, 0)))  # read again from the beginning, as plain values
    assert_equal(snapshot.load(path)[0], found)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_truncated_compressed_file_is_read_up_to_its_end(tmp_path, compress):
    path = tmp_path / "compressed"
    data = compress(dumped(program(steps=30_000)))
    path.write_bytes(data[: len(data) // 2])
    (found,) = snapshot.load(path)
    assert len(found.trace) > 1_000
    assert "truncated" in found.notes


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_decompression_bomb_is_refused(tmp_path, compress):
    path = tmp_path / "bomb"
    path.write_bytes(compress(b"\x80\x04]" + b"N0" * (64 << 20)))
    with pytest.raises(BadSnapshot, match=r"more than [\d,]+ bytes when it is decompressed|plain|pickle"):
        snapshot.load(path)
    path.write_bytes(compress(b"\x80\x04}(\x8c\x08segmentsX\xff\xff\xff\x7f" + bytes(128 << 20)))
    with pytest.raises(BadSnapshot):
        snapshot.load(path)


def test_small_compressed_file_takes_little_memory(tmp_path):
    entry = b"}(h\x00h\x02h\x01K\x00u"
    for count, readable in ((1_000_000, True), (3_100_000, False)):  # 11 MB, and 34 MB, of the same few kilobytes
        head = b"\x80\x04}(\x8c\x01x](\x8c\x06actionq\x00\x8c\x04sizeq\x01\x8c\x05allocq\x02e\x8c\x08segments]"
        (tmp_path / "file").write_bytes(gzip.compress(head + b"\x8c\x0ddevice_traces](](" + entry * count + b"eeu."))
        if readable:
            assert len(snapshot.load(tmp_path / "file")[0].trace) == count
            continue
        with pytest.raises(BadSnapshot, match=r"more than [\d,]+ bytes"):
            snapshot.load(tmp_path / "file")


@pytest.mark.parametrize("damage", [b"\x1f\x8b nonsense", b"\x28\xb5\x2f\xfd nonsense"])
def test_invalid_compressed_data_is_refused(tmp_path, damage):
    (tmp_path / "file").write_bytes(damage)
    with pytest.raises(BadSnapshot, match=r"file: "):
        snapshot.load(tmp_path / "file")


def test_progress_is_reported(million):
    calls = []
    snapshot.load(million, lambda done, total: calls.append((done, total)))
    assert len(calls) > 10
    assert calls == sorted(calls)
    assert calls[-1] == (million.stat().st_size,) * 2


def test_texts_longer_than_a_window_are_read():
    value = program(steps=5)
    value["device_traces"][0][0]["user_metadata"] = "x" * (3 << 20)
    data = dumped(value)
    streamed(data)
    assert len(torch_pickle.parse(data)[0].labels[0][1]) == 3 << 20


OPCODES = [b"]", b"]\x94", b"}", b"}\x94(", b"(", b"K\x00K\x01\x86\x94", b"K\x00K\x01)\x87", b"N", b"X\0\0\0\0\x94"]
BOMBS = """
import io, resource, sys
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot
for opcode in eval(sys.argv[1]):
    content = b"\\x80\\x04](" + opcode * ((8 << 20) // len(opcode)) + b"e."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        torch_pickle.parse(content)
    except BadSnapshot:
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_of_the_stream_is_bounded():
    command = [sys.executable, "-c", BOMBS, repr(OPCODES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert len(done.stdout.split()) == len(OPCODES)
    assert max(map(int, done.stdout.split())) << 10 < 20 * (8 << 20) + (64 << 20)


def test_nesting_is_bounded():
    with pytest.raises(Odd):
        streamed(b"\x80\x04" + b"]" * 101 + b"a" * 100 + b".")


def test_lists_that_grow_after_they_became_items_are_bounded():
    """Each list holds the previous one, which is extended later: no list is deep when it is made."""
    made = b"]\x94" * 300
    joined = b"".join(
        b"j" + n.to_bytes(4, "little") + b"j" + (n + 1).to_bytes(4, "little") + b"a" for n in reversed(range(299))
    )
    with pytest.raises((BadSnapshot, Odd)):
        torch_pickle.parse(b"\x80\x04}(\x8c\x08segments](" + made + joined + b"eu.")


def test_hashes_do_not_collide():
    """Pairs whose plain hash would be equal take linear time."""
    pairs = b"".join(pickle.dumps((n << 32, n << 40), 4)[11:-1] for n in range(20_000))
    with pytest.raises((BadSnapshot, Odd)):
        torch_pickle.parse(b"\x80\x04}(\x8c\x08segments](" + pairs + b"eu.")
