"""What cannot raise complains: a warning, and where warnings are errors, through sys.unraisablehook."""

from __future__ import annotations

import sys
import warnings

import pytest

from forebay.errors import ForebayWarning, complain


def test_it_warns():
    with pytest.warns(ForebayWarning, match="it went wrong"):
        complain("it went wrong")


def test_it_never_raises(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook_args: told.append(repr(hook_args.exc_value)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        complain("it went wrong")
    assert told == ["ForebayWarning('it went wrong')"]


def test_python_itself_shows_it(monkeypatch, capsys):
    """Its own hook takes nothing but what it made itself."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        complain("it went wrong")
    assert "ForebayWarning: it went wrong\n" in capsys.readouterr().err
