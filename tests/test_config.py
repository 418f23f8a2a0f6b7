"""The environment variables, and how much memory there is."""

from __future__ import annotations

import os

import pytest

from forebay import config

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for variable in config.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


def test_a_variable_is_read_when_it_is_asked_for(monkeypatch):
    assert config.HOST_DEVICES.value() == 1
    monkeypatch.setenv("FOREBAY_HOST_DEVICES", " 4 ")
    assert config.HOST_DEVICES.value() == 4
    monkeypatch.setenv("FOREBAY_HOST_DEVICES", "")
    assert config.HOST_DEVICES.value() == 1
    monkeypatch.setenv("FOREBAY_HOST_MEMORY", "1.5 GiB")
    assert config.HOST_MEMORY.value() == 3 << 29


@pytest.mark.parametrize("text", ["0", "-1", "65", "two", "1.0", "²"])
def test_nonsense_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("FOREBAY_HOST_DEVICES", text)
    with pytest.raises(ValueError, match=r"FOREBAY_HOST_DEVICES: .* from 1 to 64"):
        config.HOST_DEVICES.value()
    monkeypatch.setenv("FOREBAY_HOST_MEMORY", "much")
    with pytest.raises(ValueError, match="FOREBAY_HOST_MEMORY: 'much' is not a size"):
        config.HOST_MEMORY.value()


def test_devices_share_three_quarters_of_the_memory(monkeypatch):
    one = config.HOST_MEMORY.value()
    assert one == config.usable_memory() * 3 // 4
    monkeypatch.setenv("FOREBAY_HOST_DEVICES", "3")
    assert config.HOST_MEMORY.value() == one // 3


def test_every_variable_says_what_it_is_for():
    assert [variable.name for variable in config.VARIABLES] == [
        "FOREBAY_HOST_DEVICES",
        "FOREBAY_HOST_MEMORY",
        "FOREBAY_EMULATE",
        "TORCH_CUDA_SANITIZER",
        "TORCH_CUDA_CHECK_STRAY_CONTEXT",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "PYTORCH_MPS_LOW_WATERMARK_RATIO",
        "FOREBAY_TRACE",
    ]
    assert all(variable.meaning for variable in config.VARIABLES)


def system(root, groups: str, **limits: str):
    """A machine's files: the process's groups, and limits by path under sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("", {}, MACHINE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {"memory.max": "4096000\n"}, 4096000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "8192\n", "memory.max": "max\n"}, 8192),
        ("0::/a/b\n", {"a/b/memory.max": "4096\n", "a/memory.max": "8192\n"}, 4096),
        ("0::/docker/of-the-host\n", {"memory.max": "8192\n"}, 8192),
        ("3:cpu,memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "12288\n"}, 12288),
        ("3:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ("3:memory:/x\n0::/y\n", {"unified/y/memory.max": "16384\n"}, 16384),
        ("3:cpuset:/x:y\n", {"cpuset/x/memory.limit_in_bytes": "4096\n"}, MACHINE),
    ],
)
def test_a_control_group_limits_the_memory(tmp_path, groups, limits, expected):
    assert config.usable_memory(system(tmp_path, groups, **limits)) == expected


FREE = "MemTotal:        8000 kB\nMemAvailable:    4000 kB\n"


@pytest.mark.parametrize(
    ("meminfo", "groups", "files", "expected"),
    [
        ("", "", {}, None),
        ("MemTotal: 8000 kB\n", "0::/\n", {"memory.max": "8192\n"}, None),
        (FREE, "", {}, 4000 << 10),
        (FREE, "0::/\n", {"memory.max": "max\n", "memory.current": "4096\n"}, 4000 << 10),
        (FREE, "0::/a\n", {"a/memory.max": "8192\n", "a/memory.current": "4096\n"}, 4096),
        (
            FREE,
            "0::/a\n",
            {"a/memory.max": "8192\n", "a/memory.current": "4096\n", "a/memory.stat": "file 9\ninactive_file 1024\n"},
            5120,
        ),
        (
            FREE,
            "3:memory:/x\n",
            {
                "memory/x/memory.limit_in_bytes": "8192\n",
                "memory/x/memory.usage_in_bytes": "5000\n",
                "memory/x/memory.stat": "inactive_file 7\ntotal_inactive_file 1000\n",
            },
            4192,
        ),
        (FREE, "0::/a/b\n", {"a/b/memory.max": "8192\n", "a/memory.max": "9000\n", "a/memory.current": "8500\n"}, 500),
        (FREE, "0::/a\n", {"a/memory.max": "8192\n"}, 8192),
    ],
)
def test_what_is_used_already_is_not_available(tmp_path, meminfo, groups, files, expected):
    root = system(tmp_path, groups, **files)
    (root / "proc/meminfo").write_text(meminfo)
    assert config.available_memory(root) == expected


def test_this_machine_has_some_left():
    left = config.available_memory()
    assert left is None or 0 < left <= config.usable_memory()
