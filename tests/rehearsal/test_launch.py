"""Programs whose changes of files are private: by a mount namespace, and by Python's functions."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest
from support.file_changes import CHANGES, IN_NAMESPACE
from support.rehearsals import LIMIT, kinds, needs_namespace, rehearse, tree

from forebay.errors import ForebayError
from forebay.rehearsal.launch import MECHANISM, launch

both = pytest.mark.parametrize("mechanism", [pytest.param("namespace", marks=needs_namespace), "python"])


@pytest.fixture
def tmp_path(public_folder):
    return public_folder  # also for an ordinary user


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project, with: signs"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "gone").mkdir()
    (folder / "user.txt").write_text("user\n")
    (folder / "best.pt").write_bytes(os.urandom(27_000))
    (folder / "log.txt").write_text("line 1\n")
    (folder / "sub" / "deep" / "file.txt").write_text("deep\n")
    (folder / "gone" / "a.txt").write_text("a\n")
    (folder / "link.txt").symlink_to("user.txt")
    (folder / "linked").symlink_to("sub")
    os.link(folder / "user.txt", folder / "hard.txt")
    (folder / "mode.txt").write_text("mode\n")
    (folder / "mode.txt").chmod(0o640)
    return folder


@both
@pytest.mark.parametrize("way", CHANGES)
def test_change_is_read_back_and_leaves_the_real_tree_unchanged(project, mechanism, way):
    before = tree(project)
    status, output, changes, launched = rehearse(dedent(CHANGES[way]), project, mechanism)
    launched.close()
    assert (status, output) == (0, "")
    assert tree(project) == before
    assert kinds(changes, project)


@needs_namespace
@pytest.mark.parametrize("way", IN_NAMESPACE)
def test_namespace_covers_other_programs_and_libraries(project, way):
    before = tree(project)
    status, output, _, launched = rehearse(dedent(IN_NAMESPACE[way]), project, "namespace")
    launched.close()
    assert (status, output, tree(project)) == (0, "", before)


@both
def test_changes_have_kinds(project, mechanism):
    source = (
        "import os, shutil; open('log.txt', 'a').write('x'); os.remove('user.txt'); open('new.txt', 'w').close(); "
        "shutil.rmtree('gone'); os.makedirs('fresh/inner'); open('best.pt', 'r+b').close(); os.chmod('mode.txt', 0o777)"
    )
    _, _, changes, launched = rehearse(source, project, mechanism)
    launched.close()
    assert kinds(changes, project) == {
        "log.txt": "changed", "user.txt": "deleted", "new.txt": "new", "gone": "deleted", "fresh": "new",
        "fresh/inner": "new", "mode.txt": "changed",
    }  # fmt: skip


@both
def test_real_folder_is_changed(project, mechanism):
    status, output, changes, launched = rehearse(
        "open('sub/x', 'w').write('1')", project, mechanism, real=(str(project / "sub"),)
    )
    launched.close()
    assert (status, output, kinds(changes, project)) == (0, "", {})
    assert (project / "sub" / "x").read_text() == "1"


@both
def test_missing_and_refused_files_raise_the_errors_of_the_system(project, mechanism):
    source = """
import os, errno
for call, code in (
    (lambda: open('none/x', 'w'), errno.ENOENT), (lambda: open('none'), errno.ENOENT),
    (lambda: open('user.txt/x', 'w'), errno.ENOTDIR), (lambda: open('sub', 'w'), errno.EISDIR),
    (lambda: os.mkdir('sub'), errno.EEXIST), (lambda: os.rmdir('sub'), errno.ENOTEMPTY),
    (lambda: open('user.txt', 'x'), errno.EEXIST), (lambda: os.unlink('none'), errno.ENOENT),
    (lambda: os.rename('none', 'x'), errno.ENOENT), (lambda: os.listdir('none'), errno.ENOENT),
    (lambda: os.readlink('user.txt'), errno.EINVAL), (lambda: os.listdir('user.txt'), errno.ENOTDIR),
):
    try:
        call()
    except OSError as error:
        assert error.errno == code, (error, code)
        assert 'forebay' not in str(error), error
    else:
        raise AssertionError(code)
