"""Settings that PyTorch programs make in their first lines, under `forebay run --emulate cuda`."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

MIB = 1 << 20
USE = "x = torch.empty(30 << 20, dtype=torch.uint8, device='cuda')"


def run(runner, source, *options):
    runner.write(source)
    observed = runner.command("-m", "forebay", "run", "--emulate", "cuda:2@rtx_4090", *options, "script.py")
    (device,) = json.loads((observed.output / "summary.json").read_text())["torch"]
    return observed, device


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_settings_that_a_program_makes_before_its_import_of_pytorch_apply(runner, name):
    source = f"""
        import os
        os.environ["{name}"] = "expandable_segments:True"
        import torch
        {USE}
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        print(settings["expandable_segments"], settings["max_split_size"] >> 20)
    """
    observed, device = run(runner, source)
    assert observed.out == "True 64\n"
    assert device["peak_reserved"] == 40 * MIB  # pages of 20 MiB
    assert device["helpful_settings"] == []


def test_memory_without_the_cache_counts(runner):
    source = f"""
        import os
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        import torch
        {USE}
        x = None
        x = torch.empty(20 << 20, dtype=torch.uint8, device='cuda')
        print(torch.cuda.memory_reserved())
    """
    observed, device = run(runner, source)
    assert observed.out == "0\n"
    assert (device["peak_allocated"], device["peak_reserved"]) == (30 * MIB, 30 * MIB)
    assert [(each["name"], each["nbytes"]) for each in device["categories"]] == [("temporaries", 30 * MIB)]


def test_devices_that_a_program_selects_are_visible(runner):
    source = f"""
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        import torch
        {USE}
        print(torch.cuda.device_count(), x.device)
    """
    observed, device = run(runner, source)
    assert observed.out == "1 cuda:0\n"
    assert device["index"] == 1
