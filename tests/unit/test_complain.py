"""What cannot raise complains: a warning, and where warnings are errors, through sys.unraisablehook."""

from __future__ import annotations

import sys
import warnings

import pytest

from penstock.errors import PenstockWarning, complain


def test_it_warns():
    with pytest.warns(PenstockWarning, match="it went wrong"):
        complain("it went wrong")


def test_it_never_raises(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        complain("it went wrong")
    (hook_args,) = told
    assert isinstance(hook_args.exc_value, PenstockWarning)
    assert str(hook_args.exc_value) == "it went wrong"
