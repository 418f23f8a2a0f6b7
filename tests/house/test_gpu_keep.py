"""`dev.py gpu --keep`: records of a run, and results that are missing, malformed, hostile or a rehearsal's."""

from __future__ import annotations

import copy
import io
import json
import sys
import tarfile

import pytest

PHASE = {
    "name": "prepare", "allocated": 512, "peak_allocated": 1024, "reserved": 2 << 20, "peak_reserved": 2 << 20,
    "retries": 0, "count": 4, "segments": [2 << 20], "sizes": [4, [3, 512]],
}  # fmt: skip
STEP = {key: value for key, value in PHASE.items() if key != "sizes"} | {"name": "step 1", "sizes_of": "prepare"}
WORKLOAD = {
    "status": "ok", "steps": 1, "peak_allocated": 1024, "peak_reserved": 2 << 20, "phases": [PHASE, STEP],
    "losses": [0.5], "outside": 500 << 20, "seconds": 1.0, "total_seconds": 2.0,
}  # fmt: skip
TRUTH = {
    "format": 1, "when": "2026-12-01T10:00:00+00:00", "planned": 3, "rehearsal": False, "hardware": True,
    "card": {"name": "NVIDIA H100 80GB HBM3", "total_memory": 85028896768, "driver": "580.65.06", "other_processes": 0},
    "versions": {"torch": "2.11.0+cu130", "python": "3.12.3"},
    "outside": [{"name": "nothing", "device": 0, "cuda": None, "process": None}],
    "workloads": {
        "good": WORKLOAD,
        "bad": {"status": "failed", "detail": "ValueError: no"},
        "absent": {"status": "not run", "detail": "timm is not installed"},
    },
}  # fmt: skip
WORKSPACES = {
    "machine": {"name": "NVIDIA H100 80GB HBM3", "torch": "2.11.0+cu130", "cudnn": 91900},
    "calls": [
        {"name": "sort 5", "family": "sorts", "first": {"rows": [512, -1], "peak": 512}, "second": None},
        {"name": "sort 6", "error": "no"},
    ],
}
FILE = "h100-80gb-hbm3-torch-2.11.0.json"


@pytest.fixture
def keeping(root, monkeypatch, tmp_path):
    """The module, whose records go to a folder of the test."""
    monkeypatch.syspath_prepend(root / "tools")
    from gpu import keep

    monkeypatch.setattr(keep, "RECORDS", tmp_path / "records")
    yield keep
    for name in [name for name in sys.modules if name in ("gpu", "steps") or name.startswith("gpu.")]:
        del sys.modules[name]


@pytest.fixture
def output(tmp_path):
    """Return a function that writes the output of a run."""

    def write(truth=TRUTH, workspaces=None, name="output"):
        folder = tmp_path / name
        for part, value in (("truth", truth), ("workspaces", workspaces)):
            if value is not None:
                file = folder / "work/parts" / part / f"{part}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(value if isinstance(value, str) else json.dumps(value))
        return folder

    return write


def changed(**fields):
    return {**copy.deepcopy(TRUTH), **fields}


def changed_workload(**fields):
    return changed(workloads={"good": {**copy.deepcopy(WORKLOAD), **fields}})


def changed_phase(**fields):
    return changed_workload(phases=[{**PHASE, **fields}, STEP])


def test_record_has_what_was_measured(keeping, output, tmp_path):
    assert keeping.keep(output(workspaces=WORKSPACES)) == [tmp_path / "records" / FILE]
    record = json.loads((tmp_path / "records" / FILE).read_text())
    assert list(record["workloads"]) == ["good"]
    good = record["workloads"]["good"]
    assert good["phases"] == [PHASE, STEP]
    assert good["when"] == "2026-12-01T10:00:00+00:00"
    assert "seconds" not in good
    assert record["card"] == {"name": "NVIDIA H100 80GB HBM3", "total_memory": 85028896768}
    assert record["driver"] == "580.65.06"
    assert record["outside"] == TRUTH["outside"]
    assert list(record["calls"]) == ["sort 5"]
    assert record["calls"]["sort 5"]["first"] == {"rows": [512, -1], "peak": 512}
    assert record["machine"]["cudnn"] == 91900


def test_equal_results_give_equal_bytes(keeping, output):
    turned = {key: TRUTH[key] for key in reversed(TRUTH)}
    turned["workloads"] = {key: TRUTH["workloads"][key] for key in reversed(TRUTH["workloads"])}
    (file,) = keeping.keep(output())
    first = file.read_bytes()
    keeping.keep(output(turned, name="again"))
    assert file.read_bytes() == first


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_newer_measurements_stay_in_whatever_order_they_are_kept(keeping, output, order):
    newer = changed(
        when="2026-12-02T09:00:00+02:00",
        workloads={"good": {**WORKLOAD, "peak_allocated": 2048}, "new": WORKLOAD},
        versions={"torch": "2.11.0+cu130", "python": "3.12.4"},
    )
    older = changed(workloads={"good": WORKLOAD, "old": WORKLOAD})
    outputs = [output(older, WORKSPACES, name="older"), output(newer, name="newer")]
    for each in order:
        (file,) = keeping.keep(outputs[each])
    record = json.loads(file.read_text())
    assert list(record["workloads"]) == ["good", "new", "old"]
    assert record["workloads"]["good"]["peak_allocated"] == 2048
    assert record["workloads"]["old"]["when"] == "2026-12-01T10:00:00+00:00"
    assert record["when"] == "2026-12-02T07:00:00+00:00"
    assert record["versions"]["python"] == "3.12.4"
    assert list(record["calls"]) == ["sort 5"]


