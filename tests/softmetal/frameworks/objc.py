"""The parts of PyObjC's module `objc` that a backend uses."""

from typing import Any

from softmetal.control import control as _control
from softmetal.objects import NSObject as objc_object
from softmetal.objects import ObjCError as error
from softmetal.objects import autorelease_pool
from softmetal.resources import VarList as varlist

__version__ = "12.2"
NULL = None
nil = None

__all__ = ["NULL", "autorelease_pool", "error", "nil", "objc_object", "varlist"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _control.refuse(f"objc.{name}")
