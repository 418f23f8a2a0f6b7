"""`warn_unraisable`: a warning or, if warnings are errors, a call of sys.unraisablehook."""

from __future__ import annotations

import sys
import warnings

import pytest

from forebay.errors import ForebayWarning, warn_unraisable


def test_warn_unraisable_warns():
    with pytest.warns(ForebayWarning, match="it went wrong"):
        warn_unraisable("it went wrong")


def test_warn_unraisable_calls_unraisablehook_if_warnings_are_errors(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook_args: reported.append(repr(hook_args.exc_value)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_unraisable("it went wrong")
    assert reported == ["ForebayWarning('it went wrong')"]


def test_warn_unraisable_works_with_the_default_unraisablehook(monkeypatch, capsys):
    """The default hook accepts only arguments that the interpreter has made."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_unraisable("it went wrong")
    assert "ForebayWarning: it went wrong\n" in capsys.readouterr().err
