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
    assert {*profile.sensors} in ([SENSORS, set()] if profile.kind == "cuda" else [set()])
    for key, value in {**profile.properties, **profile.sensors}.items():
        assert type(value) is (str if key == "name" else int), key
        assert key == "name" or value >= 0, key


def test_every_number_has_a_source(profile: Profile):
    """Each line refers to a source of the file by its letter, or states that the number is unverified."""
    text = (ROOT / f"src/forebay/profiles/{profile.name}.toml").read_text(encoding="utf-8")
    explained = {line[2] for line in text.splitlines() if line.startswith("# ") and line[3:5] == ": "}
    plain = {
        "kind",
        "note",
        "minor",
        "is_integrated",
        "is_multi_gpu_board",
        "pci_bus_id",
        "pci_device_id",
    }  # or the line above
    for line in text.splitlines():
        key, equals, rest = line.partition(" = ")
        if not equals or line.startswith("#") or key in plain or (profile.kind == "mps" and key == "name"):
            continue
        comment = rest.partition(" # ")[2]
        assert comment, line
        words = {word.strip(";:,") for word in comment.split()}
        sources = {"unverified", "clock_rate", "machine"}  # "machine": the file's title
        assert words & (explained | sources), line


LIMITS = {  # of the compute capability: threads and shared memory of a multiprocessor, and of a block with opt-in
    (6, 0): (2048, 65536, 49152),
    (6, 1): (2048, 98304, 49152),
    (7, 0): (2048, 98304, 98304),
    (7, 5): (1024, 65536, 65536),
    (8, 0): (2048, 167936, 166912),
    (8, 6): (1536, 102400, 101376),
    (8, 9): (1536, 102400, 101376),
    (9, 0): (2048, 233472, 232448),
    (10, 0): (2048, 233472, 232448),
    (12, 0): (1536, 102400, 101376),
    (12, 1): (1536, 102400, 101376),
}
CORES_OF_A_MULTIPROCESSOR = {(6, 0): 64, (7, 0): 64, (7, 5): 64, (8, 0): 64}  # others have 128


@pytest.fixture(params=[name for name in names("cuda") if "AMD" not in load(name).properties["name"]])
def card(request: pytest.FixtureRequest) -> Profile:
    """Return a card of NVIDIA. Rules for others are not verified."""
    return load(request.param)


def test_cards_are_many_and_have_names_of_their_own():
    found = [load(name).properties["name"] for name in names("cuda")]
    assert len([name for name in found if "AMD" not in name]) >= 50
    assert len({*found}) == len(found)


def test_card_of_another_maker_is_marked_as_not_verified():
    others = {name for name in names("cuda") if "AMD" in load(name).properties["name"]}
    assert others == {"mi250x", "mi300x", "mi325x"}
    assert all("not verified" in load(name).note for name in others)


def test_card_that_cuda_has_no_kernels_for_says_so(card: Profile):
    found = (card.properties["major"], card.properties["minor"])
    assert ("have no kernels" in card.note) is (found < (7, 5))


def test_limits_are_those_of_the_capability(card: Profile):
    found = card.properties
    capability = found["major"], found["minor"]
    keys = ("max_threads_per_multi_processor", "shared_memory_per_multiprocessor", "shared_memory_per_block_optin")
    assert tuple(found[key] for key in keys) == LIMITS[capability]
    same = {"max_threads_per_block": 1024, "regs_per_multiprocessor": 65536, "warp_size": 32}
    assert {key: found[key] for key in same} == same
    assert found["shared_memory_per_block"] == 49152


def test_profile_numbers_are_consistent(gpu: Profile):
    found = gpu.properties
    assert found["total_memory"] % 65536 == 0 or found["is_integrated"]  # the driver's granularity
    assert found["max_threads_per_multi_processor"] % 256 == 0
    assert found["max_threads_per_multi_processor"] >= found["max_threads_per_block"]
    assert found["shared_memory_per_block"] <= found["shared_memory_per_block_optin"]
    assert found["shared_memory_per_block_optin"] <= found["shared_memory_per_multiprocessor"]
    assert found["L2_cache_size"] % (512 * 1024) == 0 or gpu.name in ODD_CACHES
    assert Geometry.of(gpu.name).threads == found["multi_processor_count"] * found["max_threads_per_multi_processor"]


ODD_CACHES = {"rtx_2080_ti", "rtx_3060", "gtx_1080_ti"}  # with parts of the memory's width switched off


def test_total_memory_is_what_is_left_of_the_nominal_size(card: Profile):
    """The driver keeps up to 9 %, which a program does not see; cards with error correction keep most."""
    _, _, gibibytes = SHEETS[card.name]
    assert 0.9 * gibibytes * GIB < card.properties["total_memory"] <= gibibytes * GIB


