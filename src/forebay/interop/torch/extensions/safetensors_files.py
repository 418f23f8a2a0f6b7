"""Files of safetensors with tensors whose values are not computed.

The library writes from addresses. Without values, the file gets the same header and size, with holes in place of
unknown values (note [Files without values] in `devices/saved_files.py`). They read as zeros.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from forebay.interop.torch.devices import host_placeholders, host_values, values
from forebay.interop.torch.kernels.known_values import known_values
from forebay.rehearsal.file_functions import has_private_places, place_of
from forebay.rehearsal.inside import is_inside

__all__ = ["MODULE", "replace_save_file"]

MODULE = "safetensors.torch"
_TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
_ALIGNMENT = 8  # of the header


def replace_save_file(module: ModuleType) -> None:
    """Let `safetensors.torch.save_file` write holes, from the import of the module on."""
    original = module.save_file
    if getattr(original, "_is_forebays", False):
        return

    def save_file(
        tensors: dict[str, torch.Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
    ) -> None:
        if values.is_computed() or not isinstance(tensors, dict) or not any(map(_is_unknown, tensors.values())):
            original(tensors, place_of(filename, write=True), metadata)
            return
        if not is_inside():
            for each in tensors.values():
                if each.device.type == "cpu":
                    host_values.make_real(each, "safetensors.torch.save_file")
            if any(map(_is_unknown, tensors.values())):
                raise values.needs_values("safetensors.torch.save_file")
            original(tensors, place_of(filename, write=True), metadata)
            return
        check = getattr(module, "_evaluate_tensors_for_save", None)
        if check is not None:  # its errors are the library's
            check(tensors)
        _write(tensors, filename, metadata)

    def safe_open(filename: Any, *args: Any, **keywords: Any) -> Any:
        return opened(place_of(filename), *args, **keywords)

    opened = module.safe_open
    if has_private_places():  # where the library would open the real file
        module.safe_open = safe_open  # type: ignore[attr-defined]  # as below
        sys.modules["safetensors"].safe_open = safe_open  # type: ignore[attr-defined]  # as below
    save_file.__doc__ = original.__doc__
    save_file._is_forebays = True  # type: ignore[attr-defined]  # asked above
    module.save_file = save_file  # type: ignore[attr-defined]  # the library's function


def _is_unknown(tensor: object) -> bool:
    if not isinstance(tensor, torch.Tensor):
        return False
    if tensor.device.type == "cpu":
        return host_placeholders.has_no_values(tensor.untyped_storage())
    return tensor.is_cuda and known_values(tensor) is None


def _write(
    tensors: Mapping[str, torch.Tensor], file: str | os.PathLike[str], metadata: Mapping[str, str] | None
) -> None:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    order = sorted(tensors.items(), key=lambda each: (-each[1].itemsize, each[0]))
    at = 0
    for name, tensor in order:
        if not tensor.is_contiguous():
            raise ValueError(f"You are trying to save a non contiguous tensor: `{name}` which is not allowed.")
        size = tensor.numel() * tensor.itemsize
        header[name] = {"dtype": _type(tensor), "shape": [*tensor.shape], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(file, "wb") as written:  # noqa: PTH123 -- any path that the library accepts
        written.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in order:
            if _is_unknown(tensor):
                written.seek(tensor.numel() * tensor.itemsize, os.SEEK_CUR)
            else:
                written.write(_bytes(tensor))
        written.truncate()


def _type(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise ValueError(f"safetensors has no type for tensors of {tensor.dtype}")
    return _TYPES[name]


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
