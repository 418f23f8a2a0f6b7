"""Device profiles: keys, consistency, published values, and the documentation page."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from forebay.profiles import Profile, load, names
from forebay.runtime.random.launch_geometry import Geometry

ROOT = Path(__file__).parents[1]
GIB = 1 << 30

KEYS = {
    "cuda": {
        *("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size", "warp_size"),
        *("clock_rate", "memory_clock_rate", "memory_bus_width", "regs_per_multiprocessor", "max_threads_per_block"),
        *("max_threads_per_multi_processor", "shared_memory_per_block", "shared_memory_per_block_optin"),
        *("shared_memory_per_multiprocessor", "is_integrated", "is_multi_gpu_board"),
        *("pci_domain_id", "pci_bus_id", "pci_device_id"),
    },
    "mps": {
        *("name", "core_count", "total_memory", "recommended_max_memory", "max_buffer_length"),
        *("unified_memory", "buffer_alignment"),
    },
    "mtia": {"name", "major", "minor", "core_count", "total_memory", "on_chip_memory"},
}
SENSORS = {
    *("memory", "idle_power", "max_power", "idle_temperature", "busy_temperature", "idle_clock", "max_clock"),
}


@pytest.fixture(params=names())
def profile(request: pytest.FixtureRequest) -> Profile:
    return load(request.param)


@pytest.fixture(params=names("cuda"))
def gpu(request: pytest.FixtureRequest) -> Profile:
    return load(request.param)


def test_names_are_selected_by_kind():
    """Every file is a profile of one kind."""
    files = [*(ROOT / "src/forebay/profiles").glob("*.toml")]
    kinds = {file.stem: tomllib.loads(file.read_text(encoding="utf-8"))["kind"] for file in files}
    for kind in KEYS:
        assert names(kind) == tuple(sorted(name for name, found in kinds.items() if found == kind)) != ()
    assert names() == tuple(sorted(kinds))
    assert {*kinds.values()} == {*KEYS}
    assert names("xpu") == ()


def test_profile_has_every_key_of_its_kind(profile: Profile):
    assert {*profile.properties} == KEYS[profile.kind]
    assert {*profile.sensors} == (SENSORS if profile.kind == "cuda" else set())
    for key, value in {**profile.properties, **profile.sensors}.items():
        assert type(value) is (str if key == "name" else int), key
        assert key == "name" or value >= 0, key


def test_every_number_has_a_source(profile: Profile):
    """Each line refers to a source of the file by its letter, or states that the number is unverified."""
    text = (ROOT / f"src/forebay/profiles/{profile.name}.toml").read_text(encoding="utf-8")
    explained = {line[2] for line in text.splitlines() if line.startswith("# ") and line[3:5] == ": "}
    plain = {"kind", "minor", "is_integrated", "is_multi_gpu_board", "pci_bus_id", "pci_device_id"}  # or the line above
    for line in text.splitlines():
        key, equals, rest = line.partition(" = ")
        if not equals or line.startswith("#") or key in plain or (profile.kind == "mps" and key == "name"):
            continue
        comment = rest.partition(" # ")[2]
        assert comment, line
        words = {word.strip(";:,") for word in comment.split()}
        sources = {"unverified", "clock_rate", "machine"}  # "machine": the file's title
        assert words & (explained | sources), line


def test_profile_numbers_are_consistent(gpu: Profile):
    found = gpu.properties
    assert found["total_memory"] % 65536 == 0  # the driver's granularity
    assert 0.9 * gpu.sensors["memory"] < found["total_memory"] < gpu.sensors["memory"]
    assert found["max_threads_per_multi_processor"] % 256 == 0
    assert found["max_threads_per_multi_processor"] >= found["max_threads_per_block"]
    assert found["shared_memory_per_block"] < found["shared_memory_per_block_optin"]
    assert found["shared_memory_per_block_optin"] <= found["shared_memory_per_multiprocessor"]
    assert found["warp_size"] == 32
    assert found["L2_cache_size"] % (512 * 1024) == 0
    sensors = gpu.sensors
    assert 0 < sensors["idle_power"] < sensors["max_power"]
    assert 0 < sensors["idle_clock"] < sensors["max_clock"]
    assert sensors["idle_temperature"] < sensors["busy_temperature"] < 95
    assert sensors["max_clock"] * 1000 >= found["clock_rate"]
    assert Geometry.of(gpu.name).threads == found["multi_processor_count"] * found["max_threads_per_multi_processor"]


BANDWIDTHS = {  # of the data sheets, in GB/s
    "v100": 900,
    "t4": 320,
    "a100": 2039,
    "rtx_a6000": 768,
    "l40s": 864,
    "rtx_4090": 1008,
    "h100": 3350,
    "h200": 4800,
    "b200": 7700,
}


def test_memory_clock_and_width_match_the_data_sheets_bandwidth(gpu: Profile):
    """The clock and the bus width have other sources than the bandwidth. A new card needs a line of BANDWIDTHS."""
    found = gpu.properties
    rate = 2 * found["memory_clock_rate"] * 1000 * found["memory_bus_width"] // 8  # double data rate
    assert rate / 1e9 == pytest.approx(BANDWIDTHS[gpu.name], rel=0.03)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("h200", "major=9, minor=0, total_memory=143156MB, multi_processor_count=132, L2_cache_size=60MB"),
        ("b200", "major=10, minor=0, total_memory=182631MB, multi_processor_count=148, L2_cache_size=126MB"),
        ("a100", "major=8, minor=0, total_memory=81157MB, multi_processor_count=108, L2_cache_size=40MB"),
        ("t4", "major=7, minor=5, total_memory=15102MB, multi_processor_count=40, L2_cache_size=4MB"),
    ],
)
def test_properties_match_pytorchs_repr(name: str, shown: str):
    found = load(name).properties
    keys = ("major", "minor", "total_memory", "multi_processor_count", "L2_cache_size")
    values = {key: f"{found[key] >> 20}MB" if "memory" in key or "size" in key else found[key] for key in keys}
    assert ", ".join(f"{key}={value}" for key, value in values.items()) == shown


@pytest.mark.parametrize("name", names("mps"))
def test_recommended_memory_follows_metals_rule(name: str):
    """Metal recommends two thirds of the memory up to 36 GiB, in whole pages, and three quarters of more."""
    found = load(name).properties
    fraction = 2 / 3 if found["total_memory"] <= 36 * GIB else 3 / 4
    assert found["recommended_max_memory"] == pytest.approx(fraction * found["total_memory"], abs=16384)
    assert found["recommended_max_memory"] % 16384 == 0
    assert 0 < found["max_buffer_length"] <= found["recommended_max_memory"]


@pytest.mark.parametrize("spelled", ["rtx_4090", "RTX 4090", "rtx-4090", "Rtx4090", " rtx 4090 "])
def test_load_ignores_case_spaces_and_punctuation(spelled: str):
    assert load(spelled) is load("rtx_4090")


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("h900", "h200"),
        ("RTX 4080", "rtx_4090"),
        ("m1 max", "apple_m1_max"),
        ("NVIDIA-L40S", "l40s"),
        ("mtia", "mtia_v2"),
    ],
)
def test_unknown_name_error_lists_the_nearest(wrong: str, nearest: str):
    with pytest.raises(
        ValueError, match=rf"there is no profile '{wrong}', the nearest is '{nearest}'; there are a100, ap"
    ):
        load(wrong)


@pytest.mark.parametrize("name", ["", "-", "zzzzzzzzzzzz", "../h200.toml", "h200\n\0toml"])
def test_unknown_name_raises_value_error(name: str):
    with pytest.raises(ValueError, match="there is no profile"):
        load(name)


def test_name_of_wrong_type_raises_type_error():
    for name in (None, 4090, b"h200"):
        with pytest.raises(TypeError):
            load(name)  # type: ignore[arg-type]


def test_profiles_are_immutable():
    h200 = load("h200")
    with pytest.raises(TypeError):
        h200.properties["total_memory"] = 1  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        h200.kind = "mps"  # type: ignore[misc]
    h200.at(0).clear()
    assert load("h200").at(0)["total_memory"] == 150110011392


def test_devices_of_one_machine_have_distinct_uuids_and_slots():
    devices = [load("h200").at(index) for index in range(8)]
    assert len({device["uuid"] for device in devices}) == 8
    assert all(str(uuid.UUID(device["uuid"])) == device["uuid"] for device in devices)
    assert [device["pci_bus_id"] for device in devices] == list(range(24, 32))
    assert devices[0]["uuid"] == load("h200").at(0)["uuid"] != load("h100").at(0)["uuid"]
    assert devices[0]["gcnArchName"] == devices[0]["name"] == "NVIDIA H200"
    last = load("h200").at(255)
    assert (last["pci_domain_id"], last["pci_bus_id"]) == (1, 23)
    assert "pci_bus_id" not in load("apple_m4").at(0)


def test_geometry_requires_a_cuda_gpu():
    with pytest.raises(ValueError, match="profile apple_m4 is not a CUDA GPU"):
        Geometry.of("Apple M4")


@pytest.mark.slow
def test_import_does_not_load_the_profiles_modules():
    program = "import sys, forebay; print([name for name in ('tomllib', 'difflib', 'uuid') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"


# Documentation page


@pytest.fixture(scope="module")
def profile_table() -> Iterator[ModuleType]:
    """Return docs/profile_table.py, which makes the tables of docs/reference/profiles.md."""
    pytest.importorskip("sphinx", reason="the module defines a directive of Sphinx")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("profile_table")


def test_page_has_the_table_of_every_kind(profile_table: ModuleType):
    page = (ROOT / "docs/reference/profiles.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{profile-table\} (\w+)\n```$", page, re.MULTILINE) == [*KEYS] == [*profile_table.COLUMNS]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("cuda", "| `h200` | NVIDIA H200 | 9.0 | 143,156 | 60 | 132 | 2048 | 1,980 |"),
        ("mps", "| `apple_m1` | Apple M1 | 8 | 16,384 | 10,922 | 8,192 |"),
        ("mtia", "| `mtia_v2` | MTIA v2 | 2.0 | 64 | 131,072 | 256 |"),
    ],
)
def test_table_has_a_row_for_every_profile(profile_table: ModuleType, kind: str, row: str):
    head, line, *rows = profile_table.table(kind)
    assert row in rows
    assert {each.count("|") for each in (head, line, *rows)} == {row.count("|")}
    assert [each.split("`")[1] for each in rows] == [*names(kind)]
