"""Which devices the environment lets a process see. Hundreds more texts: tests/faces/scenes/visible_devices.py."""

from __future__ import annotations

import pytest

import forebay
from forebay import backends
from forebay.backends.emulated.visible_devices import of_environment, ordinals_of, visible_indices

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
def test_the_measured_table(text, seen):
    assert of_environment({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == seen


@pytest.mark.parametrize("text", ["-", "+", "²", "+-1"])
def test_what_is_no_number_ends_the_list_and_nothing_fails(text):
    assert of_environment({"CUDA_VISIBLE_DEVICES": f"3,{text},1"}) == [3]


def test_a_number_that_no_int_can_be_made_of_is_beyond_any_device():
    seen = of_environment({"CUDA_VISIBLE_DEVICES": "0," + "9" * 10_000})
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
def test_names_become_ordinals(names, ordinals):
    assert ordinals_of(names, KNOWN) == ordinals


class TestOfAmd:
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
    def test_its_variables_come_first(self, environ, seen):
        assert of_environment(environ, amd=True) == seen

    def test_hip_cannot_name_more_than_rocr_leaves(self):
        environ = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0,1"}
        with pytest.raises(RuntimeError, match="more devices than ROCR_VISIBLE_DEVICES"):
            of_environment(environ, amd=True)
        assert of_environment(environ) == list(range(64))  # on NVIDIA's it means nothing

    def test_its_serial_numbers_have_no_prefix(self):
        assert ordinals_of(["GPU-fd"], ["9e8d", "fd69"], amd=True) == [1]
        assert ordinals_of(["GPU-fd"], ["9e8d", "fd69"]) == []


@pytest.mark.parametrize(
    ("visible", "indices"),
    [([0, 1, 2], [0, 1, 2]), ([2, 5, 1], [2]), ([], []), ([3], []), (["GPU-fd"], [1]), (["MIG-x"], [])],
)
def test_what_is_not_there_ends_the_list(visible, indices):
    assert visible_indices(visible, 3, lambda: KNOWN) == indices


def test_uuids_are_not_asked_for_ordinals():
    assert visible_indices([1], 3, lambda: pytest.fail("asked")) == [1]


class TestEmulated:
    """The emulated machine's devices are chosen from as a real one's."""

    def uuid(self, index: int) -> str:
        return backends.driver("cuda").describe(index).details["uuid"]

    def test_the_process_sees_what_is_named_in_that_order(self, clean, monkeypatch):
        with forebay.emulate("cuda", count=3):
            every = [self.uuid(index) for index in range(3)]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
            assert forebay.device_count("cuda") == 2
            assert [self.uuid(index) for index in range(2)] == [every[2], every[0]]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{every[1]}")
            assert [self.uuid(index) for index in range(forebay.device_count("cuda"))] == [every[1]]

    def test_it_is_settled_when_one_is_opened(self, clean, monkeypatch):
        with forebay.emulate("cuda", count=3):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
            forebay.empty(3, device="cuda:1")
            uuid = self.uuid(1)
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
            assert forebay.device_count("cuda") == 2
            assert self.uuid(1) == uuid
        with forebay.emulate("cuda", count=3):  # another emulation begins anew
            assert forebay.device_count("cuda") == 0

    def test_the_reason_why_there_is_none_names_the_variable(self, clean, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        with forebay.emulate("cuda"):
            assert forebay.why_not("cuda") == "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES is '-1'"
            with pytest.raises(forebay.ForebayError, match="CUDA_VISIBLE_DEVICES is '-1'"):
                forebay.empty(3, device="cuda:0")

    def test_it_hides_no_others(self, clean, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        with forebay.emulate("mtia", profile="mtia_v2"):
            assert forebay.device_count("mtia") == 1