"""
    status, output, changes, launched = rehearse(source, project, mechanism)
    launched.close()
    assert (status, output, kinds(changes, project)) == (0, "", {})


@needs_namespace
def test_full_overlay_raises_the_error_of_a_full_disk_and_is_known(project):
    source = (
        "try:\n    open('big', 'wb').write(bytes(8 << 20))\nexcept OSError as error:\n    print(error.errno)\n"
    )  # fmt: skip
    status, output, _, launched = rehearse(source, project, "namespace", size="4m")
    assert (status, output.strip()) == (0, "28")
    assert launched.is_full
    assert launched.capacity == 4 << 20
    launched.close()


@both
def test_killed_program_leaves_no_mount_and_no_changes(project, mechanism):
    before, mounts = tree(project), Path("/proc/self/mountinfo").read_text()
    environment = {**os.environ, MECHANISM: mechanism}
    source = (
        "from forebay.rehearsal.inside import redirect_files; redirect_files(); import signal\n"
        "f = open('user.txt', 'w'); f.write('x'); f.flush(); print('ready', flush=True); signal.pause()"
    )
    launched = launch([sys.executable, "-c", source], [], environment=environment, cwd=project, stdout=subprocess.PIPE)
    assert launched.process.stdout.readline() == b"ready\n"
    launched.process.kill()
    assert launched.process.wait(LIMIT) == -signal.SIGKILL
    launched.process.stdout.close()
    launched.close()
    assert tree(project) == before
    assert Path("/proc/self/mountinfo").read_text() == mounts


@needs_namespace
def test_killed_launcher_ends_the_program_and_leaves_nothing(project):
    before = tree(project)
    source = f"""
import sys
from forebay.rehearsal.launch import launch
program = "import os, signal; open('user.txt', 'w').write('x'); print(os.getpid(), flush=True); signal.pause()"
launch([sys.executable, "-c", program], [], cwd={str(project)!r}).process.wait()
"""
    launcher = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    program = os.pidfd_open(int(launcher.stdout.readline()))
    launcher.kill()
    launcher.wait(LIMIT)
    launcher.stdout.close()
    assert select.select([program], [], [], LIMIT)[0]  # it has ended
    os.close(program)
    assert tree(project) == before


DEEP = """
import os, subprocess, sys
from forebay.rehearsal.launch import launch

base = sys.argv[1]
for name in ("lower", "one", "two", *(f"{layer}{part}" for layer in "ab" for part in "uw")):
    os.mkdir(f"{base}/{name}")
open(f"{base}/lower/file", "w").write("x\\n")
for lower, layer, target in (("lower", "a", "one"), ("one", "b", "two")):
    options = f"lowerdir={base}/{lower},upperdir={base}/{layer}u,workdir={base}/{layer}w"
    subprocess.run(["mount", "-t", "overlay", "o", "-o", options, f"{base}/{target}"], check=True)
os.chdir(base if sys.argv[2] == "outside" else f"{base}/two")
launched = launch(["/bin/sh", "-c", f"echo x > {base}/two/file || cat {base}/two/file"], [])
print(launched.process.wait(), launched.mechanism, *launched.read_only, launched.why_not)
launched.close()
"""


@needs_namespace
@pytest.mark.skipif(os.geteuid() != 0, reason="root mounts")
@pytest.mark.parametrize("working", ["outside", "inside"])
def test_storage_that_cannot_get_an_overlay_is_read_only_unless_the_program_works_there(working):
    """The kernel refuses an overlay over an overlay over an overlay."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        command = ["unshare", "-m", sys.executable, "-c", DEEP, base, working]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT)
    if working == "outside":
        assert done.stdout.splitlines() == ["x", f"0 namespace {base}/two "]
        assert "Read-only file system" in done.stderr
    else:
        assert done.stdout.startswith(f"0 python mount of overlay at '{base}/two': Invalid argument")


@both
@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs shared memory")
def test_files_in_shared_memory_are_not_changed(project, mechanism):
    """Users keep data sets there; processes of the program share memory as always."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        (Path(base) / "data").write_text("user")
        status, output, changes, launched = rehearse(
            "import os\n"
            "from multiprocessing import Process, shared_memory\n"
            f"base = {base!r}\n"
            "with open(f'{base}/data', 'w') as file: file.write('changed')\n"
            "assert open(f'{base}/data').read() == 'changed'\n"
            "open(f'{base}/new', 'w').close()\n"
            "assert sorted(os.listdir(base)) == ['data', 'new'] and os.path.basename(base) in os.listdir('/dev/shm')\n"
            "def write(name):\n"
            "    memory = shared_memory.SharedMemory(name)\n"
            "    memory.buf[0] = 7\n"
            "    memory.close()\n"
            "memory = shared_memory.SharedMemory(create=True, size=16)\n"
            "child = Process(target=write, args=(memory.name,))\n"
            "child.start(); child.join(30)\n"
            "assert (child.exitcode, memory.buf[0]) == (0, 7)\n"
            "memory.close(); memory.unlink()\n",
            project,
            mechanism,
        )
        launched.close()
        assert (status, output) == (0, "")
        assert kinds(changes, Path(base)) == {"data": "changed", "new": "new"}
        assert [each.read_text() for each in Path(base).iterdir()] == ["user"]


@both
@pytest.mark.parametrize("inner", ["short", "long" * 25])
def test_sockets_among_files_are_redirected(project, mechanism, inner):
    """The workers of a DataLoader bind them in a folder of their own, which is private."""
    source = f"""
