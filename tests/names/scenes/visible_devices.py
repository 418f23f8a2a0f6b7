"""Parsing of CUDA_VISIBLE_DEVICES: a table of values and many generated ones."""

from __future__ import annotations

import os
import random

from support.on_oracle import outcome

ROWS = ("", "0,0", "-1", "0,-1,1", "1gpu2,2ampere", "abc", "0,abc,1", " 0 , 1 ", "+1", "0x1", "3.5", "64", "0,,1")
NAMED = ("GPU-aa,GPU-bb", "GPU-aa,GPU-aa", "GPU-aa,0,GPU-bb", "MIG-x", "MIG-x,MIG-y", "MIG-x,GPU-aa", "MIG-x,MIG-x")
UNUSUAL = (
    ",",
    ",0",
    "0,",
    "GPU-",
    "GPU-,GPU-",
    "gpu-0",
    " GPU-a",
    "GPU-a, GPU-b",
    "\t1",
    "1\n,2",
    "00,0",
    "1_0",
    "-0",
    "१",
)
SIGNS = ("-", "+", "0,-", "²", "1²")
NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "7",
    "63",
    "64",
    "65",
    "-1",
    "+1",
    "-0",
    "02",
    "1x",
    "0x1",
    "3.5",
    " 1",
    "2 ",
    "\t4",
    "a",
    "",
)
UUIDS = ("GPU-9e8d35e3", "GPU-fd69a7d7", "GPU-9e8dffff", "GPU-0a", "GPU-0abc")
DIFFERS = {"sign_without_number": "the entry ends the list; in PyTorch int() raises"}


def parsed(cuda, text: str | None):
    before = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        if text is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = text
        return cuda._parse_visible_devices()
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def unset_variable(cuda, torch_like):
    return parsed(cuda, None)


def rows(cuda, torch_like):
    return {text: parsed(cuda, text) for text in (*ROWS, *NAMED, *UNUSUAL)}


def sign_without_number(cuda, torch_like):
    return {text: outcome(cuda, parsed, cuda, text) for text in SIGNS}


def generated_values(cuda, torch_like):
    rng = random.Random(4)
    texts = [",".join(rng.choices(NUMBERS, k=rng.randint(1, 5))) for _ in range(250)]
    texts += [",".join(rng.choices((*UUIDS, "MIG-a/1/2", "MIG-b", "0", ""), k=rng.randint(1, 4))) for _ in range(150)]
    return {text: parsed(cuda, text) for text in texts}


def names_become_ordinals(cuda, torch_like):
    known = list(UUIDS[:3])
    wanted = (["GPU-9e8d35"], ["GPU-9e8d"], ["GPU-fd", "GPU-fd6"], ["GPU-zz", "GPU-fd"], ["GPU-fd", "GPU-9e8d3"], [])
    return [cuda._transform_uuid_to_ordinals(candidates, known) for candidates in wanted]


def many_names_become_ordinals(cuda, torch_like):
    rng = random.Random(5)

    def random_prefixes():
        return [name[: rng.randint(4, len(name) + 1)] for name in rng.choices((*UUIDS, "GPU-zz"), k=rng.randint(0, 4))]

    return {
        ",".join(names): cuda._transform_uuid_to_ordinals(names, list(UUIDS))
        for names in (random_prefixes() for _ in range(200))
    }
