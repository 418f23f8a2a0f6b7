"""The choice of the folders that get an overlay."""

from __future__ import annotations

import os

import pytest

from forebay.errors import Unsupported
from forebay.rehearsal import mount_plan
from forebay.rehearsal.mount_plan import make_plan
from forebay.rehearsal.mount_table import read_mounts, visible_mounts

TABLE = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw
28 27 0:25 / /run rw - tmpfs tmpfs rw
29 27 0:26 / FOLDER rw,relatime shared:5 - xfs /dev/vdb rw
30 29 0:27 / FOLDER/with\\040space rw - nfs server:/x rw
31 29 0:28 / FOLDER/fixed ro,nosuid - ext4 /dev/vdc rw
32 29 0:29 / FOLDER/hosts rw - ext4 /dev/vdd rw
"""


@pytest.fixture
def table(tmp_path):
    for name in ("with space", "fixed", "plain"):
        (tmp_path / name).mkdir()
    (tmp_path / "hosts").write_text("")
    return read_mounts(TABLE.replace("FOLDER", str(tmp_path)))


def steps_of(plan, folder):
    return {path.removeprefix(str(folder)): kind for kind, path in plan.steps if path.startswith(str(folder))}


def test_root_gets_an_overlay_of_each_storage(table, tmp_path, monkeypatch):
    monkeypatch.setattr(mount_plan, "sockets", list)
    plan = make_plan([str(tmp_path / "real")], privileged=True, mounts=table)
    assert steps_of(plan, tmp_path) == {
        "": "overlay", "/with space": "overlay", "/fixed": "bind", "/hosts": "seal", "/real": "bind"
    }  # fmt: skip
    kinds = {path: kind for kind, path in plan.steps}
    assert (kinds["/dev/shm"], kinds["/dev"], kinds["/run"]) == ("overlay", "bind", "bind")
    assert plan.steps[0] == ("overlay", "/")
    assert plan.sealed == (str(tmp_path / "hosts"),)


def test_folder_with_a_mount_that_the_user_may_write_is_refused(table, tmp_path):
    with pytest.raises(Unsupported, match="is a mount inside"):
        make_plan([], privileged=False, mounts=table)


def test_covered_mounts_are_left_out():
    text = (
        "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /data rw - ext4 b rw\n3 2 8:3 / /data/x rw - ext4 c rw\n"
        "4 2 8:4 / /data rw - ext4 d rw\n"
    )
    found = visible_mounts(read_mounts(text))
    assert [(each.number, each.path) for each in found] == [(1, "/"), (4, "/data")]


def test_working_folders_are_separate(tmp_path, monkeypatch):
    (tmp_path / "home" / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "home" / "project")
    project, home = str(tmp_path / "home" / "project"), str(tmp_path / "home")
    assert mount_plan.working_folders() == [os.path.realpath(project), os.path.realpath(home)]


def test_sockets_among_temporary_files_stay_real(tmp_path, monkeypatch):
    import socket
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/socket")
        assert f"{os.path.realpath(short)}/socket" in mount_plan.sockets()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs shared memory")
def test_semaphores_of_other_processes_stay_real():
    import tempfile

    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sem.") as semaphore:
        assert semaphore.name in mount_plan.sockets()
