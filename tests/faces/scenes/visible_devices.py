"""What CUDA_VISIBLE_DEVICES is read as."""

from __future__ import annotations

import os

TEXTS = ("", "0,0", "-1", "0,-1,1", "1gpu2,2ampere", "abc", "0,abc,1", " 0 , 1 ", "+1", "0x1", "3.5", "64", "0,,1")
NAMES = ("GPU-aa,GPU-bb", "GPU-aa,GPU-aa", "GPU-aa,0,GPU-bb", "MIG-x", "MIG-x,MIG-y", "MIG-x,GPU-aa", "MIG-x,MIG-x")


def read(cuda, text: str | None):
    before = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        if text is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = text
        return cuda._parse_visible_devices()
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def nothing_said(cuda, torch_like):
    return read(cuda, None)


def ordinals(cuda, torch_like):
    return {text: read(cuda, text) for text in TEXTS}


def names(cuda, torch_like):
    return {text: read(cuda, text) for text in NAMES}


def names_become_ordinals(cuda, torch_like):
    known = ["GPU-9e8d35e3", "GPU-fd69a7d7", "GPU-9e8dffff"]
    wanted = (["GPU-9e8d35"], ["GPU-9e8d"], ["GPU-fd", "GPU-fd6"], ["GPU-zz", "GPU-fd"], ["GPU-fd", "GPU-9e8d3"])
    return [cuda._transform_uuid_to_ordinals(candidates, known) for candidates in wanted]
