"""Folders of other users: nothing is written into them or read from them, and their links are not followed."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress

import pytest

import forebay
from forebay._base import temporary_folders, trusted_folders
from forebay._base.atomic_write import atomic_write, check_writable
from forebay.backends.common.kernel_cache import KernelCache
from forebay.commands import CommandError
from forebay.commands.run_output import make_directory
from forebay.observe import trace
from forebay.observe.monitor import sockets
from forebay.snapshot.formats import native
from forebay.snapshot.report.incident_files import IncidentFiles

OTHER = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def write(path):
    with atomic_write(path) as file:
        file.write(b"ours")


WRITERS = {
    "atomic write": lambda folder: write(folder / "report.html"),
    "check": lambda folder: check_writable(folder / "report.html", "the report"),
    "trace": lambda folder: trace(folder / "trace.pftrace").__enter__(),
    "output of a run": make_directory,
    "a folder in it": lambda folder: make_directory(folder / "a" / "b"),
    "incidents": lambda folder: IncidentFiles(folder, ".forebay", 3, replay=False),
    "snapshot": lambda folder: native.write(forebay.memory.snapshot("cpu"), folder / "x.forebay"),
    "socket": lambda _: sockets.directory(),
    "temporary folder": lambda _: temporary_folders.temporary_folder("forebay-").__enter__(),
}  # fmt: skip


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A folder that looks as if it belonged to another user, also without the right to make one."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, OTHER, OTHER)
    else:
        inode = folder.stat().st_ino
        real = os.fstat

        def fstat(number):
            found = real(number)
            return os.stat_result((*found[:4], OTHER, *found[5:10])) if found.st_ino == inode else found

        monkeypatch.setattr(os, "fstat", fstat)
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", WRITERS)
def test_folder_of_another_user_is_refused(foreign, name):
    with pytest.raises((PermissionError, CommandError), match="belongs to another user"):
        WRITERS[name](foreign)
    assert list(foreign.iterdir()) == []


@pytest.mark.parametrize("name", WRITERS)
def test_folder_that_everyone_can_change_is_refused(foreign, name):
    if os.geteuid() == 0:
        os.chown(foreign, 0, 0)
    foreign.chmod(0o777)
    with pytest.raises((PermissionError, CommandError), match=r"other users can replace|another user"):
        WRITERS[name](foreign)
    assert list(foreign.iterdir()) == []


def test_shared_folder_with_the_sticky_bit_is_used(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    write(shared / "report")
    make_directory(shared / "folder")
    assert (shared / "report").read_bytes() == b"ours"


def test_folder_that_the_group_can_change_is_used(tmp_path):
    tmp_path.chmod(0o775)
    write(tmp_path / "report")
    assert (tmp_path / "report").exists()


def test_error_names_folder_and_next_step(foreign):
    with pytest.raises(PermissionError) as caught:
        write(foreign / "report")
    assert caught.value.errno == errno.EPERM
    assert caught.value.filename == str(foreign)
    assert str(OTHER) in caught.value.strerror
    assert "choose a folder of your own" in caught.value.strerror


@needs_root
@pytest.mark.parametrize("existing", [True, False])
def test_link_of_another_user_is_not_followed(tmp_path, existing):
    victim, own = tmp_path / "victim", tmp_path / "own"
    victim.mkdir()
    own.mkdir()
    if existing:
        (victim / "file").write_bytes(b"precious")
    for name, target in (("file", victim / "file"), ("folder", victim)):
        (own / name).symlink_to(target)
        os.chown(own / name, OTHER, OTHER, follow_symlinks=False)
    for path in (own / "file", own / "folder" / "file"):
        with pytest.raises(PermissionError, match="symbolic link of another user"):
            write(path)
    with pytest.raises(CommandError, match="symbolic link of another user"):
        make_directory(own / "folder" / "report")
    assert [each.read_bytes() for each in victim.iterdir()] == [b"precious"] * existing


def test_own_links_are_followed(tmp_path):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("real")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative" / "deep")
    (tmp_path / "real" / "deep" / "up").symlink_to("../../real")
    (tmp_path / "dangling").symlink_to("absolute/up/made")
    write(tmp_path / "dangling")
    make_directory(tmp_path / "absolute" / "up" / "new" / "report")
    assert (tmp_path / "real" / "made").read_bytes() == b"ours"
    assert (tmp_path / "real" / "new" / "report").is_dir()


def test_cycle_of_links_is_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (tmp_path / "a", tmp_path / "a" / "c"):
        with pytest.raises(OSError, match="symbolic links"):
            write(path)


@needs_root
def test_file_of_another_user_in_a_shared_folder_is_not_replaced(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "report").write_bytes(b"theirs")
    os.chown(shared / "report", OTHER, OTHER)
    with pytest.raises(PermissionError, match="file of another user in a shared directory"):
        write(shared / "report")
    assert (shared / "report").read_bytes() == b"theirs"


@needs_root
def test_kernel_cache_ignores_a_folder_of_another_user(tmp_path):
    cache = KernelCache(tmp_path / "kernels")
    cache.put("key", b"code")
    assert cache.get("key") == b"code"
    assert stat.S_IMODE((tmp_path / "kernels").stat().st_mode) == 0o700
    os.chown(tmp_path / "kernels", OTHER, OTHER)
    assert cache.get("key") is None
    cache.put("other", b"code")
    assert [each.name for each in (tmp_path / "kernels").iterdir()] == ["key.kernel"]


@needs_root
@pytest.mark.parametrize("links", [True, False])
def test_run_writes_no_report_through_folder_of_another_user(tmp_path, links):
    victim, output = tmp_path / "victim", tmp_path / "forebay-report"
    victim.mkdir(mode=0o700)
    output.mkdir()
    for name in ("report.html", "snapshot.forebay", "summary.json") if links else ():
        (output / name).symlink_to(victim / name)
    for each in (output, *output.iterdir()):
        os.chown(each, OTHER, OTHER, follow_symlinks=False)
    (tmp_path / "p.py").write_text("import numpy as np; x = np.ones(10**6); print('ran')")
    before = sorted(output.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "run", "p.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "ran" not in done.stdout
    assert "belongs to another user" in done.stderr
    assert "choose a folder of your own" in done.stderr
    assert list(victim.iterdir()) == []
    assert sorted(output.iterdir()) == before


@needs_root
def test_run_in_a_folder_of_another_user_reports_in_home(tmp_path):
    """As root in a container that has mounted a folder of the machine."""
    mounted, home = tmp_path / "mounted", tmp_path / "home"
    mounted.mkdir()
    home.mkdir()
    (mounted / "p.py").write_text("import numpy as np; x = np.ones(10**6); print('ran')")
    os.chown(mounted, OTHER, OTHER)
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "run", "p.py"], cwd=mounted, env={**os.environ, "HOME": str(home)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert [path.name for path in mounted.iterdir()] == ["p.py"]
    assert (home / "forebay-report/report.html").exists()
    assert f"{home}/forebay-report" in done.stderr.replace("~", str(home))


@needs_root
def test_run_as_a_user_refuses_a_folder_of_root_that_everyone_can_change(public_folder):
    (public_folder / "shared").mkdir()
    (public_folder / "shared").chmod(0o777)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setegid(OTHER)
            os.seteuid(OTHER)
            try:
                write(public_folder / "shared" / "report")
            except PermissionError as error:
                status = 0 if "other users can replace" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_errors_keep_nothing_alive(tmp_path):
    """In Python 3.12, an error that a generator replaced was in a cycle with the frames of all callers."""

    class Held:
        pass

    def fail(held):
        with suppress(OSError):
            trusted_folders.open_folder(tmp_path / "absent" / "folder", private=True)
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        held = fail(Held())
        assert held() is None
    finally:
        gc.enable()
