"""Device visibility by environment variables. Hundreds more values: tests/names/scenes/visible_devices.py."""

from __future__ import annotations

import pytest

import forebay
from forebay import backends
from forebay.backends.emulated.visible_devices import match_uuids, parse_visible_devices, visible_indices

KNOWN = ["GPU-9e8d35e3", "GPU-fd69a7d7", "GPU-9e8dffff"]
MEASURED = [
    (None, list(range(64))),
    ("", []),
    ("0,0", []),
    ("-1", []),
    ("0,-1,1", [0]),
    ("1gpu2,2ampere", [1, 2]),
    ("abc", []),
    ("0,abc,1", [0]),
    (" 0 , 1 ", [0, 1]),
    ("+1", [1]),
    ("0x1", [0]),
    ("3.5", [3]),
    ("64", [64]),
    ("0,,1", [0]),
    ("GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb"]),
    ("GPU-aa,GPU-aa", []),
    ("GPU-aa,0,GPU-bb", ["GPU-aa"]),
    ("MIG-x", ["MIG-x"]),
]


@pytest.mark.parametrize(("text", "seen"), MEASURED)
def test_visible_devices_are_parsed_as_by_torch(text, seen):
    assert parse_visible_devices({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == seen


@pytest.mark.parametrize("text", ["-", "+", "²", "+-1"])
def test_invalid_number_ends_the_list(text):
    assert parse_visible_devices({"CUDA_VISIBLE_DEVICES": f"3,{text},1"}) == [3]


def test_number_too_long_for_int_is_out_of_range():
    seen = parse_visible_devices({"CUDA_VISIBLE_DEVICES": "0," + "9" * 10_000})
    assert visible_indices(seen, 64, list) == [0]


@pytest.mark.parametrize(
    ("names", "ordinals"),
    [
        (["GPU-9e8d35"], [0]),
        (["GPU-9e8d"], []),
        (["GPU-fd", "GPU-fd6"], []),
        (["GPU-zz", "GPU-fd"], []),
        (["GPU-fd", "GPU-9e8d3"], [1, 0]),
        ([], []),
    ],
    ids=["one", "ambiguous", "twice", "unknown first", "in their order", "none"],
)
def test_uuid_prefixes_are_resolved_to_ordinals(names, ordinals):
    assert match_uuids(names, KNOWN) == ordinals


class TestAmd:
    @pytest.mark.parametrize(
        ("environ", "seen"),
        [
            ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
            ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, [2]),
            ({"ROCR_VISIBLE_DEVICES": "5,7,9", "CUDA_VISIBLE_DEVICES": "1"}, [0, 1, 2]),
            ({"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b"}, [0, 1]),
            ({"ROCR_VISIBLE_DEVICES": "5,7", "HIP_VISIBLE_DEVICES": "1"}, [1]),
            ({"HIP_VISIBLE_DEVICES": ""}, []),
        ],
    )
    def test_rocm_variables_take_precedence(self, environ, seen):
        assert parse_visible_devices(environ, amd=True) == seen

    def test_hip_with_more_devices_than_rocr_raises(self):
        environ = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0,1"}
        with pytest.raises(RuntimeError, match="more devices than ROCR_VISIBLE_DEVICES"):
            parse_visible_devices(environ, amd=True)
        assert parse_visible_devices(environ) == list(range(64))  # ignored for NVIDIA

    def test_serial_numbers_have_no_prefix(self):
        assert match_uuids(["GPU-fd"], ["9e8d", "fd69"], amd=True) == [1]
        assert match_uuids(["GPU-fd"], ["9e8d", "fd69"]) == []


@pytest.mark.parametrize(
    ("visible", "indices"),
    [([0, 1, 2], [0, 1, 2]), ([2, 5, 1], [2]), ([], []), ([3], []), (["GPU-fd"], [1]), (["MIG-x"], [])],
)
def test_missing_device_ends_the_list(visible, indices):
    assert visible_indices(visible, 3, lambda: KNOWN) == indices


def test_uuids_are_not_read_for_ordinals():
    assert visible_indices([1], 3, lambda: pytest.fail("called")) == [1]


class TestEmulated:
    """CUDA_VISIBLE_DEVICES selects from the devices of the emulated machine."""

    def uuid(self, index: int) -> str:
        return backends.driver("cuda").describe(index).details["uuid"]

    def test_devices_are_selected_and_ordered(self, clean, monkeypatch):
        with forebay.emulate("cuda", count=3):
            every = [self.uuid(index) for index in range(3)]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
            assert forebay.device_count("cuda") == 2
            assert [self.uuid(index) for index in range(2)] == [every[2], every[0]]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{every[1]}")
            assert [self.uuid(index) for index in range(forebay.device_count("cuda"))] == [every[1]]

    def test_selection_is_final_after_a_device_is_opened(self, clean, monkeypatch):
        with forebay.emulate("cuda", count=3):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
            forebay.empty(3, device="cuda:1")
            uuid = self.uuid(1)
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
            assert forebay.device_count("cuda") == 2
            assert self.uuid(1) == uuid
        with forebay.emulate("cuda", count=3):  # a new emulation reads the variable again
            assert forebay.device_count("cuda") == 0

    def test_why_not_names_the_variable(self, clean, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        with forebay.emulate("cuda"):
            assert forebay.why_not("cuda") == "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES is '-1'"
            with pytest.raises(forebay.ForebayError, match="CUDA_VISIBLE_DEVICES is '-1'"):
                forebay.empty(3, device="cuda:0")

    def test_other_kinds_are_not_affected(self, clean, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        with forebay.emulate("mtia", profile="mtia_v2"):
            assert forebay.device_count("mtia") == 1
