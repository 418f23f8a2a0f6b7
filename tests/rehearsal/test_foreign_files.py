"""Files and folders of another group, which an ordinary user changes outside the working directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from textwrap import dedent

import pytest
from rehearsal.test_launch import _USER, as_user, give, needs_root
from support.rehearsals import needs_namespace, tree

from forebay.rehearsal import foreign_files
from forebay.rehearsal.foreign_files import _or_adopt

_GROUP = 54_322
CHANGES = """
    import os, shutil
    from pathlib import Path
    import foreign_files
    foreign_files.install()
    def check(path, expected):
        assert Path(path).read_text() == expected, (path, Path(path).read_text())
    with open("../lab/own/a", "a") as file: file.write("more")
    check("../lab/own/a", "amore")
    Path("../lab/own/b").write_text("new")
    check("../lab/own/b", "new")
    os.truncate(b"../lab/own/c", 0)
    check("../lab/own/c", "")
    os.chmod("../lab/own/d", 0o600)
    os.utime("../lab/own/e")
    os.rename("../lab/own/f", "../lab/own/g")
    check("../lab/own/g", "f")
    os.close(os.open("../lab/own/h", os.O_RDWR))
    os.unlink("../lab/own/i")
    os.makedirs("../lab/deep/new/deeper")
    Path("../lab/deep/new/x").write_text("x")
    shutil.rmtree("../lab/deep/new")
    Path("../lab/top").write_text("top")
    try:
        open("../lab/missing/x", "w")
    except FileNotFoundError:
        print("done")
"""


@pytest.fixture
def tmp_path(public_folder):
    return public_folder  # also for an ordinary user


@needs_namespace
@needs_root
def test_folders_and_files_of_another_group_are_changed_in_the_overlay(tmp_path):
    project, lab = tmp_path / "project", tmp_path / "lab"
    for each in (project, lab / "own", lab / "deep"):
        each.mkdir(parents=True)
    for each in "abcdefghi":
        (lab / "own" / each).write_text(each)
    source = Path(foreign_files.__file__).read_text()
    (project / "foreign_files.py").write_text(source)
    (project / "changes.py").write_text(dedent(CHANGES))
    give(project, _USER, _USER)
    give(lab, _USER, _GROUP)
    os.chown(lab / "own", _USER, _USER)
    before = tree(tmp_path)
    output = as_user(project, "/usr/bin/python3 -B changes.py && echo x > ../lab/deep/shell && cat ../lab/deep/shell")
    assert output[:3] == ["done", "x", "0 namespace "], output
    assert "changed a" in output[3]
    assert tree(tmp_path) == before


@pytest.mark.parametrize("number", [errno.EOVERFLOW, errno.EACCES])
def test_other_errors_and_paths_without_a_file_are_not_changed(tmp_path, number):
    calls = []

    def fail(*args, **keywords):
        calls.append(args)
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").write_text("x")
    adopt = _or_adopt(fail)
    for path in (tmp_path, tmp_path / "missing", 3, None, "\0"):
        with pytest.raises(OSError, match=os.strerror(number)):
            adopt(path)
    assert len(calls) == 5
    calls.clear()
    with pytest.raises(OSError, match=os.strerror(number)):
        adopt(tmp_path / "file")
    assert len(calls) == (2 if number == errno.EOVERFLOW else 1)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
