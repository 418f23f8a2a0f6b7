"""The list of slow tests in tests/conftest.py names existing files and folders."""

from __future__ import annotations


def test_slow_paths_exist(root, pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(root / "tests/conftest.py"))
    assert [path for path in conftest.SLOW if not (root / "tests" / path).exists()] == []