import os, socket, threading
os.mkdir({inner!r})
listener = socket.socket(socket.AF_UNIX)
os.chdir({inner!r})
listener.bind("socket")
listener.listen()
def answer():
    connection, _ = listener.accept()
    connection.sendall(connection.recv(9) + b"!")
threading.Thread(target=answer, daemon=True).start()
client = socket.socket(socket.AF_UNIX)
client.connect("socket")
client.sendall(b"hello")
assert client.recv(9) == b"hello!"
try:
    socket.socket(socket.AF_UNIX).connect("missing")
except FileNotFoundError:
    os.unlink("socket")
left, right = socket.socketpair()
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0forebay-" + str(os.getpid()))
"""
    before = tree(project)
    status, output, changes, launched = rehearse(source, project, mechanism)
    launched.close()
    assert (status, output, kinds(changes, project)) == (0, "", {inner: "new"})
    assert tree(project) == before


def test_unknown_mechanism_is_refused():
    with pytest.raises(ForebayError, match="must be 'auto', 'namespace' or 'python', not 'overlay'"):
        launch(["/bin/true"], [], environment={**os.environ, MECHANISM: "overlay"})


AS_USER = """
import os, sys
from pathlib import Path
from forebay.rehearsal import file_functions  # what an ordinary user could not read later
from forebay.rehearsal.changes import read_changes
from forebay.rehearsal.launch import launch

os.chdir({folder!r})
os.setgroups([])
os.setgid({user})
os.setuid({user})
{then}
sys.executable = {python!r}
os.environ["HOME"] = {folder!r}
launched = launch(["/bin/sh", "-c", {program!r}], [])
print(launched.process.wait(), launched.mechanism, launched.why_not)
print(*sorted(each.kind + " " + Path(each.path).name for each in read_changes(launched.layers)), sep=", ")
launched.close()
"""
_USER = 54_321
_PYTHON = "/usr/bin/python3"  # of the system, as users may not enter the folder of others


# As `unshare -Ur`: root of a user namespace has the capability to mount, but not over the mounts of the machine.
_AS_ITS_ROOT = f"""
import ctypes
assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE: the user's own files in /proc
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for file, text in (("setgroups", "deny"), ("uid_map", "0 {_USER} 1"), ("gid_map", "0 {_USER} 1")):
    Path("/proc/self", file).write_text(text)
"""


def as_user(folder: Path, program: str, then: str = "") -> list[str]:
    for each in (folder, *folder.parents):
        if each.stat().st_uid == 0 and each != Path(tempfile.gettempdir()):
            each.chmod(each.stat().st_mode | 0o055)
    source = AS_USER.format(folder=str(folder), user=_USER, python=_PYTHON, program=program, then=then)
    done = subprocess.run(
        [sys.executable, "-c", source],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a process with threads may not enter a user namespace
    )
    return done.stdout.decode().splitlines()


def give(folder: Path, user: int, group: int) -> None:
    for each in (folder, *folder.rglob("*")):
        os.chown(each, user, group, follow_symlinks=False)


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(_PYTHON).exists(), reason="root becomes an ordinary user, with the system's Python"
)


@needs_namespace
@needs_root
def test_ordinary_user_gets_a_namespace_and_the_permissions_of_before(project):
    give(project, _USER, _USER)
    (project.parent / "other").mkdir()
    (project.parent / "other" / "theirs.txt").write_text("theirs")
    before = tree(project.parent)
    program = (
        "id -u; echo x > user.txt; cat user.txt; rm -r gone; mkdir gone; ls gone; mv sub sub2; cat sub2/deep/file.txt; "
        "echo y > ../other/theirs.txt || echo refused; touch ../other/new || echo refused; touch /usr/x || echo refused"
    )
    output = [each for each in as_user(project, program) if "denied" not in each and "cannot create" not in each]
    assert output[:6] == [str(_USER), "x", "deep", "refused", "refused", "refused"]
    assert output[6] == "0 namespace "
    assert "changed user.txt" in output[7]
    assert tree(project.parent) == before


@needs_namespace
@needs_root
def test_root_of_a_user_namespace_gets_a_namespace_too(project):
    """Otherwise programs that are not Python delete files of the user, as in a container without root."""
    give(project, _USER, _USER)
    before = tree(project)
    output = as_user(project, "id -u; rm user.txt; echo x > best.pt; cat best.pt", _AS_ITS_ROOT)
    assert output[:3] == ["0", "x", "0 namespace "]
    assert "changed best.pt" in output[3]
    assert "deleted user.txt" in output[3]
    assert tree(project) == before


@needs_root
def test_files_of_another_group_need_python_functions(project):
    give(project, _USER, _USER)
    os.chown(project / "log.txt", _USER, 0)
    lines = as_user(project, "true")
    assert lines[0].startswith("0 python")
    assert "log.txt belongs to another user or group" in lines[0]
