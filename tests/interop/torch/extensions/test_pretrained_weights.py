"""Pretrained models without weight files."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")
transformers = pytest.importorskip("transformers", reason="loads its models")

import transformers.modeling_utils as module  # noqa: E402 -- after the check

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.extensions.pretrained_weights import replace_search  # noqa: E402 -- needs torch
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above

SEARCH = "_get_resolved_checkpoint_files"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, SEARCH, getattr(module, SEARCH))  # restored at the end
    replace_search(module)
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1)
    config.save_pretrained(tmp_path)
    return tmp_path


def load(folder):
    return transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16).cuda()


def test_missing_weights_are_assumed_and_listed(folder):
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        model = load(folder)
        assert model.lm_head.weight.is_cuda
        assert model.dtype == torch.bfloat16
        assert [str(folder) in each.text for each in assumed_values.found()] == [True]


def test_missing_weights_are_an_error_with_values(folder):
    with forebay.emulate("cuda", profile="h100"), patch("compute"), pytest.raises(OSError, match="no file named"):
        load(folder)


def test_a_missing_configuration_is_an_error(folder):
    (folder / "config.json").unlink()
    with forebay.emulate("cuda", profile="h100"), patch("shapes"), pytest.raises(OSError, match="no file named"):
        load(folder)
