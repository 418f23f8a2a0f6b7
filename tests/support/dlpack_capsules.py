"""Capsules of DLPack that ctypes makes, with any contents, and a consumer that calls their deleters."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Produced", "consume"]

LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # calls without the GIL, and takes it to run Python functions

_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Legacy(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Produced:
    """A capsule of memory, which is not a library's; counts the calls of its deleter. Also a producer of the capsule.

    `strides` None is a null pointer, as is `shape` None; `version` None is the form without a version.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...] | None = (4,),
        strides: tuple[int, ...] | None = None,
        *,
        element: tuple[int, int, int] = (2, 32, 1),  # code, bits, lanes
        device: tuple[int, int] = (2, 0),
        offset: int = 0,
        version: tuple[int, int] | None = None,
        flags: int = 0,
        ndim: int | None = None,
        deletes: bool = True,
    ) -> None:
        self.deleted = 0
        self.device = device
        self.asked: list[dict[str, Any]] = []
        managed: Any = _Legacy() if version is None else _Versioned()
        self._kept = [
            managed,
            *(None if each is None else (ctypes.c_int64 * len(each))(*each) for each in (shape, strides)),
        ]
        pointers = [
            ctypes.cast(each, ctypes.POINTER(ctypes.c_int64)) if each is not None else None for each in self._kept[1:]
        ]
        count = len(shape or ()) if ndim is None else ndim
        managed.tensor = _Tensor(address, *device, count, *element, *pointers, offset)
        if version is not None:
            (managed.major, managed.minor), managed.flags = version, flags
        if deletes:
            managed.deleter = _Deleter(self._delete)
        self.name = LEGACY if version is None else VERSIONED
        self.capsule: Any = _python.PyCapsule_New(ctypes.addressof(managed), self.name, None)

    def _delete(self, _address: int) -> None:
        self.deleted += 1

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def consume(capsule: Any) -> tuple[dict[str, Any], Any]:
    """Take the tensor of a capsule as another library does. Return its fields, and a function that deletes it."""
    versioned = "dltensor_versioned" in repr(capsule)
    name = VERSIONED if versioned else LEGACY
    address = _python.PyCapsule_GetPointer(capsule, name)
    _python.PyCapsule_SetName(capsule, b"used_dltensor_versioned" if versioned else b"used_dltensor")
    managed: Any = (_Versioned if versioned else _Legacy).from_address(address)
    tensor = managed.tensor
    fields = {
        "address": tensor.data,
        "device": (tensor.device_type, tensor.device_id),
        "element": (tensor.code, tensor.bits, tensor.lanes),
        "shape": tensor.shape[: tensor.ndim],
        "strides": tensor.strides[: tensor.ndim],
        "offset": tensor.byte_offset,
        "version": (managed.major, managed.minor, managed.flags) if versioned else None,
    }
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(managed.deleter, ctypes.c_void_p).value)
    return fields, lambda: function(address)
