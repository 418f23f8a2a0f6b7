"""Predictions of memory beside what GPUs have allocated: one test for each workload of each record.

`DIFFER` lists what is known not to agree, with the reason; an entry that agrees fails.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="predicts the memory of PyTorch programs")

from support import gpu_truth, stub_libraries  # noqa: E402 -- needs torch
from support.on_oracle import ORACLE  # noqa: E402 -- as above
from support.oracle_programs import on_oracle  # noqa: E402 -- as above

gpu_truth.import_workloads()

from gpu.workloads import all_workloads  # noqa: E402 -- as above
from gpu.workloads.workload import WORKLOADS  # noqa: E402 -- as above

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages, in whatever version, and of torch.compile

RECORDS = gpu_truth.records()
ROWS = [(file, name) for file, record in RECORDS.items() for name in record["workloads"]]
DIFFER: dict[tuple[str, str], str] = {}  # by the file and the workload: the reason
CARD = {"name": "NVIDIA H200", "total_memory": 150_110_011_392, "multi_processor_count": 132, "major": 9, "minor": 0}
QUICK = [each.name for each in all_workloads.load(quick=True)]
# Workloads whose Python code reads values that are not known without values: masks of more than 32 KiB.
ON_ORACLE = ("attention_math", "attention_efficient", "attention_flash", "cuda_graph")
ORACLE_SECONDS = 110


@pytest.mark.parametrize(("file", "name"), ROWS)
def test_prediction_agrees_with_the_gpu(file, name):
    record, workload = RECORDS[file], WORKLOADS.get(name)
    if workload is None or workload.reads_values:
        pytest.skip(workload.reads_values if workload else "this workload is no longer measured")
    for package in workload.packages:
        if package != "triton":  # compiled programs run with another backend here
            pytest.importorskip(package)
    version = gpu_truth.public(record["versions"]["torch"])
    same = version == gpu_truth.public(torch.__version__)
    found = gpu_truth.predicted(workload, record["card"], version)
    tolerance = gpu_truth.EQUAL if same else gpu_truth.OTHER_VERSION
    wrong = gpu_truth.differences(record["workloads"][name], found, tolerance)
    if reason := DIFFER.get((file, name)):
        assert wrong, f"this agrees: remove {reason!r} from DIFFER"
        pytest.skip(reason)
    assert wrong == []


@pytest.fixture(scope="module")
def made():
    """Measurements that a prediction made."""
    return gpu_truth.predicted(WORKLOADS["attention_math"], CARD)


def test_record_of_the_same_prediction_is_equal(made):
    again = gpu_truth.predicted(WORKLOADS["attention_math"], CARD)
    assert gpu_truth.differences(json.loads(json.dumps(made)), again, gpu_truth.EQUAL) == []


def change_size(row):
    row["phases"][0]["sizes"][0] = [1, 8] if isinstance(row["phases"][0]["sizes"][0], list) else 8


def change_order(row):
    row["phases"][1]["sizes"] = row["phases"][1]["sizes"][::-1]


def leave_out_an_allocation(row):
    row["phases"][1]["sizes"].pop()


def change_peak(row):
    row["phases"][2]["peak_allocated"] += 512


def change_reserved(row):
    row["peak_reserved"] += 2 << 20


def leave_out_a_step(row):
    row["phases"].pop()


@pytest.mark.parametrize(
    "change", [change_size, change_order, leave_out_an_allocation, change_peak, change_reserved, leave_out_a_step]
)
def test_wrong_records_are_found(made, change):
    wrong = copy.deepcopy(made)
    change(wrong)
    assert gpu_truth.differences(wrong, made, gpu_truth.EQUAL)


def test_tolerance_for_another_version_has_limits(made):
    near, far = copy.deepcopy(made), copy.deepcopy(made)
    near["peak_allocated"] = int(near["peak_allocated"] * 1.015)
    near["phases"][1]["sizes"].pop()
    far["peak_allocated"] = int(far["peak_allocated"] * 1.03)
    assert gpu_truth.differences(near, made, gpu_truth.OTHER_VERSION) == []
    assert len(gpu_truth.differences(far, made, gpu_truth.OTHER_VERSION)) == 1


def test_emulated_card_has_the_recorded_properties():
    card = {**CARD, "name": "NVIDIA H900", "total_memory": 12 << 30, "multi_processor_count": 100, "major": 8}
    with gpu_truth.emulated_card(card):
        found = torch.cuda.get_device_properties(0)
        assert found.name == "NVIDIA H900 (emulated)"
        assert (found.total_memory, found.multi_processor_count, found.major) == (12 << 30, 100, 8)


@pytest.mark.parametrize("name", QUICK)
def test_workload_runs_without_values(name):
    for package in WORKLOADS[name].packages:
        pytest.importorskip(package)
    found = gpu_truth.predicted(WORKLOADS[name], CARD)
    assert [each["name"] for each in found["phases"]] == ["prepare", "step 1", "step 2", "step 3"]
    assert found["peak_reserved"] >= found["peak_allocated"] > 50 << 20
    assert gpu_truth.sizes_of(found, "step 2") == gpu_truth.sizes_of(found, "step 3")


@on_oracle
def test_prediction_agrees_with_the_real_allocator(tmp_path):
    """The workloads whose kernels the stand-in plays are measured with the real PyTorch, and must be equal."""
    libraries = ":".join(map(str, stub_libraries.build()))
    program = f"""
import ctypes
for each in {libraries!r}.split(":"):
    ctypes.CDLL(each, ctypes.RTLD_GLOBAL)
import torch._dynamo
from gpu import truth
from gpu.part import execute
from gpu.workloads import all_workloads
listed = all_workloads.load()
all_workloads.load = lambda quick=False: [each for each in listed if each.name in {ON_ORACLE}]
truth._Truth._import_packages = lambda self: None
truth._STAND_IN_SECONDS = 12.0
execute(truth.measure)
"""
    environment = {**os.environ, "PYTHONPATH": str(gpu_truth.TOOLS), "FAKE_CUDA_TOTAL_MB": "20000"}
    command = ["bash", str(ORACLE), "-c", program, str(tmp_path), str(ORACLE_SECONDS)]
    subprocess.run(command, env=environment, check=True, timeout=ORACLE_SECONDS + 20)
    measured = json.loads((tmp_path / "truth.json").read_text())
    assert measured["rehearsal"] is True
    version = gpu_truth.public(measured["versions"]["torch"])
    for name in ON_ORACLE:
        row = measured["workloads"][name]
        assert row["status"] == "ok", (name, row)
        found = gpu_truth.predicted(WORKLOADS[name], measured["card"], version)
        assert gpu_truth.differences(row, found, gpu_truth.EQUAL) == [], name
