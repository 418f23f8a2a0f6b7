"""`forebay viewer`: the page, its name, and error messages."""

from __future__ import annotations

import pytest
from support.viewer_pages import written

from forebay.commands.cli import main


def test_page_is_written_to_the_current_directory_and_replaced(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["viewer"]) == 0
        assert capsys.readouterr() == ("viewer.html\n", "")
    assert (tmp_path / "viewer.html").read_text("utf-8") == written()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("notes.html", "exists, and was not made by forebay"), ("no/viewer.html", "cannot write the page")],
)
def test_error_is_one_line(capsys, tmp_path, name, reason):
    (tmp_path / "notes.html").write_text("notes")
    assert main(["viewer", "--output", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("opens", "status"), [(True, 0), (False, 2)])
def test_page_is_opened(capsys, tmp_path, monkeypatch, opens, status):
    addresses = []
    monkeypatch.setattr("webbrowser.open", lambda address: addresses.append(address) or opens)
    page = tmp_path / "a page.html"
    assert main(["viewer", "--open", "--output", str(page)]) == status
    assert addresses == [page.as_uri()]
