"""Memory that a process may use, from files of control groups and meminfo."""

from __future__ import annotations

import os

import pytest

from forebay._base import system_memory

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def system(root, groups: str, **limits: str):
    """Write the files of a machine: the process's control groups, and limits by path under sys/fs/cgroup."""
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
def test_usable_memory_is_limited_by_control_groups(tmp_path, groups, limits, expected):
    assert system_memory.usable_memory(system(tmp_path, groups, **limits)) == expected


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
def test_available_memory_excludes_memory_in_use(tmp_path, meminfo, groups, files, expected):
    root = system(tmp_path, groups, **files)
    (root / "proc/meminfo").write_text(meminfo)
    assert system_memory.available_memory(root) == expected


def test_available_memory_of_this_machine():
    left = system_memory.available_memory()
    assert left is None or 0 < left <= system_memory.usable_memory()
