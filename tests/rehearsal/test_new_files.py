"""The choice of the new files that a run without values creates, and their creation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.rehearsal.changes import Layer, read_changes
from forebay.rehearsal.new_files import choose, create


@pytest.fixture
def layer(tmp_path):
    for name in ("real/exists", "upper/exists"):
        (tmp_path / name).mkdir(parents=True)
    return Layer(str(tmp_path / "real"), str(tmp_path / "upper"))


def write(layer, name, content):
    path = Path(layer.upper) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def chosen(layer, kept=lambda _: False, replaced=lambda _: False):
    return [each.path.removeprefix(f"{layer.real}/") for each in choose(read_changes([layer]), kept, replaced)]


def test_texts_are_chosen_and_data_is_not(layer):
    write(layer, "exists/log.txt", "ünïcode\n".encode())
    write(layer, "exists/empty", b"")
    write(layer, "exists/model.pt", b"PK\3\4\0\0")
    write(layer, "exists/latin.txt", b"\xe4\xf6")
    write(layer, "exists/cut.txt", "ü".encode()[:1])
    assert chosen(layer) == ["exists/empty", "exists/log.txt"]


def test_new_folder_with_data_is_left_out_with_all_that_it_has(layer):
    write(layer, "out/log.txt", b"log")
    write(layer, "out/checkpoint-1/config.json", b"{}")
    write(layer, "out/checkpoint-1/model.safetensors", b"\0" * 100)
    write(layer, "out/checkpoint-1/inner/text", b"text")
    assert chosen(layer) == ["out", "out/log.txt"]


def test_folders_without_chosen_files_and_links_to_nothing_are_left_out(layer):
    write(layer, "out/checkpoint/model.bin", b"\0")
    Path(layer.upper, "empty").mkdir()
    Path(layer.upper, "out", "latest").symlink_to("checkpoint")
    assert chosen(layer) == []
    write(layer, "out/log", b"")
    Path(layer.upper, "out", "log-link").symlink_to("log")
    assert chosen(layer) == ["out", "out/log", "out/log-link"]


def test_large_text_is_data(layer):
    write(layer, "exists/large.txt", b"x" * ((16 << 20) + 1))
    assert chosen(layer) == []


def test_kept_folder_gets_all_files(layer):
    write(layer, "cache/hub/model.bin", b"\0")
    assert chosen(layer, kept=lambda path: "/cache/" in path) == ["cache", "cache/hub", "cache/hub/model.bin"]


def test_created_files_have_content_mode_and_time(layer):
    write(layer, "out/log.txt", b"log")
    Path(layer.upper, "out", "log.txt").chmod(0o640)
    os.utime(f"{layer.upper}/out/log.txt", (5, 7))
    created, failed = create(choose(read_changes([layer]), lambda _: False, lambda _: False), lambda _: False)
    found = Path(layer.real, "out", "log.txt").stat()
    assert (created, failed) == ([f"{layer.real}/out", f"{layer.real}/out/log.txt"], {})
    assert (found.st_mode & 0o777, found.st_mtime, found.st_size) == (0o640, 7, 3)


def test_file_that_appeared_meanwhile_is_kept(layer):
    write(layer, "exists/log.txt", b"ours")
    selected = choose(read_changes([layer]), lambda _: False, lambda _: False)
    Path(layer.real, "exists", "log.txt").write_text("theirs")
    created, failed = create(selected, lambda _: False)
    assert created == []
    assert failed == {f"{layer.real}/exists/log.txt": "another process has created it during the run"}
    assert Path(layer.real, "exists", "log.txt").read_text() == "theirs"


def test_file_that_the_user_named_is_replaced(layer):
    for folder, content in ((layer.real, "old, longer"), (layer.upper, "new")):
        Path(folder, "exists", "trace.json").write_text(content)
    named = f"{layer.real}/exists/trace.json".__eq__
    created, _ = create(choose(read_changes([layer]), named, named), named)
    assert created == [f"{layer.real}/exists/trace.json"]
    assert Path(created[0]).read_text() == "new"


def test_link_in_place_of_a_target_is_not_followed(layer, tmp_path):
    write(layer, "exists/log.txt", b"ours")
    selected = choose(read_changes([layer]), lambda _: False, lambda _: False)
    (tmp_path / "victim").write_text("kept")
    Path(layer.real, "exists", "log.txt").symlink_to(tmp_path / "victim")
    assert create(selected, lambda _: True)[0] == []
    assert (tmp_path / "victim").read_text() == "kept"


def test_index_without_its_data_is_not_chosen(layer):
    write(layer, "exists/shelf.dat", b"\x80\x04K\x01.\0")
    write(layer, "exists/shelf.dir", b"'a', (0, 5)\n")
    write(layer, "exists/shelf.bak", b"")
    write(layer, "exists/notes.bak", b"notes")
    write(layer, "exists/text.dat", b"text")
    write(layer, "exists/text.dir", b"'a', (0, 4)\n")
    write(layer, "exists/model-00001-of-00002.safetensors", b"\0")
    write(layer, "exists/model.safetensors.index.json", b"{}")
    write(layer, "exists/other.index.json", b"{}")
    expected = ["notes.bak", "other.index.json", "text.dat", "text.dir"]
    assert chosen(layer) == [f"exists/{each}" for each in expected]


def test_index_of_data_that_exists_and_is_not_changed_is_not_chosen(layer):
    Path(layer.real, "exists", "shelf.dat").write_bytes(b"\0")
    write(layer, "exists/shelf.dat", b"\0\1")
    write(layer, "exists/shelf.dir", b"'a', (0, 5)\n")
    assert chosen(layer) == []


@pytest.mark.parametrize("kind", ["shelve", "dbm.dumb"])
def test_database_of_python_is_created_with_all_its_parts_or_not_at_all(layer, kind):
    import dbm.dumb
    import shelve

    name = str(Path(layer.upper) / "exists" / "shelf")
    with dbm.dumb.open(name) as database:
        if kind == "shelve":
            shelve.Shelf(database)["a"] = {"b": 1}
        else:
            database["a"] = "text"
    found = chosen(layer)
    assert len(found) in (0, 3), found