def test_other_card_and_other_version_are_other_records(keeping, output):
    files = keeping.keep(output())
    files += keeping.keep(output(changed(versions={"torch": "2.12.1"}), name="b"))
    files += keeping.keep(output(changed(card={"name": "NVIDIA H200"}), name="c"))
    assert [file.name for file in files] == [FILE, "h100-80gb-hbm3-torch-2.12.1.json", "h200-torch-2.11.0.json"]


def packed(path, members):
    with tarfile.open(path, "w:xz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("prefix", ["", "out/", "./"])
def test_archive_is_read_like_its_folder(keeping, output, tmp_path, prefix):
    (file,) = keeping.keep(output(workspaces=WORKSPACES))
    expected = file.read_bytes()
    file.unlink()
    texts = {"truth": json.dumps(TRUTH), "workspaces": json.dumps(WORKSPACES)}
    members = [(f"{prefix}work/parts/{part}/{part}.json", text.encode()) for part, text in texts.items()]
    (tmp_path / "packed").mkdir()
    archive = packed(tmp_path / "packed" / "results.tar.xz", [("../../escape", b"x"), *members])
    for path in (archive, archive.parent):
        assert keeping.keep(path) == [file]
        assert file.read_bytes() == expected
        file.unlink()
    assert not (tmp_path / "escape").exists()


def test_links_and_large_members_of_archives_are_not_read(keeping, tmp_path, monkeypatch):
    path = tmp_path / "results.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        member = tarfile.TarInfo("work/parts/truth/truth.json")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(keeping.NotKept, match="the part truth, which describes the card, did not run"):
        keeping.keep(path)
    monkeypatch.setattr(keeping, "_MOST_UNPACKED", 1000)
    packed(path, [("padding", bytes(2000))])
    with pytest.raises(keeping.NotKept, match="unpacks to more than 1,000 bytes"):
        keeping.keep(path)


def test_large_file_is_not_read(keeping, output, monkeypatch):
    monkeypatch.setattr(keeping, "_MOST_BYTES", 1000)
    with pytest.raises(keeping.NotKept, match=r"bytes; the limit is 1,000"):
        keeping.keep(output())


@pytest.mark.parametrize(
    ("truth", "reason"),
    [
        (changed(rehearsal=True), "rehearsal, which has no card"),
        (changed(card={}), "rehearsal, which has no card"),
        (changed(rehearsal=0), "rehearsal, which has no card"),
        (changed(format=2), "format 2; this version knows format 1"),
        (changed(workloads={}), "no workload and no call succeeded"),
        (changed(workloads={"../../x": WORKLOAD}), "'../../x' is not a name"),
        (changed(workloads={"good": 5}), "malformed"),
        (changed(workloads=[WORKLOAD]), "malformed"),
        (changed(card={"name": "///"}), "is not the name of a card"),
        (changed(card={"name": 5}), "malformed"),
        (changed(card={"name": "H100", "x": 1e300}), "is not a number in range"),
        (changed(card={"name": "H100", "x": "y" * 3000}), "is no text of up to 2000 characters"),
        (changed(versions={"torch": "../2.11"}), "is not a version of PyTorch"),
        (changed(versions={}), "malformed"),
        (changed(when="yesterday"), "malformed"),
        (changed(outside=[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]), "nested more than 12 deep"),
        (changed_workload(peak_allocated=-1), "'-1' is not a size"),
        (changed_workload(peak_allocated=1.5), "is not a size"),
        (changed_workload(peak_allocated=1 << 60), "is not a size"),
        (changed_workload(losses=["nan"]), "'nan' is not a number in range"),
        (changed_workload(steps=2), "2 phases of 2 steps"),
        (changed_workload(phases=[PHASE, {**STEP, "sizes_of": "step 9"}]), "there is no phase 'step 9'"),
        (changed_phase(sizes=[4, [3, "x"]]), "is neither a size nor"),
        (changed_phase(sizes=[[10**12, 4]]), "more than 20,000,000 sizes"),
        (changed_phase(sizes=[4]), "1 sizes of 4 allocations"),
        (changed_phase(segments=[None]), "is neither a size nor"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"format": NaN}', "NaN is not a number"),
        ("[]", "is no JSON object"),
        ("{}", "malformed"),
    ],
)
def test_other_results_are_refused_in_one_line(keeping, output, truth, reason):
    with pytest.raises(keeping.NotKept) as caught:
        keeping.keep(output(truth))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not keeping.RECORDS.exists()


def test_parts_of_two_cards_are_refused(keeping, output):
    other = {**WORKSPACES, "machine": {"name": "NVIDIA H200", "torch": "2.11.0+cu130"}}
    with pytest.raises(keeping.NotKept, match="the parts ran on NVIDIA H200 and NVIDIA H100 80GB HBM3"):
        keeping.keep(output(workspaces=other))


def test_missing_output_is_refused(keeping, output, tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(keeping.NotKept, match="there is no output of a run at"):
            keeping.keep(path)
    text = tmp_path / "text"
    text.write_text("no archive")
    with pytest.raises(keeping.NotKept, match="is not an archive of results"):
        keeping.keep(text)
    with pytest.raises(keeping.NotKept, match=r"has no work/parts/truth/truth\.json"):
        keeping.keep(output(None, WORKSPACES))