@pytest.mark.parametrize("name", [name for name in names("cuda") if load(name).sensors])
def test_sensor_ranges_are_consistent(name: str):
    found, sensors = load(name).properties, load(name).sensors
    assert 0.9 * sensors["memory"] < found["total_memory"] < sensors["memory"]
    assert 0 < sensors["idle_power"] < sensors["max_power"]
    assert 0 < sensors["idle_clock"] < sensors["max_clock"]
    assert sensors["idle_temperature"] < sensors["busy_temperature"] < 95
    assert sensors["max_clock"] * 1000 >= found["clock_rate"]


SHEETS = {  # of the data sheets: bandwidth in GB/s, CUDA cores, and the nominal GiB
    "gtx_1080_ti": (484, 3584, 11),
    "gtx_1650": (192, 896, 4),
    "gtx_1660_super": (336, 1408, 6),
    "rtx_2060": (336, 1920, 6),
    "rtx_2060_super": (448, 2176, 8),
    "rtx_2070": (448, 2304, 8),
    "rtx_2080": (448, 2944, 8),
    "rtx_2080_ti": (616, 4352, 11),
    "rtx_3050_6gb": (168, 2304, 6),
    "rtx_3050_laptop": (192, 2048, 4),
    "rtx_3050_ti_laptop": (192, 2560, 4),
    "rtx_3060": (360, 3584, 12),
    "rtx_3060_laptop": (336, 3840, 6),
    "rtx_3060_ti": (448, 4864, 8),
    "rtx_3070": (448, 5888, 8),
    "rtx_3070_laptop": (384, 5120, 8),
    "rtx_3080": (760, 8704, 10),
    "rtx_3080_ti": (912, 10240, 12),
    "rtx_3090": (936, 10496, 24),
    "rtx_3090_ti": (1008, 10752, 24),
    "rtx_4050_laptop": (192, 2560, 6),
    "rtx_4060_laptop": (256, 3072, 8),
    "rtx_4060_ti_16gb": (288, 4352, 16),
    "rtx_4070": (504, 5888, 12),
    "rtx_4070_ti_super": (672, 8448, 16),
    "rtx_4080": (717, 9728, 16),
    "rtx_4080_super": (736, 10240, 16),
    "rtx_4090": (1008, 16384, 24),
    "rtx_4090_laptop": (576, 9728, 16),
    "rtx_5060": (448, 3840, 8),
    "rtx_5080": (960, 10752, 16),
    "rtx_5090": (1792, 21760, 32),
    "quadro_rtx_4000": (416, 2304, 8),
    "rtx_a3000_laptop": (336, 4096, 12),
    "rtx_a6000": (768, 10752, 48),
    "rtx_6000_ada": (960, 18176, 48),
    "rtx_pro_6000": (1597, 24064, 96),
    "titan_v": (653, 5120, 12),
    "p40": (346, 3840, 24),
    "p100": (732, 3584, 16),
    "v100": (900, 5120, 32),
    "v100_16gb": (900, 5120, 16),
    "v100_pcie_16gb": (900, 5120, 16),
    "v100_pcie_32gb": (900, 5120, 32),
    "t4": (320, 2560, 16),
    "a10": (600, 9216, 24),
    "a10g": (600, 10240, 24),
    "a30": (933, 3584, 24),
    "a40": (696, 10752, 48),
    "a100": (2039, 6912, 80),
    "a100_40gb": (1555, 6912, 40),
    "a100_pcie_40gb": (1555, 6912, 40),
    "a100_pcie_80gb": (1935, 6912, 80),
    "l4": (300, 7424, 24),
    "l40s": (864, 18176, 48),
    "h100": (3350, 16896, 80),
    "h100_nvl": (3938, 16896, 94),
    "h100_pcie": (2039, 14592, 80),
    "h200": (4800, 16896, 141),
    "gh200_120gb": (4000, 16896, 96),
    "gh200_480gb": (4000, 16896, 96),
    "b200": (7700, 18944, 186),
    "gb10": (273, 6144, 128),
}


def test_memory_clock_and_width_match_the_data_sheets_bandwidth(card: Profile):
    """The clock and the bus width have other sources than the bandwidth. A new card needs a line of SHEETS."""
    found = card.properties
    per_clock = 1 if card.name == "gb10" else 2  # double data rate; GB10's driver reports the rate of the data
    rate = per_clock * found["memory_clock_rate"] * 1000 * found["memory_bus_width"] // 8
    assert rate / 1e9 == pytest.approx(SHEETS[card.name][0], rel=0.03)


def test_multiprocessors_have_the_data_sheets_cores(card: Profile):
    found = card.properties
    cores = CORES_OF_A_MULTIPROCESSOR.get((found["major"], found["minor"]), 128)
    assert found["multi_processor_count"] * cores == SHEETS[card.name][1]


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
        ("RTX 4081", "rtx_4080"),
        ("m1 max", "apple_m1_max"),
        ("NVIDIA-L40S", "l40s"),
        ("mtia", "mtia_v2"),
    ],
)
def test_unknown_name_error_lists_the_nearest(wrong: str, nearest: str):
    with pytest.raises(
        ValueError, match=rf"there is no profile '{wrong}', the nearest is '{nearest}'; there are a10, a100"
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
